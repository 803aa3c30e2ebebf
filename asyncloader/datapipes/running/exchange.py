"""Items on their way between a thread and an event loop.

This file is about ``Exchange``: a handover costs tens of microseconds, so items
are handed over in groups, and an exchange holds the current group.

    giver (a thread or a task)  ──give──▶  Exchange  ──take──▶  taker (a task or a thread)
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from asyncloader.datapipes.running.cursor_history import CursorHistory
from asyncloader.datapipes.running.cursors import Cursors, LastingError
from asyncloader.waiting import Stopped

T = TypeVar("T")


GROUP_ITEMS = 64
GROUP_SECONDS = 0.002


class Waiter(Protocol):
    """The side of an exchange that waits."""

    def wake(self) -> None: ...

    def wake_soon(self) -> None: ...


class MadeElsewhere(ABC):
    """A pass whose items other processes make, even while nobody waits for them."""

    @abstractmethod
    async def come(self) -> None:
        """Wait until there is a next item; take none."""

    @abstractmethod
    def holds_much(self) -> bool:
        """Whether the items that were yielded hold much memory that others need."""

    @abstractmethod
    def new_history(self, first: Cursors, needed: Callable[[], int]) -> CursorHistory:
        """Return what keeps the cursors of the pass, which begins with ``first``."""


class Nobody:
    """The waiter of a side where nobody waits yet."""

    def wake(self) -> None:
        """Do nothing."""

    def wake_soon(self) -> None:
        """Do nothing."""


def _all() -> int:
    return sys.maxsize


class Exchange(Generic[T]):
    """At most one group of items, on its way from a giver to a taker.

    A group is full at 64 items, or two milliseconds after its first; the items can
    be taken at any time. It is thread-safe, because every step is a single
    operation on a list.

    ``new_history(needed)`` returns what keeps the cursors of the giver's pipe. With ``may_give``
    that says whether there is room, and not the number of items. ``settled`` says how many items
    need not come again, where that may be fewer than were taken.
    """

    def __init__(
        self,
        taker: Waiter,
        new_history: Callable[[Callable[[], int]], CursorHistory],
        may_give: Callable[[], bool] | None = None,
        settled: Callable[[], int] = _all,
    ) -> None:
        self.giver: Waiter = Nobody()
        self.taker = taker
        self._may_give = may_give
        self._given = 0
        self._taken = 0
        # How many items were taken before the latest group; all of those were yielded.
        self._taken_before = 0
        self._history = new_history(lambda: min(self._taken_before, settled()))
        self._items: list[T] = []
        self._begun = 0.0
        self._ended = self._is_stopped = False
        self._is_dropped = self._is_last = False
        self._error: LastingError | None = None

    def give(self, item: T) -> None:
        """Add an item, and wake the taker now or a little later."""
        self._items.append(item)
        if len(self._items) == 1:
            self._begun = time.perf_counter()
        self.taker.wake_soon()
        self._given += 1
        self._history.passed(self._given)

    def give_group(self, items: list[T]) -> None:
        """Add several items; call ``note_cursors`` afterwards, and wake the taker."""
        if not self._items:
            self._begun = time.perf_counter()
        self._items += items
        self._given += len(items)

    def note_cursors(self) -> None:
        """Note the giver's cursors after the items given so far, if that is due."""
        self._history.passed(self._given)

    def end(self, error: BaseException | None) -> None:
        """Say that no item follows, with the error if there was one."""
        if not self._ended:
            self._is_stopped = isinstance(error, Stopped)
            self._error = None if error is None or self._is_stopped else LastingError(error)
            self._ended = True
        if self._is_dropped or isinstance(error, Stopped):
            self._items.clear()
        self.taker.wake()

    def drop(self) -> None:
        """Drop the items, now and later: nobody will take them.

        The pipe may live longer and keep this object alive.
        """
        self._is_dropped = True
        self._items.clear()

    def let_this_be_the_last(self) -> None:
        """Let no more be given than what is there: the rest comes from somebody else."""
        self._is_last = True

    def has_room(self) -> bool:
        """Whether the giver may add items."""
        if self._is_last:
            return False
        if self._may_give is not None:
            return self._may_give()
        count = len(self._items)
        if count == 0:
            return True
        return count < GROUP_ITEMS and time.perf_counter() - self._begun < GROUP_SECONDS

    def has_items(self) -> bool:
        """Whether there are items to take."""
        return bool(self._items)

    def is_ready(self) -> bool:
        """Whether there is something to take: items, the end, or an error."""
        return bool(self._items) or self._ended

    def ask(self) -> None:
        """Wake the giver; ``take`` may have been interrupted before it did."""
        self.giver.wake()

    def take(self, into: list[T] | None = None) -> list[T]:
        """Return the items that are there; at the end return [] or raise the error, every time.

        They are added to ``into``, so that a caller that is interrupted does not lose them.
        """
        group = [] if into is None else into
        # The giver may append meanwhile; such items stay for the next group.
        count = len(self._items)
        if count:
            # No call in between: an interrupt finds the items in one list or in the other.
            group += self._items[:count]
            del self._items[:count]
            self._taken_before, self._taken = self._taken, self._taken + count
            self.giver.wake()
            return group
        if self._is_stopped:
            # A new one: the traceback of one that is kept would keep the pass's objects alive.
            raise Stopped
        if self._error is not None:
            raise self._error.again()
        return []

    def put_cursors(self, into: Cursors, passed: int | None = None) -> None:
        """Add cursors of the giver's pipe that are not later than the taker's position.

        That is after ``passed`` items, or else it may be anywhere in the latest group.
        """
        into.update(self._history.at(self._taken_before if passed is None else passed))
