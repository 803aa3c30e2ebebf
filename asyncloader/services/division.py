"""A graph divided between the loader and its workers.

This file is about ``divide``: each branch that workers run is taken out of the
graph, and a ``FromWorkers`` takes its place there.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import LoaderError
from asyncloader.graph.copying import copy_graph
from asyncloader.graph.cut import Branch, cut_graph
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.seeding import SeedPlaces, SharedPipes
from asyncloader.graph.settings import apply_sharding
from asyncloader.graph.walk import traverse_dps
from asyncloader.runtime import WorkerInfo
from asyncloader.workers.main import WorkerPlan
from asyncloader.workers.pool import WorkerStream


class FromWorkers(IterDataPipe[Any]):
    """Yield the items of a branch that runs in workers; stands in the branch's place."""

    edges = ()

    def __init__(self, branch: str, length: int | None) -> None:
        self.branch = branch
        self.length = length
        self.stream: WorkerStream | None = None

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        stream, self.stream = self.stream, None
        if stream is None:
            raise LoaderError(f"{self!r} is read once an epoch, by the loader of its workers")
        while items := await stream.take():
            yield items

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for items in self.groups():
            for item in items:
                yield item

    def __repr__(self) -> str:
        return f"FromWorkers({self.branch})"


@dataclass(frozen=True)
class Division:
    """The loader's part of a graph, and the branches that workers run."""

    #: What the loader iterates.
    root: Any
    #: What workers run.
    branches: tuple[Branch, ...]
    #: Where the workers' items enter the loader's part, one for each branch.
    outlets: tuple[FromWorkers, ...]
    seed_places: tuple[SeedPlaces, ...]
    shared: SharedPipes

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        ends = tuple(branch.end for branch in self.branches)
        return WorkerPlan(ends, self.seed_places, init_fn)

    def connect(self, streams: Sequence[WorkerStream]) -> None:
        """Let the outlets yield an epoch's items."""
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.stream = stream


def divide(datapipe: Any, num_workers: int) -> Division:
    """Take the branches for workers out of the graph, which is changed."""
    shared = SharedPipes(datapipe)
    cut = cut_graph(datapipe)
    root, outlets = datapipe, []
    for branch in cut.branches:
        outlet = FromWorkers(stage_name(branch.end), _length(branch, num_workers))
        replaced = replace_dp(traverse_dps(root), branch.end, outlet)
        root = next(iter(replaced.values()))[0]
        outlets.append(outlet)
    return Division(
        root=root,
        branches=cut.branches,
        outlets=tuple(outlets),
        seed_places=tuple(shared.places_in(branch.end) for branch in cut.branches),
        shared=shared,
    )


def _length(branch: Branch, num_workers: int) -> int | None:
    try:
        return sum(_length_in(branch.end, num_workers, worker) for worker in range(num_workers))
    except TypeError:
        return None


def _length_in(end: Any, num_workers: int, worker: int) -> int:
    copy = copy_graph(end)
    group = SHARDING_PRIORITIES.MULTIPROCESSING
    return len(apply_sharding(copy, num_workers, worker, group))


def warn_of_repeats(division: Division) -> None:
    """Warn of branches of which every worker would yield all items."""
    for branch in division.branches:
        if not branch.is_sharded:
            warnings.warn(
                f"nothing shards the graph above {stage_name(branch.end)}: every item will come"
                " once from each worker. Put .sharding_filter() where items are to be divided"
                " (after shuffle), or give the loader a ShardingPolicy adapter",
                stacklevel=2,
            )
