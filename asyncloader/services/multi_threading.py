"""Running a graph in threads of the loader's process.

This file is about ``MultiThreadingReadingService``: what ``MultiProcessingReadingService`` does
with processes, with threads, among which items are handed over as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.graph.walk import Graph
from asyncloader.services.on_workers import InitFn, ResetFn, WorkersReadingService
from asyncloader.services.tuned_workers import PREFETCH
from asyncloader.services.workplace import Workplace
from asyncloader.workers.threads.worker_thread import KeptFunction, ThreadEngine


@dataclass(eq=False, repr=False)
class MultiThreadingReadingService(WorkersReadingService):
    """Run the graph in ``num_workers`` threads of this process, which stay alive between epochs.

    Use it where the work gives up the GIL (decoders, NumPy, torch, files, the network), where items
    are large, on Windows, in notebooks, and with a Python that has no GIL. Elsewhere processes are
    faster. The items and their order are those of as many processes, and a state can be resumed
    with either.

    The parameters are those of ``MultiProcessingReadingService``. Each worker has its own copy of
    the pipes. Functions, data sets and all other data are shared, and nothing is pickled: what
    several threads cannot use at a time, such as an open file, is to be opened by each: in a
    ``threading.local``, with ``resource=``, or in ``worker_init_fn`` for a pipe of yours. Items are
    handed over as they are, so a pipe must not change an item that it has yielded.

    The global random generators are the whole program's. A function that draws takes those of its
    worker, ``get_worker_info().random``, ``.torch_generator`` and ``.numpy_generator``, which are
    seeded for each epoch, are part of states, and give the same numbers in a worker that is a
    process.

    A thread cannot be killed. A worker that owes an item and is silent for ``timeout`` seconds is
    given up, with a ``ResourceWarning`` that names the function in which it is; so is one that does
    not end in time when the loader is closed. A crash of native code ends the program.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(6)).sharding_filter().map(lambda number: number * number)
    >>> with DataLoader2(pipe, reading_service=MultiThreadingReadingService(2)) as loader:
    ...     list(loader)
    [0, 1, 4, 9, 16, 25]
    """

    num_workers: int | Literal["auto"] = 0
    worker_prefetch_cnt: int | Literal["auto"] = PREFETCH
    main_prefetch_cnt: int = 10
    worker_init_fn: InitFn | None = None
    worker_reset_fn: ResetFn | None = None
    _: KW_ONLY
    in_order: bool = True
    timeout: float | None = None
    prefetch_bytes: int = 256 << 20
    on_worker_death: Literal["raise", "restart"] | None = None
    max_restarts: int = 3
    max_workers: int | None = None

    def workplace(self) -> ThisProcess:
        return ThisProcess()


class ThisProcess(Workplace):
    """The loader's own process, where workers are threads."""

    shares_data = True

    def __init__(self) -> None:
        self._kept: KeptFunction | None = None

    def in_messages(self, function: Callable[..., Any]) -> KeptFunction:
        # A service has one such function, the one that is called at each epoch.
        if self._kept is None:
            self._kept = KeptFunction(function)
        return self._kept

    def engine(self, workers: int) -> ThreadEngine:
        return ThreadEngine()

    def check(self, graph: Graph, workers: int) -> None:
        check_graph(graph, Purpose.THREADS, workers=workers)

    def room(self, running: int, pids: Sequence[int]) -> int | None:
        # They take little memory, beside that of their items.
        return None
