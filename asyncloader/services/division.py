"""A graph divided between the loader and its workers.

This file is about ``divide``: each branch that workers run is taken out of the
graph, and a ``FromWorkers`` takes its place there.
"""

from __future__ import annotations

import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.cursors import (
    Cursor,
    Cursors,
    cursor_of,
    place_of,
    put_cursor,
    take_place_of,
)
from asyncloader.datapipes.journal import Journal
from asyncloader.datapipes.naming import stage_name
from asyncloader.errors import LoaderError
from asyncloader.graph.copying import copy_graph
from asyncloader.graph.cut import Branch, cut_graph
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.kinds import functional_name
from asyncloader.graph.seeding import SeedPlaces, SharedPipes
from asyncloader.graph.walk import DataPipeGraph, breadth_first, traverse_dps
from asyncloader.runtime import WorkerInfo
from asyncloader.services.elastic import SPREAD, spread_place
from asyncloader.services.fed import FedFromWorkers
from asyncloader.transport.code import pack_code
from asyncloader.workers.dispatch import DispatchPlan
from asyncloader.workers.from_loader import FromLoader
from asyncloader.workers.main import WorkerPlan, shard_for_worker
from asyncloader.workers.place import cursor_of_place, later_place, place_of_cursor
from asyncloader.workers.starting import DealPlan
from asyncloader.workers.supply import FromDispatcher
from asyncloader.workers.worker_stream import WorkerStream


class FromWorkers(IterDataPipe[Any]):
    """Yield the items of a branch that runs in workers; stands in the branch's place."""

    edges = ()

    is_stand_in = True

    def __init__(self, end: Any) -> None:
        self.branch = stage_name(end)
        self.length: int | None = None
        #: Whether the workers run pipes that may yield another number of items.
        self.is_changed = False
        self.stream: WorkerStream | None = None
        self._running: WorkerStream | None = None
        self._taken = 0
        self._unwanted = 0
        take_place_of(self, end)

    def __len__(self) -> int:
        if self.is_changed:
            raise TypeError(
                f"{self!r} has no length, as worker_init_fn returned pipes that may yield another"
                " number of items; put them into the graph instead, where they are counted"
            )
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    def is_made_elsewhere(self) -> bool:
        return True

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        stream = self._taken_stream()
        while items := await stream.take():
            unwanted = min(self._unwanted, len(items))
            self._unwanted -= unwanted
            self._taken += len(items)
            self._note_runs(stream)
            if unwanted < len(items):
                yield items[unwanted:] if unwanted else items
            # What was yielded is not kept alive here while more is waited for.
            del items

    def begin_epoch(self, stream: WorkerStream) -> None:
        """Yield the items of this stream when iterated next."""
        self.stream, self._running = stream, None
        self._taken = self._unwanted = 0
        self._is_in_order = stream.is_in_order
        self._runs = Journal()
        self._seen: list[int] = []

    def has_no_order(self) -> bool:
        """Whether the workers' items are taken as they come."""
        return self.stream is not None and not self.stream.is_in_order

    def first_cursor(self) -> Cursor:
        """Return the cursor of the beginning, which is to know what is taken after it."""
        assert self.stream is not None
        place = cursor_of_place(self.stream.place())
        return {"taken": 0, "in_order": self.stream.is_in_order, "runs": [], **place}

    def put_cursors(self, into: Cursors) -> None:
        if self._running is not None:
            place = cursor_of_place(self._running.place())
            cursor = {
                "taken": self._taken,
                "in_order": self._is_in_order,
                "runs": self._later_runs(),
                **place,
            }
            put_cursor(self, cursor, into)

    def aiter_from(self, position: int, cursors: Cursors) -> AsyncIterable[Any]:
        if self.stream is None:
            raise LoaderError(f"{self!r} is read once an epoch, by the loader of its workers")
        cursor = cursor_of(self, cursors)
        if cursor is None:
            self._unwanted = position
        elif SPREAD in cursor:
            self._taken = position
            self.stream.go_on(spread_place(cursor, position, self.stream.workers))
        else:
            self._go_on(self.stream, position, cursor)
        return self

    def _go_on(self, stream: WorkerStream, position: int, cursor: Cursor) -> None:
        place = place_of_cursor(cursor)
        runs = _first_of(cursor["runs"], position - cursor["taken"])
        more = [0] * len(place.starts)
        for worker, count in runs:
            more[worker] += count
        self._taken = cursor["taken"] + sum(more)
        self._unwanted = position - self._taken
        stream.go_on(later_place(place, more))
        # The cursor stays good for what follows, as long as that belongs to it.
        cursor["runs"] = self._later_runs(runs)

    def _later_runs(self, before: Iterable[list[int]] = ()) -> Any:
        """Return these runs and, where nothing else says it, all that will follow them."""
        return [*before] if self._is_in_order else self._runs.since_now(before)

    def _note_runs(self, stream: WorkerStream) -> None:
        if self._is_in_order:
            return
        seen, self._seen = self._seen, stream.positions()
        for worker, (before, now) in enumerate(zip(seen, self._seen, strict=True)):
            if now > before:
                self._runs.add([worker, now - before])

    def _taken_stream(self) -> WorkerStream:
        stream, self.stream = self.stream, None
        if stream is None:
            raise LoaderError(f"{self!r} is read once an epoch, by the loader of its workers")
        self._running, self._seen = stream, stream.positions()
        return stream

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for items in self.groups():
            for item in items:
                yield item

    def __repr__(self) -> str:
        return f"FromWorkers({self.branch})"


def _first_of(runs: Iterable[Sequence[int]], count: int) -> list[list[int]]:
    """Return the runs of the first ``count`` items."""
    found = []
    for worker, items in runs:
        if count > 0:
            found.append([worker, min(items, count)])
        count -= items
    return found


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
        dealt = [self.dispatch in branch.inlets for branch in self.branches]
        return DealPlan(pack_code(plan), place_of(self.dispatch) or 0, dealt.index(True))

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        return WorkerPlan(self.ends, self.seed_places, init_fn)

    @property
    def fed(self) -> int | None:
        """The number of the branch whose source lives with the loader, if there is one."""
        fed = (at for at, outlet in enumerate(self.outlets) if isinstance(outlet, FedFromWorkers))
        return next(fed, None)

    def connect(self, streams: Sequence[Any]) -> None:
        """Let the outlets yield an epoch's items."""
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.begin_epoch(stream)


def divide(datapipe: Any, num_workers: int) -> Division:
    """Take the branches for workers out of the graph, which is changed."""
    shared = SharedPipes(datapipe)
    cut = cut_graph(datapipe)
    is_read = any(cut.dispatch in branch.inlets for branch in cut.branches)
    dispatch = cut.dispatch if is_read else None
    root, outlets, ends = datapipe, [], []
    droppers: tuple[str, ...] = ()
    for branch in cut.branches:
        droppers += tuple(stage_name(pipe) for pipe in branch.pipes if _may_drop(pipe))
        is_fed = cut.feed is not None and any(inlet is cut.feed for inlet in branch.inlets)
        outlet: Any = FedFromWorkers(branch.end, cut.feed) if is_fed else FromWorkers(branch.end)
        root = _end_of(replace_dp(traverse_dps(root), branch.end, outlet))
        end = branch.end
        for inlet in branch.inlets:
            stand_in = FromLoader() if inlet is cut.feed else FromDispatcher()
            end = _with_inlet(end, inlet, stand_in)
        if not is_fed:
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


def _with_inlet(end: Any, pipe: Any, inlet: FromDispatcher) -> Any:
    """Let what read a pipe that runs elsewhere read what is dealt; return the branch's end."""
    take_place_of(inlet, pipe)
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
    """Warn of branches of which every worker would yield all items."""
    for branch in division.branches:
        if not branch.is_sharded:
            warnings.warn(
                f"nothing shards the graph above {stage_name(branch.end)}: every item will come"
                " once from each worker. Put .sharding_filter() where items are to be divided"
                " (after shuffle), or give the loader a ShardingPolicy adapter. If your iterable"
                " takes its share by get_worker_info() itself, say so:"
                " IterableWrapper(..., shards_itself=True)",
                stacklevel=2,
            )
