"""The items at hand, and how many of them may pass.

This file is about ``Gate``: what came waits before it, and passes as ``limit``, ``pause`` and
``resume`` allow. It is the same for the async and the sync form of an iterator.

    an epoch ──let_in──▶ waiting ──▶ passing ──▶ whoever iterates
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from operator import length_hint
from typing import Any

from asyncloader.datapipes.pipe.arguments import checked_count

_NO_LIMIT = sys.maxsize


class Gate:
    """Holds the items that came, and lets as many pass as may.

    Who takes an item from ``passing`` has let it pass, and that is all: it happens for every
    item. Where there is none, ``is_closed`` and ``wants_more`` say how to go on. Items that
    nobody puts before the gate are counted in ``arrived``, and have passed.

    Neither another thread nor an interrupt finds an item in two places or in none: what moves
    items is one assignment each time, and between its parts nothing is called.
    """

    __slots__ = (
        "_is_paused",
        "_is_shut",
        "_limit",
        "_lock",
        "_pause_lasts",
        "_waiting",
        "arrived",
        "closes_at",
        "coming",
        "has_failed",
        "is_ended",
        "passing",
    )

    def __init__(self) -> None:
        #: The items at hand that may pass.
        self.passing: Iterator[Any] = iter(())
        #: Where a group is put by who waits for it, before ``let_in``.
        self.coming: list[Any] = []
        #: How many items came so far.
        self.arrived = 0
        #: The gate is closed when so many have passed.
        self.closes_at = _NO_LIMIT
        self._waiting: list[Any] = []
        self._limit = _NO_LIMIT
        self._is_paused = self._pause_lasts = self._is_shut = False
        self.is_ended = False
        self.has_failed = False
        # A signal's handler may pause what it has interrupted.
        self._lock = threading.RLock()

    def renewed(self) -> Gate:
        """Return the gate of the next iterator, with the same limit."""
        gate = Gate()
        gate._limit = self._limit
        gate._is_paused = gate._pause_lasts = self._pause_lasts
        gate._open_unless_paused()
        return gate

    @property
    def passed(self) -> int:
        """How many items have passed."""
        return self.arrived - length_hint(self.passing) - len(self._waiting)

    def is_closed(self) -> bool:
        """Whether nothing may pass until ``resume``, or another limit."""
        return self.passed >= self.closes_at

    def wants_more(self) -> bool:
        """Whether more may pass than is at hand; what is at hand passes first."""
        with self._lock:
            self._settle()
            return not self.is_closed() and not length_hint(self.passing)

    def let_in(self) -> None:
        """Take in what is ``coming``, and let pass as much as may, and in any case one item.

        That was under way when the gate may have been closed.
        """
        with self._lock:
            waiting = [*self._waiting, *self.coming]
            arrived, coming = self.arrived + len(self.coming), list[Any]()
            self._waiting, self.arrived, self.coming = waiting, arrived, coming
            self._settle(at_least=1)

    def limit(self, num_items: int | None) -> None:
        """Let ``num_items`` more pass, now and after each ``resume``; None lets all pass."""
        if num_items is None:
            self._limit = _NO_LIMIT
        else:
            self._limit = checked_count("limit", num_items, at_least=0)
        self._open_unless_paused()

    def pause(self, *, lasting: bool = False) -> None:
        """Let nothing pass until ``resume``; nor, if that is ``lasting``, by later gates."""
        self._is_paused = True
        self._pause_lasts = self._pause_lasts or lasting
        self._open_for(0)

    def resume(self) -> None:
        """Let items pass again, as many as the limit allows."""
        self._is_paused = self._pause_lasts = False
        self._open_unless_paused()

    def shut(self) -> None:
        """Let nothing pass any more, whoever resumes."""
        self._is_shut = True
        self._open_for(0)

    def end(self, error: BaseException | None = None) -> None:
        """Note that the epoch has ended, by itself or with an error."""
        self.is_ended = True
        self.has_failed = error is not None and not isinstance(error, StopIteration)

    def is_over(self) -> bool:
        """Whether the epoch has come to its natural end."""
        return self.is_ended and not self.has_failed

    def was_read(self) -> bool:
        """Whether anything was seen of the epoch: an item, an error, or its end."""
        return self.passed > 0 or self.is_ended

    def _open_unless_paused(self) -> None:
        self._open_for(0 if self._is_paused else self._limit)

    def _open_for(self, count: int) -> None:
        with self._lock:
            self.closes_at = self.passed + (0 if self._is_shut else count)
            self._settle()

    def _settle(self, at_least: int = 0) -> None:
        """Sort what is at hand into what may pass and what may not."""
        self._waiting = [*self.passing, *self._waiting]
        count = max(at_least, min(self.closes_at - self.passed, len(self._waiting)))
        passing, waiting = iter(self._waiting[:count]), self._waiting[count:]
        self.passing, self._waiting = passing, waiting
