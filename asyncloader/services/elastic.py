"""A graph's place under another number of workers.

This file is about ``refit``: cursors that were taken under some number of workers, made
those that another number of workers, or none, goes on from. That can be done where the
order does not depend on the number: where each item behind the division is made of one
item before it.

    source ─ shuffle ─ sharding_filter ─ map ─ map      the same order for 0, 1, 2 … workers
    source ─ shuffle ─ sharding_filter ─ batch          each number has batches of its own
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asyncloader.datapipes.branches.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, number_of
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.kinds import functional_name, is_dispatch
from asyncloader.errors import SnapshotError
from asyncloader.graph.cut import WorkerPart, cut_graph
from asyncloader.graph.settings import acts_for
from asyncloader.graph.walk import Wiring, breadth_first
from asyncloader.workers.dispatch_source import FromDispatcher
from asyncloader.workers.graph_part import keeps_positions
from asyncloader.workers.messages import DealStart, Mark
from asyncloader.workers.place import StreamPlace, WorkerStart, place_of_cursor

#: The cursor of a part that goes on by its position alone, in however many workers.
SPREAD = "spread"


def refit(datapipe: Any, cursors: Cursors, *, taken_with: int, run_with: int) -> Cursors:
    """Return the cursors for ``run_with`` workers; SnapshotError, naming the pipe in the way.

    ``datapipe`` is the graph before it was divided.
    """
    if taken_with == run_with:
        return cursors
    fitted = dict(cursors)
    clash = (
        f"the state was taken with {_workers(taken_with)} and cannot go on with"
        f" {_workers(run_with)}"
    )
    for part in cut_graph(datapipe).parts:
        division = _division_of(part.end, clash)
        above = {number_of(pipe) for pipe in breadth_first(division)} - {number_of(division)}
        own = fitted.pop(_number(part.end), None)
        found = {number: fitted.pop(number) for number in list(fitted) if number in above}
        if own is not None and not own.get("in_order", True):
            raise SnapshotError(
                f"the state was taken with {_workers(taken_with)} and in_order=False, so that it"
                f" cannot go on with {_workers(run_with)}: use as many workers as before"
            )
        if own is not None and "workers" in own:
            found = _least_advanced(own, above)
        elif own is not None and SPREAD in own:
            found = dict(own[SPREAD])
        for pipe in part.pipes:
            fitted.pop(_number(pipe), None)
        if run_with:
            deals = _number(division) if is_dispatch(division) else None
            fitted[_number(part.end)] = {SPREAD: list(map(list, found.items())), "deals": deals}
        else:
            fitted |= found
    return fitted


def check_division(parts: Iterable[WorkerPart], taken_with: int) -> None:
    """Raise SnapshotError, naming the pipe in the way, if a place cannot be divided anew.

    ``parts`` are what workers run, as the services made it; they may be divided already.
    """
    clash = f"the state was taken with {_workers(taken_with)}, and no other number can go on"
    for part in parts:
        _division_of(part.end, clash)


def spread_place(cursor: Cursor, position: int, workers: int) -> StreamPlace:
    """Return where each of the workers goes on after so many items of all of them together."""
    above: Cursors = dict(cursor[SPREAD])
    deals = cursor["deals"]
    taken = [len(range(worker, position, workers)) for worker in range(workers)]
    turns = tuple((position + turn) % workers for turn in range(workers))
    if deals is None:
        starts = tuple(WorkerStart(Mark(count, above), 0) for count in taken)
        return StreamPlace(starts, turns)
    marks = (Mark(count, {deals: {"taken": count}}) for count in taken)
    starts = tuple(WorkerStart(mark, 0) for mark in marks)
    return StreamPlace(starts, turns, DealStart(Mark(position, above), tuple(taken)))


def _division_of(end: Any, clash: str) -> Any:
    """Return the pipe that divides a part's items, if only one-to-one pipes follow it."""
    wiring, pipe = Wiring(end), end
    is_dealt = any(map(_deals, breadth_first(end)))
    # What is dealt is divided already: a filter behind it divides among ranks alone.
    while not (_deals(pipe) if is_dealt else divides(pipe)):
        sources = wiring.sources(pipe)
        if len(sources) != 1 or not keeps_positions(pipe):
            raise SnapshotError(
                f"{clash}: {_named(pipe)} comes out otherwise for another number of workers."
                " Put it in the loader's process (for a batch: across_workers=True), or before the"
                " pipe that divides the items, or use as many workers as before"
            )
        pipe = sources[0]
    return pipe


def _deals(pipe: Any) -> bool:
    """Whether items are dealt by a pipe, or come from one that was cut off here."""
    return is_dispatch(pipe) or isinstance(pipe, FromDispatcher)


def _named(pipe: Any) -> str:
    is_ours = number_of(pipe) is not None
    return stage_name(pipe) if is_ours else f"{stage_name(pipe)}, which a reading service added,"


def divides(pipe: Any) -> bool:
    """Whether a pipe divides items among workers."""
    return is_dispatch(pipe) or (
        takes_turns(pipe) and acts_for(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)
    )


def takes_turns(pipe: Any) -> bool:
    """Whether a pipe gives every n-th item to the same one; a user's own may do otherwise."""
    return functional_name(pipe) == "sharding_filter"


def _least_advanced(own: Cursor, above: set[int | None]) -> Cursors:
    """Return where the worker that was furthest behind stood before the division."""
    place = place_of_cursor(own)
    if place.deal is not None:
        return place.deal.mark.cursors
    count = len(place.starts)
    marks = [start.mark for start in place.starts]
    behind = min(enumerate(marks), key=lambda pair: pair[1].position * count + pair[0])[1]
    return {number: cursor for number, cursor in behind.cursors.items() if number in above}


def _number(pipe: Any) -> int:
    number = number_of(pipe)
    return -1 if number is None else number


def _workers(count: int) -> str:
    return "no workers" if count == 0 else f"{count} worker{'s' if count > 1 else ''}"
