"""A graph divided between the loader and its workers.

This file is about ``divide``: each part that workers run is taken out of the
graph, and a ``FromWorkers`` takes its place there.
"""

from __future__ import annotations

import warnings
from collections.abc import (
    Callable,
    Sequence,
)
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.going_on.cursors import (
    number_of,
    take_number_of,
)
from asyncloader.datapipes.items.sources import IterableWrapper, twice
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.patterns.replaying import is_replayed
from asyncloader.datapipes.pipe.kinds import functional_name
from asyncloader.graph.copying import copy_graph
from asyncloader.graph.cut import Cut, WorkerPart, cut_graph, divided_twice, dividers_of
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.seeding import SeedPlaces, SharedPipes
from asyncloader.graph.walk import DataPipeGraph, breadth_first, pipes_of, traverse_dps
from asyncloader.services.fed import FedFromWorkers
from asyncloader.services.from_workers import FromWorkers
from asyncloader.transport.code import pack_code
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.dispatch_source import FromDispatcher, FromLoader
from asyncloader.workers.dispatcher import DispatchPlan
from asyncloader.workers.pool import DealPlan
from asyncloader.workers.worker import WorkerPlan, shard_for_worker


@dataclass(frozen=True)
class Division:
    """The loader's part of a graph, and the parts that workers run."""

    #: What the loader iterates.
    root: Any
    #: What workers run.
    parts: tuple[WorkerPart, ...]
    #: The last pipes of what workers run, one for each part.
    ends: tuple[Any, ...]
    #: Where the workers' items enter the loader's part, one for each part.
    outlets: tuple[FromWorkers | FedFromWorkers, ...]
    seed_places: tuple[SeedPlaces, ...]
    shared: SharedPipes
    #: The last pipe of what the dispatching process runs, if there is one.
    dispatch: Any | None
    droppers: tuple[str, ...]

    def forget_lengths(self) -> None:
        """Take note that the workers may yield another number of items than these pipes."""
        for outlet in self.outlets:
            if isinstance(outlet, FromWorkers):
                outlet.is_changed = True

    def deal_plan(self, backlog_bytes: int) -> DealPlan | None:
        """Return what the dispatching process is told, if there is to be one."""
        if self.dispatch is None:
            return None
        places = self.shared.places_in(self.dispatch)
        plan = DispatchPlan(self.dispatch, places, backlog_bytes, self.droppers)
        dealt = [self.dispatch in part.inlets for part in self.parts]
        number = number_of(self.dispatch)
        return DealPlan(pack_code(plan), -1 if number is None else number, dealt.index(True))

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        return WorkerPlan(self.ends, self.seed_places, init_fn)

    @property
    def fed(self) -> int | None:
        """The number of the part whose source lives with the loader, if there is one."""
        fed = (at for at, outlet in enumerate(self.outlets) if isinstance(outlet, FedFromWorkers))
        return next(fed, None)

    def connect(self, streams: Sequence[Any], *, may_be_changed: bool) -> None:
        """Let the outlets yield an epoch's items, of these pipes or what was made of them."""
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.begin_epoch(stream, may_be_changed=may_be_changed)


def divide(datapipe: Any, num_workers: int) -> Division:
    """Take the parts for workers out of the graph, which is changed."""
    shared = SharedPipes(datapipe)
    cut = cut_graph(datapipe)
    if num_workers > 1:
        _check_divided_once(cut)
    is_read = any(cut.dispatch in part.inlets for part in cut.parts)
    dispatch = cut.dispatch if is_read else None
    root, outlets, ends = datapipe, [], []
    droppers: tuple[str, ...] = ()
    for part in cut.parts:
        droppers += tuple(stage_name(pipe) for pipe in part.pipes if _may_drop(pipe))
        is_fed = cut.feed is not None and any(inlet is cut.feed for inlet in part.inlets)
        outlet: Any = FedFromWorkers(part.end, cut.feed) if is_fed else FromWorkers(part.end)
        root = _end_of(replace_dp(traverse_dps(root), part.end, outlet))
        end = part.end
        for inlet in part.inlets:
            stand_in = FromLoader() if inlet is cut.feed else FromDispatcher()
            unknown = (stage_name(pipe) for pipe in part.pipes if is_replayed(pipe))
            stand_in.readers = " or ".join(unknown)
            end = _with_inlet(end, inlet, stand_in)
        if not is_fed:
            outlet.length = _length(end, dispatch, num_workers)
        outlets.append(outlet)
        ends.append(end)
    readers = [stage_name(pipe) for pipe in breadth_first(root) if is_replayed(pipe)]
    for outlet in outlets:
        outlet.readers = " or ".join(readers)
    return Division(
        root=root,
        parts=cut.parts,
        outlets=tuple(outlets),
        ends=tuple(ends),
        seed_places=tuple(shared.places_in(end) for end in ends),
        shared=shared,
        dispatch=dispatch,
        droppers=droppers if dispatch is not None else (),
    )


def _check_divided_once(cut: Cut) -> None:
    """Raise ValueError where workers would divide what they have divided already.

    Of an iterable that has not said so, it is seen when it asks for the worker.
    """
    found = divided_twice(cut)
    if found is not None:
        pipe, divider = found
        raise ValueError(twice(pipe, stage_name(divider)))
    for part in cut.parts:
        for divider in dividers_of(part, cut.dispatch):
            for source in pipes_of(divider):
                if isinstance(source, IterableWrapper):
                    source.divided_by = stage_name(divider)


def _with_inlet(end: Any, pipe: Any, inlet: FromDispatcher) -> Any:
    """Let what read a pipe that runs elsewhere read what is dealt; return the part's end."""
    take_number_of(inlet, pipe)
    return _end_of(replace_dp(traverse_dps(end), pipe, inlet))


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
    """Warn of parts of which every worker would yield all items."""
    for part in division.parts:
        if not part.is_sharded:
            warnings.warn(
                f"nothing shards the graph above {stage_name(part.end)}: every item will come"
                " once from each worker. Put .sharding_filter() where items are to be divided"
                " (after shuffle), or give the loader a ShardingPolicy adapter. If your iterable"
                " takes its share by get_worker_info() itself, say so:"
                " IterableWrapper(..., shards_itself=True)",
                stacklevel=2,
            )
