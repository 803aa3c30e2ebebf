"""A source's cursors after some of its items.

This file is about ``CursorHistory``, which is kept of a source whose reader holds items or runs
ahead: it has the source's cursors at the reader's position. ``Count`` says how many items of a
source have come, and ``Pace`` how often cursors may be collected.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from operator import itemgetter, length_hint
from time import perf_counter, thread_time
from typing import Any, TypeVar

from asyncloader.datapipes.running.cursors import Cursors, close_items

T = TypeVar("T")


# Collecting cursors may take 1/250 of the time; and 1/1000 where they are collected so often even
# then that a state has few items to make again.
_SHARE = 250
_OFTEN_SECONDS = 0.1
# If there are more entries than this, every other one is dropped.
_MOST_ENTRIES = 512
# So many items may pass without a look at the clock, if they take an eighth of a pause at most.
_MOST_UNLOOKED = 64
_UNLOOKED_SHARE = 8


class Pace:
    """Says when to collect cursors, so that this takes only a small part of the time."""

    def __init__(self) -> None:
        #: The time from which they are due. Code that runs for every item reads it directly.
        self.not_before = 0.0
        #: For how many seconds they were not due after the last time.
        self.pause = 0.0

    def is_due(self) -> bool:
        """Whether to collect cursors now."""
        return perf_counter() >= self.not_before

    def made(self, begun: float) -> None:
        """Note that cursors were collected, from the thread time ``begun`` until now."""
        # Thread time leaves out the time in which other threads had the processor.
        pause = _SHARE * (thread_time() - begun)
        self.pause = max(pause, min(4 * pause, _OFTEN_SECONDS))
        self.not_before = perf_counter() + self.pause


@contextlib.contextmanager
def noting_at_every_item() -> Iterator[None]:
    """Let cursors be collected at every item, for a check of what resumes from them."""
    global _SHARE
    share, _SHARE = _SHARE, 0
    try:
        yield
    finally:
        _SHARE = share


# More items than any source yields.
_ENDLESS = 2**62


class Count:
    """How many items have passed: exact between two of them, and any thread may ask.

    >>> count = Count()
    >>> next(count.counted(iter("abc"))), count.passed()
    ('a', 1)
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = repeat(True, _ENDLESS)

    def counted(self, items: Iterator[T]) -> Iterator[T]:
        """Return an iterator over the items that counts them.

        It does so in C, which takes a third of the time.
        """
        # It takes one of what is left for each item, after the item has come.
        counted = _Counted(items, self._left)
        counted.items = items
        return counted

    def passed(self) -> int:
        """Return how many items have passed."""
        return _ENDLESS - length_hint(self._left)


class _Counted(compress):  # type: ignore[type-arg]  # it takes no type argument when it runs
    __slots__ = ("items",)

    items: Iterator[Any]

    @property
    def gi_running(self) -> bool:
        """Whether a thread is inside of the items, as generators say it."""
        return bool(getattr(self.items, "gi_running", False))

    def close(self) -> None:
        """Close the items."""
        close_items(self.items)


class _Grouped(chain[T]):
    __slots__ = ("items",)

    items: Iterator[T]

    def close(self) -> None:
        """Close the items."""
        close_items(self.items)


def followed_by(call: Callable[[], object], items: Iterator[T]) -> Iterator[T]:
    """Return an iterator over the items that calls a function after the last of them."""
    ending: Any = _Grouped(items, _called(call))
    ending.items = items
    return ending  # type: ignore[no-any-return]  # of the items


def _called(call: Callable[[], object]) -> Iterator[Any]:
    call()
    yield from ()


class CursorHistory:
    """A source's cursors after some of its items, newest last.

    A reader that runs ahead, or still holds an item, asks for the newest cursors that are not
    after the position it needs. ``needed`` returns the oldest position that can still be needed,
    or None for the newest; what is older is dropped. It begins after ``count`` items, where the
    source resumes from ``first``. One thread adds entries, any thread reads them.

    >>> history = CursorHistory(lambda into: into.update({0: {"taken": 7}}), needed=lambda: 6)
    >>> history.note(7)
    >>> history.at(6), history.at(8)
    ({}, {0: {'taken': 7}})
    """

    def __init__(
        self,
        put: Callable[[Cursors], None],
        needed: Callable[[], int | None],
        count: int = 0,
        first: Cursors | None = None,
    ) -> None:
        self._put = put
        self._needed = needed
        self._pace = Pace()
        self._entries: list[tuple[int, Any]] = [(count, {} if first is None else first)]

    def noting(self, items: Iterator[T], count: Callable[[], int]) -> Iterator[T]:
        """Return an iterator that adds the source's cursors when they are due.

        ``items`` are the source's, and ``count`` returns how many of them have come. It is looked
        at the clock only now and then: between two looks no Python code runs.
        """
        noting: Any = _Grouped.from_iterable(self._groups(items, count))
        noting.items = items
        return noting  # type: ignore[no-any-return]  # of the items

    def _groups(self, items: Iterator[T], count: Callable[[], int]) -> Iterator[Iterator[T]]:
        pace, looked, before, most = self._pace, perf_counter(), count(), 1
        while True:
            yield islice(items, most)
            after = count()
            if after < before + most:
                return
            now = perf_counter()
            if now >= pace.not_before:
                self.note(after)
            is_quick = _UNLOOKED_SHARE * (now - looked) < pace.pause
            looked, before, most = now, after, min(2 * most, _MOST_UNLOOKED) if is_quick else 1

    def passed(self, count: int) -> None:
        """Note that ``count`` items were taken from the source; add its cursors if due."""
        if perf_counter() >= self._pace.not_before:
            self.note(count)

    def note(self, count: int) -> None:
        """Add the source's cursors after ``count`` items."""
        begun = thread_time()
        cursors: Cursors = {}
        self._put(cursors)
        self._add(count, cursors)
        self._pace.made(begun)

    def _add(self, count: int, entry: Any) -> None:
        """Add an entry, and drop what is older than what can be needed."""
        needed = self._needed()
        first = newest(self._entries, count if needed is None else needed)
        # One assignment: a thread that reads meanwhile sees the old list or the new one.
        self._entries = [*thinned(self._entries[first:]), (count, entry)]

    def at(self, count: int) -> Cursors:
        """Return the newest cursors from after at most ``count`` items."""
        entries = self._entries
        return self._cursors_of(entries[newest(entries, count)][1])

    def _cursors_of(self, entry: Any) -> Cursors:
        cursors: Cursors = entry
        return cursors


def thinned(entries: list[T]) -> list[T]:
    """Return entries, oldest first; only every other one where there are very many.

    The oldest stays. In place of a dropped one the one before it is used.
    """
    return entries[::2] if len(entries) > _MOST_ENTRIES else entries


def newest(entries: Sequence[tuple[int, Any]], count: int) -> int:
    """Return the index of the newest entry from after at most ``count`` items, or of the oldest.

    >>> newest([(0, "a"), (4, "b"), (9, "c")], 8)
    1
    """
    return max(0, bisect_right(entries, count, key=itemgetter(0)) - 1)
