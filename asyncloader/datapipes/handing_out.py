"""What a pass that runs ahead has handed out.

This file is about the positions of a source's items: which were read, and for which of
them the result was handed out. In the source's order two numbers say it (``InOrder``);
otherwise it takes a list of those that are still held (``AsTheyCome``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from asyncloader.datapipes.cursors import Cursor, Cursors, cursor_of, put_cursor, resume
from asyncloader.datapipes.journal import Journal

#: The position of an item that was read again, and whose result was handed out before.
BEFORE = -1


class InOrder:
    """Results are handed out in the order of their items."""

    def __init__(self) -> None:
        self.read = 0
        self.done = 0
        #: None is known to come before those before it.
        self.turns: deque[int] = deque()

    def begin(self) -> int:
        """Note that an item was read; return its position."""
        position = self.read
        self.read += 1
        return position

    def finish(self, position: int, yielded: int, errors: int) -> None:
        """Note that the result of the item at a position was handed out, or left out."""
        self.done += 1

    def oldest(self) -> int:
        """Return the first position whose result was not handed out."""
        return self.done

    def cursor(self) -> Cursor:
        """Return where this stands, as plain data."""
        return {"taken": self.done}

    def go_on(self, cursor: Cursor, yielded: int) -> tuple[int, int]:
        """Be where ``cursor`` says; return how many were yielded and were errors there."""
        self.read = self.done = cursor["taken"]
        return cursor["yielded"], cursor["errors"]


class AsTheyCome:
    """Results are handed out as they are ready.

    A cursor says what was read and what of it is held. To it belongs, too, all that is
    handed out later, because the order of it cannot be had again: a position, how many had
    been yielded then, and how many were errors. Going on, what is wanted of that again is
    handed out in that order.
    """

    def __init__(self) -> None:
        self.read = 0
        self.held: set[int] = set()
        #: Which of the items before this position are wanted again.
        self._known = 0
        self._again: set[int] = set()
        self._journal = Journal()
        #: The positions that are handed out first, in this order.
        self.turns: deque[int] = deque()

    def begin(self) -> int:
        """Note that an item was read; return its position, or BEFORE if it is done already."""
        position = self.read
        self.read += 1
        if position < self._known and position not in self._again:
            return BEFORE
        self.held.add(position)
        return position

    def finish(self, position: int, yielded: int, errors: int) -> None:
        """Note that the result of the item at a position was handed out, or left out."""
        self.held.discard(position)
        self._again.discard(position)
        self._journal.add([position, yielded, errors])

    def oldest(self) -> int:
        """Return the first position whose result was not handed out."""
        return min(self._again | self.held, default=max(self.read, self._known))

    @staticmethod
    def first_cursor() -> Cursor:
        """Return where a pass stands before its first item."""
        return {"yielded": 0, "errors": 0, "taken": 0, "held": [], "later": []}

    def cursor(self) -> Cursor:
        """Return where this stands, and all that is handed out later."""
        return {
            "taken": max(self.read, self._known),
            "held": sorted(self._again | self.held),
            "later": self._journal.since_now(),
        }

    def go_on(self, cursor: Cursor, yielded: int) -> tuple[int, int]:
        """Be where ``cursor`` and the later say there were so many yielded.

        Return how many were yielded and were errors there. The cursor has, from then on, what
        is handed out later there.
        """
        later = list(cursor["later"])
        counts = [cursor["yielded"], cursor["errors"]]
        seen = [entry for entry in later if entry[1] <= yielded]
        self.turns = deque(position for position, *_ in later[len(seen) :])
        cursor["later"] = self._journal.since_now(seen)
        done = {position for position, *_ in seen}
        ends = (position + 1 for position in (*done, *self.turns))
        self._known = max([cursor["taken"], *ends])
        fresh = range(cursor["taken"], self._known)
        self._again = {*cursor["held"], *fresh} - done
        self.read = self.oldest()
        if seen:
            counts = seen[-1][1:]
        return counts[0], counts[1]


def positions_for(ordered: bool) -> InOrder | AsTheyCome:
    """Return what keeps the positions of one pass."""
    return InOrder() if ordered else AsTheyCome()


def note_orders(pipes: Iterable[Any], cursors: Cursors) -> None:
    """Have all that hand out as they come note the order of it from the beginning.

    To be called with a graph's pipes before a pass that goes on from ``cursors``, to which
    those of the beginning are added.
    """
    pipes = list(pipes)
    unordered = [pipe for pipe in pipes if is_without_order(pipe)]
    for pipe in unordered:
        if cursor_of(pipe, cursors) is None:
            put_cursor(pipe, pipe.first_cursor(), cursors)
    for pipe in pipes if unordered else ():
        resume(pipe, 0, cursors)


def is_without_order(pipe: Any) -> bool:
    """Whether a pipe hands its items out as they come, another time in another order."""
    return hasattr(pipe, "has_no_order") and pipe.has_no_order()
