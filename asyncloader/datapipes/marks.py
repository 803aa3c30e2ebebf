"""Where a source stood now and then.

This file is about ``Marks``, by which a pass that is ahead of its reader, or holds items, says
where its source stood for what its reader has seen; and about ``Pace``, how often cursors may be
gathered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from time import perf_counter, thread_time
from typing import TypeVar

from asyncloader.datapipes.cursors import Cursors

T = TypeVar("T")


# Gathering cursors may cost one part in so many of the time.
_SHARE = 50
# Of more marks than this every other one is forgotten.
_MOST_MARKS = 512


class Pace:
    """Says when cursors are to be gathered: as often as a small part of the time allows."""

    def __init__(self) -> None:
        #: They are due from then on; what is begun for every item looks at it by itself.
        self.not_before = 0.0

    def is_due(self) -> bool:
        """Whether cursors are to be gathered now."""
        return perf_counter() >= self.not_before

    def made(self, begun: float) -> None:
        """Note that they were gathered, since the thread's own time ``begun``."""
        # The time that others had the processor meanwhile costs nothing.
        self.not_before = perf_counter() + _SHARE * (thread_time() - begun)


class Marks:
    """Where a source stood at some of its items, newest last.

    A reader that is ahead of what its own reader has seen, or still holds an item, looks
    back for the newest mark that is not too new. ``oldest`` says how far back it may still
    have to look; what lies before that is forgotten. One thread makes marks, any looks.

    >>> marks = Marks(lambda into: into.update({0: {"taken": 7}}), oldest=lambda: 6)
    >>> marks.note(7)
    >>> marks.at(6), marks.at(8)
    ({}, {0: {'taken': 7}})
    """

    def __init__(
        self,
        put: Callable[[Cursors], None],
        oldest: Callable[[], int],
        first: Cursors | None = None,
    ) -> None:
        self._put = put
        self._oldest = oldest
        self._pace = Pace()
        self.restart(0, {} if first is None else first)

    def restart(self, count: int, first: Cursors) -> None:
        """Begin after ``count`` items, where the source went on from ``first``."""
        self._marks: list[tuple[int, Cursors]] = [(count, first)]

    def passed(self, count: int) -> None:
        """Say that ``count`` items were taken from the source; a mark is made if one is due."""
        if perf_counter() >= self._pace.not_before:
            self.note(count)

    def note(self, count: int) -> None:
        """Make a mark after ``count`` items."""
        begun = thread_time()
        cursors: Cursors = {}
        self._put(cursors)
        kept = thinned(self._marks[_newest(self._marks, self._oldest()) :])
        # Another thread may be looking: it sees either list whole.
        self._marks = [*kept, (count, cursors)]
        self._pace.made(begun)

    def at(self, count: int) -> Cursors:
        """Return the cursors of the newest mark after at most ``count`` items."""
        marks = self._marks
        return marks[_newest(marks, count)][1]


def thinned(marks: list[T]) -> list[T]:
    """Return marks, oldest first, and only every other one where there are very many.

    The oldest stays. Whoever looks for one that is gone goes on from the one before it.
    """
    return marks[::2] if len(marks) > _MOST_MARKS else marks


def _newest(marks: list[tuple[int, Cursors]], count: int) -> int:
    return max(0, bisect_right(marks, count, key=itemgetter(0)) - 1)
