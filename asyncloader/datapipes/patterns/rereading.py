"""Items that are held, and how they are got again.

This file is about pipes that hold items of a source for longer than one step. Their
cursors say which items those are by their numbers, and where the source stood before
the first of them. A pass that goes on from there reads the same items again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.datapipes.going_on.forms import COUNT, Form, FormOf, list_of, refuse
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.run import Run, picks
from asyncloader.errors import SnapshotError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Held(Generic[T]):
    """An item, its number in the source, and where the source stood before it."""

    number: int
    item: T
    before: Cursors


class Rereader(Generic[T]):
    """Reads a source from item number ``taken`` on, after items that were held before then."""

    def __init__(self, source: Run[T], were_held: list[int], taken: int, cursors: Cursors) -> None:
        """Begin a pass over ``source``.

        ``were_held`` are the numbers, which ascend, of the items to be held again, and
        ``cursors`` are from before the first of them.
        """
        again, self._items = begin_with(source, were_held, taken, cursors)
        self.again = [
            Held(number, item, cursors) for number, item in zip(were_held, again, strict=True)
        ]
        self.taken = taken
        # What is held keeps the mark it needs.
        self._marks = Marks(source.put_cursors, lambda: self.taken)
        self._marks.restart(taken, cursors)

    def __iter__(self) -> Iterator[Held[T]]:
        return self

    def __next__(self) -> Held[T]:
        item = next(self._items)
        held = Held(self.taken, item, self._marks.at(self.taken))
        self.taken += 1
        self._marks.passed(self.taken)
        return held

    def close(self) -> None:
        """Take no more items."""
        close_items(self._items)


def begin_with(
    source: Run[T], held: list[int], taken: int, cursors: Cursors
) -> tuple[list[T], Iterator[T]]:
    """Return the items at the ascending positions ``held``, and what follows the first ``taken``.

    Only what is held is made once more where the source can pick it; otherwise all from
    the first held item on, for which ``cursors`` have to be old enough.
    """
    if not held:
        if taken:
            source.resume(taken, cursors)
        return [], source.begin()
    if picks(source.pipe):
        source.pick(held)
        items = list(source.begin())
        _check_whole(source, held, items)
        source.resume(taken, cursors)
        return items, source.begin()
    first = held[0]
    source.resume(first, cursors)
    following, wanted = source.begin(), set(held)
    again = zip(range(first, taken), following, strict=False)
    items = [item for position, item in again if position in wanted]
    _check_whole(source, held, items)
    return items, following


def _check_whole(source: Run[T], held: list[int], items: list[T]) -> None:
    if len(items) < len(held):
        raise SnapshotError(
            f"the state does not fit the data: item {held[len(items)]} of"
            f" {stage_name(source.pipe)} was held, and there is none now"
        )


@contextlib.contextmanager
def closing_items(iterator: Iterator[Any]) -> Iterator[None]:
    """Close an iterator at the end, if it can be closed."""
    try:
        yield
    finally:
        close_items(iterator)


def add_cursors(cursors: Cursors, into: Cursors) -> None:
    """Add the cursors of pipes that have none there yet.

    Cursors with which a source began are those of a whole graph: what has moved on
    since has put its own before.
    """
    for place, cursor in cursors.items():
        into.setdefault(place, cursor)


def runs_of(numbers: Iterable[int]) -> list[int]:
    """Return ascending numbers as a flat list: the first of each run, and the run's length.

    >>> runs_of([3, 4, 5, 9])
    [3, 3, 9, 1]
    """
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-2] + runs[-1] == number:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


def runs_form(most: int) -> Form:
    """Return the form of what ``runs_of`` returns, for at most so many numbers."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        list_of(COUNT)(value, where, form_of)
        firsts, lengths = value[::2], value[1::2]
        if len(firsts) != len(lengths) or sum(lengths) > most:
            refuse(where, f"runs of at most {most} numbers", value)
        end = 0
        for first, length in zip(firsts, lengths, strict=True):
            if first < end or not length:
                refuse(where, "runs of ascending numbers", value)
            end = first + length

    return check


def numbers_in(runs: list[int]) -> list[int]:
    """Return the numbers of which ``runs_of`` made runs.

    >>> numbers_in([3, 3, 9, 1])
    [3, 4, 5, 9]
    """
    pairs: Any = zip(runs[::2], runs[1::2], strict=True)
    return [number for first, length in pairs for number in range(first, first + length)]
