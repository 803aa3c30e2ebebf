"""What a pass that runs ahead has handed out.

This file is about the positions of a source's items: which were read, and for which of
them the result was handed out. In the source's order two numbers say it (``InOrder``);
otherwise it takes a list of those that are still held (``AsTheyCome``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from asyncloader.datapipes.going_on.course import Course, Entry
from asyncloader.datapipes.going_on.cursors import Cursor
from asyncloader.datapipes.going_on.forms import (
    COUNT,
    MOST,
    SIEVE,
    Form,
    FormOf,
    ascending,
    at_most,
    counts,
    fields,
    list_of,
    no_cursor,
    row,
    truth,
    whole,
)
from asyncloader.errors import SnapshotError

#: The position of an item that was read again, and whose result was handed out before.
BEFORE = -1


class InOrder:
    """Results are handed out in the order of their items."""

    def __init__(self) -> None:
        self.read = 0
        self.done = 0

    def turns(self) -> deque[int]:
        """Return the positions that are handed out before those before them: none."""
        return deque()

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

    def __init__(self, course: Course, most: int) -> None:
        self.read = 0
        # How many items a pass may have been ahead of what it had handed out.
        self._most = most
        self.held: set[int] = set()
        # Which of the items before this position are wanted again.
        self._known = 0
        self._again: set[int] = set()
        self._course = course
        self._goes_on = False
        # What is handed out first, in this order.
        self._first: deque[Entry] = deque()

    def turns(self) -> deque[int]:
        """Return the positions that are handed out first, in this order; the pass begins."""
        if not self._goes_on:
            self._expect(0, (), [], self._course.begin())
        return deque(position for position, *_ in self._first)

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
        if self._first and self._first[0][0] == position:
            self._first.popleft()
        else:
            self._course.add([position, yielded, errors])

    def oldest(self) -> int:
        """Return the first position whose result was not handed out."""
        return min(self._again | self.held, default=max(self.read, self._known))

    def cursor(self) -> Cursor:
        """Return where this stands, and all that is handed out later."""
        later = self._course.since_now(self._first)
        return {
            "begun": True,
            "taken": max(self.read, self._known),
            "held": sorted(self._again | self.held),
            "later": later,
            "at": later.first,
        }

    def go_on(self, cursor: Cursor, yielded: int) -> tuple[int, int]:
        """Be where ``cursor`` and the later say there were so many yielded.

        Return how many were yielded and were errors there.
        """
        self._goes_on = True
        later = self._course.go_on(cursor)
        seen = [entry for entry in later if entry[1] <= yielded]
        self._expect(cursor["taken"], cursor["held"], seen, later[len(seen) :])
        counts = seen[-1][1:] if seen else [cursor["yielded"], cursor["errors"]]
        return counts[0], counts[1]

    def _expect(
        self, taken: int, held: Iterable[int], seen: list[Entry], following: list[Entry]
    ) -> None:
        """Want what is held after so many were taken, but not what was seen since."""
        self._first = deque(following)
        done = {position for position, *_ in seen}
        ends = (position + 1 for position, *_ in (*seen, *following))
        self._known = max([taken, *ends])
        if self._known > taken + len(seen) + len(following) + self._most:
            raise SnapshotError(
                f"the state says that item {self._known - 1} was handed out when {taken} had been"
                f" read; a pass is at most {self._most} items ahead"
            )
        self._again = {*held, *range(taken, self._known)} - done
        self.read = self.oldest()


#: How many items a pass may hold, on a machine with however many processors.
_MOST_AHEAD = 100_000


def form_ahead(pipe: Any) -> Form:
    """Return the form of the cursors of a pipe whose passes run ahead."""
    if not pipe.ordered:
        return _as_they_came(_most_ahead(pipe))
    return no_cursor if pipe.tolerance.is_strict else SIEVE


#: How many entries there were before; fewer than none where more is to come than there was.
FIRST_ENTRY = whole(least=-MOST)


def _as_they_came(most: int) -> Form:
    """Return the form of the cursors of a pass that holds at most so many items."""

    own = {"begun": truth, "held": ascending(most=most), "later": entries_form, "at": FIRST_ENTRY}
    return fields(
        {**own, **counts("yielded", "errors", "taken")},
        ("what is held was read", lambda cursor: cursor["held"][-1:] < [cursor["taken"]]),
        at_most("yielded", "taken"),
        at_most("errors", "taken"),
    )


def entries_form(value: Any, where: str, form_of: FormOf) -> None:
    """What was handed out after one another, over the ends of passes."""
    list_of(_entry)(value, where, form_of)


def _entry(value: Any, where: str, form_of: FormOf) -> None:
    if type(value) is not list or value:
        row(COUNT, COUNT, COUNT)(value, where, form_of)


def first_cursor(course: Course) -> Cursor:
    """Return the cursor of a pass to come, with all that is handed out in it and later."""
    later = course.since_now()
    return cursor_to_begin_with(later, later.first)


def cursor_to_begin_with(later: Iterable[Entry], at: int) -> Cursor:
    """Return the cursor of a pass to come, given what follows the course's first ``at`` entries."""
    counts = {"yielded": 0, "errors": 0, "taken": 0}
    return {"begun": False, **counts, "held": [], "later": later, "at": at}


def positions_for(pipe: Any, course: Course) -> InOrder | AsTheyCome:
    """Return what keeps the positions of one pass of a pipe."""
    return InOrder() if pipe.ordered else AsTheyCome(course, _most_ahead(pipe))


def _most_ahead(pipe: Any) -> int:
    # On another machine, by which a thread map goes, it may have been more than it would be here.
    return max(_MOST_AHEAD, 4 * (pipe.concurrency or 0))
