"""A source's cursors after some of its items.

This file is about ``CursorHistory``, which a pass keeps that is ahead of its reader or holds
items: it has the source's cursors at the reader's position. ``Pace`` says how often cursors may
be collected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from time import perf_counter, thread_time
from typing import TypeVar

from asyncloader.datapipes.running.cursors import Cursors

T = TypeVar("T")


# Collecting cursors may take 1/250 of the time; and 1/1000 where they are collected so often even
# then that a state has few items to make again.
_SHARE = 250
_OFTEN_SECONDS = 0.1
# If there are more entries than this, every other one is dropped.
_MOST_ENTRIES = 512


class Pace:
    """Says when to collect cursors, so that this takes only a small part of the time."""

    def __init__(self) -> None:
        #: The time from which they are due. Code that runs for every item reads it directly.
        self.not_before = 0.0

    def is_due(self) -> bool:
        """Whether to collect cursors now."""
        return perf_counter() >= self.not_before

    def made(self, begun: float) -> None:
        """Note that cursors were collected, from the thread time ``begun`` until now."""
        # Thread time leaves out the time in which other threads had the processor.
        pause = _SHARE * (thread_time() - begun)
        self.not_before = perf_counter() + max(pause, min(4 * pause, _OFTEN_SECONDS))


class CursorHistory:
    """A source's cursors after some of its items, newest last.

    A pass that is ahead of its reader, or still holds an item, asks for the newest cursors that
    are not after the position it needs. ``oldest`` returns the oldest position that can still
    be needed; what is older is dropped. One thread adds entries, any thread reads them.

    >>> history = CursorHistory(lambda into: into.update({0: {"taken": 7}}), oldest=lambda: 6)
    >>> history.note(7)
    >>> history.at(6), history.at(8)
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
        """Begin after ``count`` items, where the source resumed from ``first``."""
        self._entries: list[tuple[int, Cursors]] = [(count, first)]

    def passed(self, count: int) -> None:
        """Note that ``count`` items were taken from the source; add its cursors if due."""
        if perf_counter() >= self._pace.not_before:
            self.note(count)

    def note(self, count: int) -> None:
        """Add the source's cursors after ``count`` items."""
        begun = thread_time()
        cursors: Cursors = {}
        self._put(cursors)
        kept = thinned(self._entries[_newest(self._entries, self._oldest()) :])
        # One assignment: a thread that reads meanwhile sees the old list or the new one.
        self._entries = [*kept, (count, cursors)]
        self._pace.made(begun)

    def at(self, count: int) -> Cursors:
        """Return the newest cursors from after at most ``count`` items."""
        entries = self._entries
        return entries[_newest(entries, count)][1]


def thinned(entries: list[T]) -> list[T]:
    """Return entries, oldest first; only every other one where there are very many.

    The oldest stays. In place of a dropped one the one before it is used.
    """
    return entries[::2] if len(entries) > _MOST_ENTRIES else entries


def _newest(entries: list[tuple[int, Cursors]], count: int) -> int:
    return max(0, bisect_right(entries, count, key=itemgetter(0)) - 1)
