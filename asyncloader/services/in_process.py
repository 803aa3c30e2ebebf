"""Running a graph in the loader's own process.

This file is about ``InProcessReadingService``, which a loader uses when it is
given no service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.arguments import (
    checked_count,
    checked_function,
    checked_graph,
    iterable_source,
)
from asyncloader.datapipes.naming import function_name, stage_name
from asyncloader.datapipes.prefetching import Prefetcher
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import IterResetFn, ReadingServiceInterface, unchanged
from asyncloader.services.calls import result_of


class InProcessReadingService(ReadingServiceInterface):
    """Run the graph in this process; the global random generators are left alone.

    ``prefetch_cnt`` items are held ready at the end of the graph. ``init_fn`` is
    called once with the graph, ``reset_fn`` at each epoch; both return the graph
    to use and may be async.

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
        init_fn: Callable[[Any], Any] | None = None,
        reset_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.prefetch_cnt = checked_count("prefetch_cnt", prefetch_cnt, at_least=0)
        self.init_fn = None if init_fn is None else checked_function("init_fn", init_fn)
        self.reset_fn = None if reset_fn is None else checked_function("reset_fn", reset_fn)

    async def initialize(self, datapipe: Any) -> Any:
        if self.init_fn is not None:
            returned = await result_of(self.init_fn(datapipe))
            datapipe = iterable_source(checked_graph("init_fn", self.init_fn, returned))
        if self.prefetch_cnt:
            datapipe = Prefetcher(datapipe, self.prefetch_cnt)
        return datapipe

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        reset_fn = self.reset_fn
        if reset_fn is None:
            return iter_reset_fn

        async def reset(datapipe: Any) -> Any:
            return await result_of(reset_fn(await iter_reset_fn(datapipe)))

        return reset

    def graph_changer(self) -> str:
        return "" if self.init_fn is None else f"init_fn={function_name(self.init_fn)}"

    def __repr__(self) -> str:
        return stage_name(self)
