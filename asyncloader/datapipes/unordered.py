"""Items that are yielded as they are ready, in another order each time.

This file is about exactness where there is no order. To a cursor belongs all that is yielded
after it, over the ends of passes: a ``Journal`` notes it, a ``Course`` is the journal of one
pipe, ``AsTheyCome`` knows which items a pass holds, and a ``Teller`` says it piece by piece to
another process. Whoever resumes from the cursor yields in that order again what is wanted
again. In the source's order two numbers say it all (``InOrder``).
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from asyncloader.datapipes.cursor_forms import (
    COUNT,
    MOST,
    SIEVE,
    Form,
    FormOf,
    anything,
    ascending,
    at_most,
    counts,
    fields,
    just,
    list_of,
    no_cursor,
    row,
    truth,
    whole,
)
from asyncloader.datapipes.cursors import Cursor, Cursors, number_of
from asyncloader.datapipes.naming import stage_name
from asyncloader.errors import SnapshotError

#: Of so many entries those are forgotten that nobody goes back to.
_MANY = 1024


class Journal:
    """Entries in their order. One thread writes, any thread reads."""

    def __init__(self) -> None:
        # How many entries were forgotten, and those that follow them.
        self._kept: tuple[int, list[Any]] = (0, [])
        self._held: list[weakref.ref[Since]] = []
        self._most = _MANY

    def begin_at(self, count: int) -> None:
        """Count the entries from here on as those after the first ``count``; before all others."""
        self._kept = (count, [])

    def add(self, entry: Any) -> None:
        """Write an entry, if anybody goes back so far."""
        if self._held:
            entries = self._kept[1]
            entries.append(entry)
            if len(entries) > self._most:
                self._forget()

    def since_now(self, before: Iterable[Any] = ()) -> Since:
        """Return ``before`` and what will have happened since now."""
        self._forget()
        forgotten, entries = self._kept
        since = Since(self, forgotten + len(entries), [*before])
        self._held.append(weakref.ref(since))
        return since

    def entries_from(self, start: int) -> list[Any]:
        """Return the entries after the first ``start`` of the journal."""
        forgotten, entries = self._kept
        return entries[start - forgotten :]

    def _forget(self) -> None:
        held = [(since.start, reference) for reference in self._held if (since := reference())]
        self._held = [reference for _, reference in held]
        forgotten, entries = self._kept
        oldest = min((start for start, _ in held), default=forgotten + len(entries))
        # Another thread may be reading: it sees either pair whole.
        self._kept = (oldest, entries[oldest - forgotten :])
        self._most = max(_MANY, 2 * len(self._kept[1]))


class Since:
    """Some entries, and those of a journal since a moment; made a list when it is copied."""

    def __init__(self, journal: Journal, start: int, before: list[Any]) -> None:
        self.start = start
        self._before = before
        self._journal = journal

    @property
    def first(self) -> int:
        """How many entries there were before all of these."""
        return self.start - len(self._before)

    def told(self) -> tuple[int, list[Any]]:
        """Return ``first`` and the entries so far, and be those that follow them."""
        first, entries = self.first, list(self)
        self._before, self.start = [], first + len(entries)
        return first, entries

    def __iter__(self) -> Iterator[Any]:
        return chain(self._before, self._journal.entries_from(self.start))

    def __reduce__(self) -> Any:
        return list, (list(self),)


def settled(value: Any) -> Any:
    """Return plain data in which each Since has become the list of its entries so far."""
    if isinstance(value, Since):
        return list(value)
    if isinstance(value, dict):
        return {key: settled(element) for key, element in value.items()}
    if isinstance(value, list):
        return [settled(element) for element in value]
    return value


#: A position, and how many had been yielded and how many were errors once it was handed out.
Entry = list[int]

# Stands between the entries of two passes.
_NEXT_PASS: Entry = []


class Course:
    """What one pipe hands out as it is ready, in this epoch."""

    def __init__(self) -> None:
        self._journal = Journal()
        # What passes to come are to hand out first, where that was noted.
        self._known: deque[list[Entry]] = deque()

    def count_as(self, cursor: Cursor) -> None:
        """Count what will be noted as it was where a cursor was taken; before all passes."""
        # The beginning of a pass that is gone on with is noted once more.
        self._journal.begin_at(cursor["at"] - int(cursor["begun"]))

    def begin(self) -> list[Entry]:
        """Begin a pass; return what is handed out first in it, which need not be added."""
        # Who has noted that this pass is to come finds it begin here.
        self._journal.add(_NEXT_PASS)
        return self._added(self._expected())

    def go_on(self, cursor: Cursor) -> list[Entry]:
        """Go on with a pass, or begin one; return what its cursor says of it, as ``begin``.

        The cursor has, from then on, what is handed out later.
        """
        if cursor["begun"]:
            entries, *following = _by_pass(cursor["later"])
            self._known = deque(following)
        else:
            self.expect(cursor)
            entries = self._expected()
        self._journal.add(_NEXT_PASS)
        later = self._journal.since_now()
        cursor |= {"begun": True, "later": later, "at": later.first}
        return self._added(entries)

    def _expected(self) -> list[Entry]:
        return self._known.popleft() if self._known else []

    def _added(self, entries: list[Entry]) -> list[Entry]:
        for entry in entries:
            self._journal.add(entry)
        return entries

    def expect(self, cursor: Cursor) -> None:
        """Have the passes to come hand out first what the cursor of the next one says."""
        following = _by_pass(cursor["later"])[1:]
        if following:
            self._known = deque(following)

    def add(self, entry: Entry) -> None:
        """Note what was handed out."""
        self._journal.add(entry)

    def since_now(self, before: Iterable[Entry] = ()) -> Since:
        """Return ``before`` and what will be handed out from now on."""
        return self._journal.since_now(before)


def _by_pass(entries: Iterable[Entry]) -> list[list[Entry]]:
    passes: list[list[Entry]] = [[]]
    for entry in entries:
        if entry == _NEXT_PASS:
            passes.append([])
        else:
            passes[-1].append(entry)
    return passes


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
                f"the state says that item {self._known - 1} was yielded when only {taken} had been"
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


#: A pipe's number, how many entries its course had before these, and these. Of a pipe that has
#: no number there is its name instead.
Piece = list[Any]


def piece(value: Any, where: str, form_of: FormOf) -> None:
    """The form of a piece."""
    has_name = type(value) is list and len(value) > 0 and value[0] is None
    of_name, of_pipe = (just(None), COUNT, row(anything)), (COUNT, FIRST_ENTRY, entries_form)
    row(*(of_name if has_name else of_pipe))(value, where, form_of)
    if not has_name:
        # What is told of a pipe is added to its cursor.
        form_of(value[0])(cursor_to_begin_with([], 0), where, form_of)


class Teller:
    """Tells what pipes without order hand out from now on."""

    def __init__(self, pipes: Iterable[Any], course_of: Callable[[Any], Course]) -> None:
        pipes = list(pipes)
        numbered = [pipe for pipe in pipes if number_of(pipe) is not None]
        self._since = [(number_of(pipe), course_of(pipe).since_now()) for pipe in numbered]
        self._unnumbered = [
            [None, 0, [stage_name(pipe)]] for pipe in pipes if number_of(pipe) is None
        ]

    def pieces(self) -> list[Piece]:
        """Return what was handed out since the last call, by any thread."""
        told = ([number, *since.told()] for number, since in self._since)
        return [*self._unnumbered, *(piece for piece in told if piece[-1])]


def unnumbered_in(pieces: Iterable[Piece]) -> str:
    """Return the name of a pipe of which nothing can be told, or nothing."""
    return next((entries[0] for number, _, entries in pieces if number is None), "")


def followed(cursors: Cursors, pieces: Iterable[Piece]) -> Cursors:
    """Return cursors to which that belongs, too, which was told later.

    What they have already, of what was told, is left out.
    """
    found = copy.deepcopy(cursors)
    for number, start, entries in pieces:
        if number is None:
            continue
        # The beginning of a stream has no cursors.
        for cursor in list(_at(number, found)) or [_begun(number, found)]:
            if "later" not in cursor:
                raise SnapshotError(
                    f"the state lists what pipe {number} yielded out of order, but that pipe"
                    " yields in order"
                )
            known = cursor["at"] + len(cursor["later"]) - start
            cursor["later"] += entries[max(known, 0) :]
    return found


def _at(number: int, cursors: Cursors) -> Iterator[Cursor]:
    """Yield the cursors of a pipe, also those that other cursors hold."""
    for own, cursor in cursors.items():
        if own == number:
            yield cursor
        yield from _at(number, dict(cursor.get("above", ())))


def _begun(number: int, cursors: Cursors) -> Cursor:
    cursors[number] = cursor = cursor_to_begin_with([], 0)
    return cursor
