"""What workers run of a graph.

This file is about ``divide``: it takes the parts that can be copied to workers out of a graph, and
puts their items where those parts were.

    source ─ shuffle ─ sharding_filter ─ map ┆ pin_memory
    each worker runs a copy                  ┆ the loader runs the rest
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.randomness import Shuffling
from asyncloader.datapipes.recording import Numbering
from asyncloader.datapipes.replaying import is_replayed
from asyncloader.datapipes.running.cursors import number_of, take_number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import may_drop
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.graph.cut import Cut, WorkerPart, cut_graph, dividers_of, read_again
from asyncloader.graph.edit import copy_graph, replaced
from asyncloader.graph.recorded import as_recorded, keeping_in, recorded_behind, recorded_in_worker
from asyncloader.graph.refusals import Purpose, first_refusal
from asyncloader.graph.settings import SharedPipes
from asyncloader.graph.walk import Graph, breadth_first, pipes_of
from asyncloader.services.from_workers import FedFromWorkers, FromWorkers, Outlet
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.dispatch_source import FromDispatcher, FromLoader
from asyncloader.workers.dispatcher import DispatchPlan
from asyncloader.workers.pool import DealPlan
from asyncloader.workers.process.process import WorkerEngine
from asyncloader.workers.worker import WorkerPlan, shard_for_worker


@dataclass(frozen=True)
class Division:
    """The loader's part of a graph, and the parts that workers run."""

    #: What the loader iterates.
    root: Any
    #: The parts that workers run, as they were cut out of the graph.
    parts: tuple[WorkerPart, ...]
    #: The last pipe of each part.
    ends: tuple[Any, ...]
    #: What takes the place of each part in the loader's graph.
    outlets: tuple[Outlet, ...]
    seed_places: tuple[tuple[int, ...], ...]
    shared: SharedPipes
    #: The last pipe of what the dispatching process runs, if there is one.
    dispatch: Any | None
    #: The names of pipes in the parts that may drop items.
    droppers: tuple[str, ...]
    #: The shuffling pipes, by their ids, that each worker reads once in an epoch.
    read_once: frozenset[int]

    def forget_lengths(self) -> None:
        """Note that the workers may yield another number of items than these pipes."""
        for outlet in self.outlets:
            if isinstance(outlet, FromWorkers):
                outlet.is_changed = True

    def dispatch_plan(self, backlog_bytes: int) -> DispatchPlan | None:
        """Return what the dispatching process is told to run, or None if there is none."""
        if self.dispatch is None:
            return None
        places = self.shared.places_in(self.dispatch)
        return DispatchPlan(self.dispatch, places, backlog_bytes, self.droppers)

    def deal_plan(self, engine: WorkerEngine, plan: DispatchPlan | None) -> DealPlan | None:
        """Return what the dispatching process is sent, and for which stream."""
        if plan is None:
            return None
        dealt = [any(inlet is self.dispatch for inlet in part.inlets) for part in self.parts]
        number = number_of(self.dispatch)
        return DealPlan(engine.pack(plan), -1 if number is None else number, dealt.index(True))

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        return WorkerPlan(self.ends, self.seed_places, init_fn)

    @property
    def fed(self) -> int | None:
        """The index of the part whose source lives in the loader's process, if there is one."""
        fed = (at for at, outlet in enumerate(self.outlets) if isinstance(outlet, FedFromWorkers))
        return next(fed, None)

    def connect(self, streams: Sequence[Any], seeds: dict[int | None, int]) -> None:
        """Let the outlets yield an epoch's items.

        ``seeds`` are those that all workers shuffle with, by the pipes' numbers, as far as they
        are known.
        """
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.begin_epoch(stream, seeds)

    def seeds_of_shufflers(self, shared_seeds: Sequence[int]) -> dict[int | None, int]:
        """Return the seeds of the shuffling pipes that workers read once, by their numbers."""
        seeds = zip(self.shared.pipes, shared_seeds, strict=True)
        return {number_of(pipe): seed for pipe, seed in seeds if id(pipe) in self.read_once}


def divide(
    graph: Graph, num_workers: int, *, in_order: bool = True, restarts: bool = False
) -> Division:
    """Take the parts for workers out of the graph, whose pipes are changed in place.

    Where items are to be taken as they are ready, or workers may be replaced that yield them so, it
    is recorded what becomes of each.
    """
    as_ready = not in_order and first_refusal(graph, Purpose.STATE_AS_READY) is None
    shared = SharedPipes(graph)
    cut = cut_graph(graph)
    if num_workers > 1:
        _note_dividers(cut)
    dispatch = cut.dispatch if cut.is_dealt else None
    root, outlets, ends = graph.end, [], []
    droppers: tuple[str, ...] = ()
    for part in cut.parts:
        droppers += tuple(stage_name(pipe) for pipe in part.pipes if may_drop(pipe))
        is_fed = cut.feed is not None and any(inlet is cut.feed for inlet in part.inlets)
        outlet: Any = FedFromWorkers(part.end, cut.feed) if is_fed else FromWorkers(part.end)
        root = replaced(root, part.end, outlet)
        end = part.end
        for inlet in part.inlets:
            stand_in = FromLoader() if inlet is cut.feed else FromDispatcher()
            unknown = (stage_name(pipe) for pipe in part.pipes if is_replayed(pipe))
            stand_in.readers = " or ".join(unknown)
            take_number_of(stand_in, inlet)
            end = replaced(end, inlet, stand_in)
        if not is_fed:
            is_recorded = any(isinstance(pipe, Numbering) for pipe in graph.pipes)
            # Only so that another worker knows what was sent.
            is_for_restart = restarts and not (is_recorded or as_ready)
            end, tells = recorded_in_worker(as_recorded(end) if is_for_restart else end)
            if (keeping := keeping_in(end)) is not None:
                outlet.keeper, outlet.keeps_inside = number_of(keeping), True
            outlet.is_counted = as_ready and not tells
            outlet.is_numbered = as_ready or tells
            outlet.settles = is_for_restart and outlet.is_numbered
            outlet.length = _dealt_length(end, dispatch, num_workers)
        outlets.append(outlet)
        ends.append(end)
    for outlet in outlets:
        if isinstance(outlet, FromWorkers) and outlet.is_numbered and not outlet.settles:
            root = recorded_behind(root, outlet)
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
        read_once=frozenset(id(pipe) for end in ends for pipe in _read_once(end)),
    )


def _read_once(end: Any) -> Iterator[Any]:
    # One that is switched off is given a seed as well, and draws nothing from it.
    shuffling = (
        pipe for pipe in breadth_first(end) if isinstance(pipe, Shuffling) and pipe.shuffles
    )
    return (pipe for pipe in shuffling if read_again(end, pipe) is None)


def _note_dividers(cut: Cut) -> None:
    """Let iterables know what divides their items, in case they do so too without saying it.

    That is found out when they call ``get_worker_info``.
    """
    for part in cut.parts:
        for divider in dividers_of(part, cut.dispatch):
            for source in pipes_of(divider):
                if isinstance(source, IterableWrapper):
                    source.divided_by = stage_name(divider)


def _dealt_length(end: Any, dispatch: Any, num_workers: int) -> int | None:
    try:
        dealt = 0 if dispatch is None else len(dispatch)
        infos = (WorkerInfo(num_workers, worker) for worker in range(num_workers))
        return sum(_dealt_length_in(end, dealt, info) for info in infos)
    except TypeError:
        return None


def _dealt_length_in(end: Any, dealt: int, info: WorkerInfo) -> int:
    copy = copy_graph(end)
    for pipe in breadth_first(copy):
        if isinstance(pipe, FromDispatcher):
            pipe.length = len(range(info.worker_id, dealt, info.num_workers))
    shard_for_worker(copy, info)
    return len(copy)


def warn_of_repeats(division: Division) -> None:
    """Warn of parts that nothing shards, so that every worker yields all items."""
    for part in division.parts:
        if not part.is_sharded:
            warnings.warn(
                f"nothing shards the graph above {stage_name(part.end)}: every item will come"
                " once from each worker. Put .sharding_filter() where items are to be divided"
                " (after shuffle), or give the loader a ShardingPolicy adapter. If your iterable"
                " uses get_worker_info() to take its share, say so:"
                " IterableWrapper(..., shards_itself=True)",
                stacklevel=2,
            )
