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
from asyncloader.errors import LoaderError
from asyncloader.graph.copying import copy_graph
from asyncloader.graph.cut import Branch, cut_graph
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.kinds import functional_name
from asyncloader.graph.seeding import SeedPlaces, SharedPipes
from asyncloader.graph.walk import DataPipeGraph, breadth_first, traverse_dps
from asyncloader.runtime import WorkerInfo
from asyncloader.workers.dispatch import DispatchPlan
from asyncloader.workers.main import WorkerPlan, shard_for_worker
from asyncloader.workers.supply import FromDispatcher
from asyncloader.workers.worker_stream import WorkerStream


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
    #: The last pipes of what workers run, one for each branch.
    ends: tuple[Any, ...]
    #: Where the workers' items enter the loader's part, one for each branch.
    outlets: tuple[FromWorkers, ...]
    seed_places: tuple[SeedPlaces, ...]
    shared: SharedPipes
    #: The last pipe of what the dispatching process runs, if there is one.
    dispatch: Any | None
    droppers: tuple[str, ...]

    def dispatch_plan(self, backlog_bytes: int) -> DispatchPlan | None:
        """Return what the dispatching process is told to run, if there is to be one."""
        if self.dispatch is None:
            return None
        places = self.shared.places_in(self.dispatch)
        return DispatchPlan(self.dispatch, places, backlog_bytes, self.droppers)

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        return WorkerPlan(self.ends, self.seed_places, init_fn)

    def connect(self, streams: Sequence[WorkerStream]) -> None:
        """Let the outlets yield an epoch's items."""
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.stream = stream


def divide(datapipe: Any, num_workers: int) -> Division:
    """Take the branches for workers out of the graph, which is changed."""
    shared = SharedPipes(datapipe)
    cut = cut_graph(datapipe)
    if cut.feed is not None:
        raise LoaderError(f"{stage_name(cut.feed)} cannot be read by worker processes yet")
    dispatch = cut.dispatch if any(branch.inlets for branch in cut.branches) else None
    root, outlets, ends = datapipe, [], []
    droppers: tuple[str, ...] = ()
    for branch in cut.branches:
        droppers += tuple(stage_name(pipe) for pipe in branch.pipes if _may_drop(pipe))
        outlet = FromWorkers(stage_name(branch.end), None)
        root = _end_of(replace_dp(traverse_dps(root), branch.end, outlet))
        end = branch.end if not branch.inlets else _with_inlet(branch.end, dispatch)
        outlet.length = _length(end, dispatch, num_workers)
        outlets.append(outlet)
        ends.append(end)
    return Division(
        root=root,
        branches=cut.branches,
        outlets=tuple(outlets),
        ends=tuple(ends),
        seed_places=tuple(shared.places_in(end) for end in ends),
        shared=shared,
        dispatch=dispatch,
        droppers=droppers if dispatch is not None else (),
    )


def _with_inlet(end: Any, dispatch: Any) -> Any:
    """Let what read the dispatching part read what is dealt instead; return the branch's end."""
    return _end_of(replace_dp(traverse_dps(end), dispatch, FromDispatcher()))


def _end_of(graph: DataPipeGraph) -> Any:
    return next(iter(graph.values()))[0]


def _may_drop(pipe: Any) -> bool:
    return functional_name(pipe) in {"filter", "flatmap", "demux", "header", "groupby"}


def _length(end: Any, dispatch: Any, num_workers: int) -> int | None:
    try:
        dealt = 0 if dispatch is None else len(dispatch)
        infos = (WorkerInfo(num_workers, worker) for worker in range(num_workers))
        return sum(_length_in(end, dealt, info) for info in infos)
    except TypeError:
        return None


def _length_in(end: Any, dealt: int, info: WorkerInfo) -> int:
    copy = copy_graph(end)
    for pipe in breadth_first(copy):
        if isinstance(pipe, FromDispatcher):
            pipe.length = len(range(info.worker_id, dealt, info.num_workers))
    shard_for_worker(copy, info)
    return len(copy)


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
