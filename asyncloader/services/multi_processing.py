"""Running a graph in worker processes.

This file is about ``MultiProcessingReadingService``, whose workers are processes of this machine.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from asyncloader.services.on_workers import InitFn, ResetFn, WorkersReadingService
from asyncloader.services.tuned_workers import PREFETCH
from asyncloader.services.workplace import ThisMachine
from asyncloader.workers.process.start import check_method


@dataclass(eq=False, repr=False)
class MultiProcessingReadingService(WorkersReadingService):
    """Run the graph in ``num_workers`` processes, which stay alive between epochs.

    The part of the graph that can be copied runs in every worker; a sharding pipe in it says
    which items belong to which worker. Pipes that cannot be copied stay in the loader's
    process. With ``num_workers=0`` everything runs in this process.

    ``worker_prefetch_cnt`` is how many portions a worker may run ahead: a portion is one large
    or slow item, or the quick small ones of 2 ms, at most 1,024 items and 1 MiB. So it bounds
    the number of items where that matters, and their bytes always (0: one item at a time, on
    demand). ``prefetch_bytes`` bounds the bytes that all workers together run ahead; a worker
    is always allowed one item, and 4 KiB a portion.
    ``main_prefetch_cnt`` is how many items are held ready after the loader's own pipes.
    ``worker_init_fn(pipe, info)`` is called once in each worker,
    ``worker_reset_fn(pipe, info, seed_generator)`` at each epoch; both return the pipe and may
    be async. A state from the middle of an epoch can be resumed with another number of
    workers only if the pipes that they add are one to one; otherwise a SnapshotError says so.
    ``multiprocessing_context`` is "fork", "spawn" or "forkserver", or None: then workers are
    forked from the program where that does no harm, and otherwise from a process of our own.

    If a worker owes an item and is silent for ``timeout`` seconds, it is killed, and a
    ``WorkerTimeout`` says where it was; if it waits for the dispatching process, that one is
    killed. Time in which the loader's own process is stopped hardly counts. Without a timeout
    there is a warning every 30 s.

    ``num_workers="auto"`` measures while an epoch runs, and takes as many workers as give the most
    items a second, or as few as it needs where the consumer does not wait: from 0 up to
    ``max_workers`` (twice the cores that may be used, at least 4), as far as there is memory. The
    number changes in the middle of an epoch only where the order does not depend on it, and where
    what was read need not be read again; elsewhere between epochs. ``worker_prefetch_cnt="auto"``
    is found in the same way. ``loader.stats().choices`` and the log say what was chosen, and why.

    With ``on_worker_death="restart"`` a worker that dies or is killed is replaced by one that
    resumes at the same place, so every item still comes once and in its order.
    ``max_restarts`` is how many workers in a row may die before they deliver an item. By default
    workers are replaced in a graph that begins in a ``Feed``, where a death is the error of the
    requests that the worker had; elsewhere it is an error of the epoch (``"raise"``).

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(6)).sharding_filter().map(lambda number: number * number)
    >>> service = MultiProcessingReadingService(num_workers=2)
    >>> with DataLoader2(pipe, reading_service=service) as loader:
    ...     list(loader)
    [0, 1, 4, 9, 16, 25]
    """

    num_workers: int | Literal["auto"] = 0
    multiprocessing_context: str | None = None
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

    def workplace(self) -> ThisMachine:
        check_method(self.multiprocessing_context)
        return ThisMachine(self.multiprocessing_context)
