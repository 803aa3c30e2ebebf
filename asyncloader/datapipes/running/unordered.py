"""Pipes that yield items as they become ready, in an order that differs from run to run.

This file is about resuming such pipes exactly. A cursor of theirs includes everything that is
yielded after it, in later passes too, so that a resumed pass can repeat that order:

    Journal     the entries, one for each item that was yielded
    YieldOrder  the journal of one pipe
    AsReady     which items a pass has read and not yielded yet

A pipe that keeps its source's order needs only a few counts (``InOrder``).
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from itertools import chain
from typing import Annotated, Any

from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    MOST,
    Count,
    FormOf,
    Of,
    Sieved,
    State,
    anything,
    ascending,
    at_most,
    just,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.running.cursors import Cursor, Cursors, number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.errors import SnapshotError

#: Entries that no cursor needs are dropped once there are this many.
_MANY = 1024


class Journal:
    """Entries in their order. One thread writes, any thread reads."""

    def __init__(self) -> None:
        # The number of dropped entries, and the entries after them.
        self._kept: tuple[int, list[Any]] = (0, [])
        self._held: list[weakref.ref[Since]] = []
        self._most = _MANY

    def begin_at(self, count: int) -> None:
        """Number the first entry ``count``. Call this before any entry is added."""
        self._kept = (count, [])

    def add(self, entry: Any) -> None:
        """Write an entry, if a ``Since`` needs it."""
        if self._held:
            entries = self._kept[1]
            entries.append(entry)
            if len(entries) > self._most:
                self._forget()

    def since_now(self, before: Iterable[Any] = ()) -> Since:
        """Return ``before`` and all entries that are added from now on."""
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
        # One assignment: a thread that reads meanwhile sees the old pair or the new one.
        self._kept = (oldest, entries[oldest - forgotten :])
        self._most = max(_MANY, 2 * len(self._kept[1]))


class Since:
    """Some entries, and those added to a journal later. A copy or pickle of it is a list."""

    def __init__(self, journal: Journal, start: int, before: list[Any]) -> None:
        self.start = start
        self._before = before
        self._journal = journal

    @property
    def first(self) -> int:
        """The number of the first of these entries in the journal."""
        return self.start - len(self._before)

    def told(self) -> tuple[int, list[Any]]:
        """Return ``first`` and the entries so far; from now on hold only later ones."""
        first, entries = self.first, list(self)
        self._before, self.start = [], first + len(entries)
        return first, entries

    def __iter__(self) -> Iterator[Any]:
        return chain(self._before, self._journal.entries_from(self.start))

    def __reduce__(self) -> Any:
        return list, (list(self),)


def settled(value: Any) -> Any:
    """Return plain data with each Since replaced by the list of its entries so far."""
    if isinstance(value, Since):
        return list(value)
    if isinstance(value, dict):
        return {key: settled(element) for key, element in value.items()}
    if isinstance(value, list):
        return [settled(element) for element in value]
    return value


#: An item's position, and the counts of yielded items and of errors after it was yielded.
Entry = list[int]

# Separates the entries of two passes.
_NEXT_PASS: Entry = []


class YieldOrder:
    """The order in which one pipe yields items in this epoch, pass after pass."""

    def __init__(self) -> None:
        self._journal = Journal()
        # For each of the next passes, the items that it must yield first.
        self._known: deque[list[Entry]] = deque()

    def count_as(self, cursor: Cursor) -> None:
        """Continue the numbers of the journal that a cursor is from. Call it before all passes."""
        # A resumed pass adds its separator again.
        self._journal.begin_at(cursor["at"] - int(cursor["begun"]))

    def begin(self) -> list[Entry]:
        """Begin a pass; return the entries of the items it must yield first."""
        # Cursors taken before this pass include it, from this separator on.
        self._journal.add(_NEXT_PASS)
        return self._added(self._expected())

    def resume_at(self, cursor: Cursor) -> list[Entry]:
        """Resume a pass, or begin one; return its entries that the cursor already has.

        From then on the cursor also includes what is yielded later.
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
        """Let the next passes yield first what this cursor lists for them."""
        following = _by_pass(cursor["later"])[1:]
        if following:
            self._known = deque(following)

    def add(self, entry: Entry) -> None:
        """Note that an item was yielded."""
        self._journal.add(entry)

    def since_now(self, before: Iterable[Entry] = ()) -> Since:
        """Return ``before`` and the entries of what is yielded from now on."""
        return self._journal.since_now(before)


def _by_pass(entries: Iterable[Entry]) -> list[list[Entry]]:
    passes: list[list[Entry]] = [[]]
    for entry in entries:
        if entry == _NEXT_PASS:
            passes.append([])
        else:
            passes[-1].append(entry)
    return passes


#: The position of an item that was read again although its result was yielded before.
BEFORE = -1


class InOrder:
    """The positions of a pass that yields results in the order of their items."""

    def __init__(self) -> None:
        self.read = 0
        self.done = 0

    def turns(self) -> deque[int]:
        """Return no positions: nothing is yielded out of order."""
        return deque()

    def begin(self) -> int:
        """Note that an item was read; return its position."""
        position = self.read
        self.read += 1
        return position

    def finish(self, position: int, yielded: int, errors: int) -> None:
        """Note that the result of the item at a position was yielded, or left out."""
        self.done += 1

    def oldest(self) -> int:
        """Return the first position whose result was not yielded."""
        return self.done

    def state(self, yielded: int, errors: int) -> Sieved:
        """Return the place of a pass that has yielded so much."""
        return Sieved(taken=self.done, yielded=yielded, errors=errors)

    def resume_at(self, cursor: Cursor, yielded: int) -> tuple[int, int]:
        """Resume at ``cursor``; return the counts of yielded items and of errors there."""
        self.read = self.done = cursor["taken"]
        return cursor["yielded"], cursor["errors"]


class AsReady:
    """The positions of a pass that yields results as they become ready.

    A cursor says how many items were read and which of them were not yielded yet. It also
    lists everything that is yielded later, because another run would have another order.
    A resumed pass yields those items again in the listed order.
    """

    def __init__(self, yield_order: YieldOrder, most: int) -> None:
        self.read = 0
        # How many items a pass can have read ahead of what it has yielded.
        self._most = most
        self.held: set[int] = set()
        # Of the items before position ``_known``, only those in ``_again`` are made again.
        self._known = 0
        self._again: set[int] = set()
        self._yield_order = yield_order
        self._resumes = False
        # What must be yielded first, in this order.
        self._first: deque[Entry] = deque()

    def turns(self) -> deque[int]:
        """Begin the pass; return the positions that must be yielded first, in this order."""
        if not self._resumes:
            self._expect(0, (), [], self._yield_order.begin())
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
        """Note that the result of the item at a position was yielded, or left out."""
        self.held.discard(position)
        self._again.discard(position)
        if self._first and self._first[0][0] == position:
            self._first.popleft()
        else:
            self._yield_order.add([position, yielded, errors])

    def oldest(self) -> int:
        """Return the first position whose result was not yielded."""
        return min(self._again | self.held, default=max(self.read, self._known))

    def state(self, yielded: int, errors: int) -> AsTheyCame:
        """Return the place of a pass that has yielded so much, with all that is yielded later."""
        later = self._yield_order.since_now(self._first)
        return AsTheyCame(
            begun=True,
            yielded=yielded,
            errors=errors,
            taken=max(self.read, self._known),
            held=sorted(self._again | self.held),
            later=later,
            at=later.first,
        )

    def resume_at(self, cursor: Cursor, yielded: int) -> tuple[int, int]:
        """Resume where ``yielded`` items had been yielded, at ``cursor`` or later.

        Return the counts of yielded items and of errors there.
        """
        self._resumes = True
        later = self._yield_order.resume_at(cursor)
        seen = [entry for entry in later if entry[1] <= yielded]
        self._expect(cursor["taken"], cursor["held"], seen, later[len(seen) :])
        counts = seen[-1][1:] if seen else [cursor["yielded"], cursor["errors"]]
        return counts[0], counts[1]

    def _expect(
        self, taken: int, held: Iterable[int], seen: list[Entry], following: list[Entry]
    ) -> None:
        """Make again what was held at ``taken`` or read later, except what was ``seen``."""
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


#: More items than a pass holds on any machine.
_MOST_AHEAD = 100_000


def state_ahead(pipe: Any) -> type[State] | None:
    """Return the class of the states of a pipe whose passes run ahead."""
    if not pipe.ordered:
        return AsTheyCame
    return None if pipe.tolerance.is_strict else Sieved


#: How many entries there were before. Negative where a state lists more than was counted.
FIRST_ENTRY = whole(least=-MOST)


def entries_form(value: Any, where: str, form_of: FormOf) -> None:
    """A list of entries, of one pass or of several."""
    list_of(_entry)(value, where, form_of)


def _entry(value: Any, where: str, form_of: FormOf) -> None:
    if type(value) is not list or value:
        row(COUNT, COUNT, COUNT)(value, where, form_of)


class AsTheyCame(State):
    """The place of a pass that yields results as they become ready, which holds some items.

    ``later`` is all that it yields after it, from entry number ``at`` on.
    """

    begun: bool = False
    yielded: Count = 0
    errors: Count = 0
    taken: Count = 0
    held: Annotated[list[int], Of(lambda pipe: ascending(most=_most_ahead(pipe)))] = field(
        default_factory=list
    )
    later: Annotated[Iterable[Entry], entries_form]
    at: Annotated[int, FIRST_ENTRY]

    def check(self, pipe: Any) -> Iterator[str]:
        if self.held[-1:] >= [self.taken]:
            yield "what is held was read"
        yield from at_most(self, "yielded", "taken")
        yield from at_most(self, "errors", "taken")


def first_cursor(yield_order: YieldOrder) -> Cursor:
    """Return a cursor of the next pass's beginning, which includes all that is yielded later."""
    later = yield_order.since_now()
    return cursor_to_begin_with(later, later.first)


def cursor_to_begin_with(later: Iterable[Entry], at: int) -> Cursor:
    """Return a cursor of a pass's beginning, given the pipe's entries from number ``at`` on."""
    return AsTheyCame(later=later, at=at).saved()


def positions_for(pipe: Any, yield_order: YieldOrder) -> InOrder | AsReady:
    """Return what keeps the positions of one pass of a pipe."""
    return InOrder() if pipe.ordered else AsReady(yield_order, _most_ahead(pipe))


def _most_ahead(pipe: Any) -> int:
    # The state may be from a machine with more processors, where thread_map runs more calls.
    count = pipe.concurrency
    return max(_MOST_AHEAD, 4 * count) if isinstance(count, int) else _MOST_AHEAD


#: A pipe's number, the number of the first entry, and the entries. A pipe without a number gives
#: None, 0 and its name.
Piece = list[Any]


def piece(value: Any, where: str, form_of: FormOf) -> None:
    """The form of a piece."""
    has_name = type(value) is list and len(value) > 0 and value[0] is None
    of_name, of_pipe = (just(None), COUNT, row(anything)), (COUNT, FIRST_ENTRY, entries_form)
    row(*(of_name if has_name else of_pipe))(value, where, form_of)
    if not has_name:
        # The pipe's own form must accept this: it is added to the pipe's cursor.
        form_of(value[0])(cursor_to_begin_with([], 0), where, form_of)


def telling(
    pipes: Iterable[Any], yield_order_of: Callable[[Any], YieldOrder]
) -> Callable[[], list[Piece]]:
    """Return a function that tells which items pipes without order yield from now on.

    It returns what was yielded since its last call, in any thread.
    """
    pipes = list(pipes)
    numbered = [pipe for pipe in pipes if number_of(pipe) is not None]
    since = [(number_of(pipe), yield_order_of(pipe).since_now()) for pipe in numbered]
    unnumbered = [[None, 0, [stage_name(pipe)]] for pipe in pipes if number_of(pipe) is None]

    def pieces() -> list[Piece]:
        told = ([number, *each.told()] for number, each in since)
        return [*unnumbered, *(piece for piece in told if piece[-1])]

    return pieces


def unnumbered_in(pieces: Iterable[Piece]) -> str:
    """Return the name of a pipe without a number, or "" if there is none."""
    return next((entries[0] for number, _, entries in pieces if number is None), "")


def followed(cursors: Cursors, pieces: Iterable[Piece]) -> Cursors:
    """Return the cursors with the entries added that were told later and are new to them."""
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
