"""Running a graph in the loader's own process.

This file is about ``InProcessReadingService``, which a loader uses when it is
given no service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncloader.arguments import (
    check_takes,
    checked_count,
    checked_function,
    checked_graph,
    function_name,
    takes,
)
from asyncloader.datapipes.prefetching import Prefetcher
from asyncloader.datapipes.running.traits import hands_over
from asyncloader.datapipes.sources import iterable_source
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    IterResetFn,
    ReadingServiceInterface,
    as_reset,
    result_of,
    unchanged,
)
from asyncloader.services.hooks import ServiceHooks
from asyncloader.worker_info import WorkerInfo, this_worker

#: What functions for workers are given when there are no workers.
HERE = WorkerInfo(num_workers=1, worker_id=0)


class InProcessReadingService(ReadingServiceInterface, ServiceHooks):
    """Run the graph in this process; the global random generators are left alone.

    ``prefetch_cnt`` items are held ready at the end of the graph. ``init_fn(pipe)`` is
    called once, ``reset_fn(pipe)`` at each epoch; both return the pipe and may be async.
    The functions of ``MultiProcessingReadingService`` work as well: one that takes more than
    the pipe is given a ``WorkerInfo``, and ``reset_fn`` also the ``SeedGenerator``.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> service = InProcessReadingService(prefetch_cnt=4, init_fn=lambda pipe: pipe.batch(2))
    >>> with DataLoader2(IterableWrapper(range(4)), reading_service=service) as loader:
    ...     list(loader)
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: Callable[[Any], Any] | Callable[[Any, WorkerInfo], Any] | None = None,
        reset_fn: Callable[[Any], Any]
        | Callable[[Any, WorkerInfo, SeedGenerator], Any]
        | None = None,
    ) -> None:
        self.prefetch_cnt = checked_count("prefetch_cnt", prefetch_cnt, at_least=0)
        self.init_fn = None if init_fn is None else _checked("init_fn", init_fn, 2)
        self.reset_fn = None if reset_fn is None else _checked("reset_fn", reset_fn, 3)

    async def initialize(self, datapipe: Any) -> Any:
        if self.init_fn is not None:
            returned = await result_of(_called(self.init_fn, datapipe, HERE))
            datapipe = iterable_source(checked_graph("init_fn", self.init_fn, returned))
        # What hands over runs ahead itself, and nothing may follow it.
        if self.prefetch_cnt and not hands_over(datapipe):
            datapipe = Prefetcher(datapipe, self.prefetch_cnt)
        return datapipe

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        before, reset_fn = as_reset(iter_reset_fn), self.reset_fn
        if reset_fn is None:
            return before

        async def reset(datapipe: Any) -> Any:
            datapipe = await before(datapipe)
            # In a sequence with workers this runs in each of them.
            info = this_worker() or HERE
            own = seed_generator.spawn(info.worker_id)
            return await result_of(_called(reset_fn, datapipe, info, own))

        return reset

    def begins_and_ends_at_once(self) -> bool:
        return self.reset_fn is None and type(self) is InProcessReadingService

    def graph_changer(self) -> str:
        return "" if self.init_fn is None else f"init_fn={function_name(self.init_fn)}"


def _checked(name: str, function: Any, count: int) -> Any:
    checked_function(name, function)
    if not takes(function, 1):
        check_takes(name, function, count)
    return function


def _called(function: Callable[..., Any], datapipe: Any, *more: Any) -> Any:
    """Call a function with a graph, and with the rest too if it needs more arguments."""
    return function(datapipe) if takes(function, 1) else function(datapipe, *more)
