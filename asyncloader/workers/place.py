"""Where a stream of several workers stands.

This file is about ``StreamPlace``: where each worker is to go on, and whose turn it is;
and its form as a cursor, which is part of a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from asyncloader.datapipes.cursors import Cursor, Growing
from asyncloader.workers.inbox import Inbox
from asyncloader.workers.messages import DealStart, Mark


class WorkerStart(NamedTuple):
    """Where a worker goes on: from a mark, without the next so many items."""

    mark: Mark
    unwanted: int

    @property
    def position(self) -> int:
        """How many items of the worker's stream come before the first that it sends."""
        return self.mark.position + self.unwanted


@dataclass(frozen=True)
class StreamPlace:
    """Where a stream goes on in each worker, and whose turns are next.

    ``taken`` says whose items were taken from there on, where no rule says so.
    """

    starts: tuple[WorkerStart, ...]
    turns: tuple[int, ...]
    deal: DealStart | None = None
    taken: Growing | None = None


def place_at(position: int, workers: int, taken: Growing | None = None) -> StreamPlace:
    """Return where a stream stands after so many items that were taken in turn."""
    had = [len(range(worker, position, workers)) for worker in range(workers)]
    starts = tuple(WorkerStart(Mark(count, {}), 0) for count in had)
    first = position % workers
    turns = (*range(first, workers), *range(first))
    return StreamPlace(starts, turns, taken=taken)


def place_after_taken(
    inboxes: Sequence[Inbox],
    turns: Sequence[int],
    deal: DealStart | None,
    taken: Growing | None,
) -> StreamPlace:
    """Return where a stream goes on after what was taken from the inboxes."""
    starts = []
    for inbox in inboxes:
        mark = inbox.mark.read()
        starts.append(WorkerStart(mark, inbox.position - mark.position))
    return StreamPlace(tuple(starts), tuple(turns), deal, taken)


def start_after_arrived(inbox: Inbox) -> WorkerStart:
    """Return where another worker goes on after all that has arrived of a stream."""
    mark = inbox.latest_mark.read()
    return WorkerStart(mark, inbox.arrived - mark.position)


def cursor_of_place(place: StreamPlace) -> Cursor:
    """Return a place as a cursor."""
    cursor: Cursor = {
        "workers": [[_plain_mark(start.mark), start.unwanted] for start in place.starts],
        "turns": list(place.turns),
    }
    if place.deal is not None:
        cursor["deal"] = [_plain_mark(place.deal.mark), list(place.deal.dealt)]
    if place.taken is not None:
        cursor["taken_of"] = place.taken
    return cursor


def place_of_cursor(cursor: Cursor) -> StreamPlace:
    """Return the place that a cursor says, which is written on where it grows."""
    starts = tuple(WorkerStart(_mark(mark), unwanted) for mark, unwanted in cursor["workers"])
    deal = None
    if "deal" in cursor:
        mark, dealt = cursor["deal"]
        deal = DealStart(_mark(mark), tuple(dealt))
    taken = cursor.get("taken_of")
    if isinstance(taken, list):
        taken = cursor["taken_of"] = Growing(taken)
    return StreamPlace(starts, tuple(cursor["turns"]), deal, taken)


def _plain_mark(mark: Mark) -> list[Any]:
    cursors = [[place, cursor] for place, cursor in mark.cursors.items()]
    return [mark.position, cursors, mark.states]


def _mark(plain: list[Any]) -> Mark:
    position, cursors, states = plain
    return Mark(position, dict(cursors), states)
