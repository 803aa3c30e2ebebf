"""The items that a consumer can take now.

This file is about ``ItemBuffer``: what the epoch has made waits in it until the consumer takes
it, as ``limit``, ``pause`` and ``resume`` allow. The async and the sync iterator use the same.

    an epoch ──let_in──▶ held back ──▶ ready ──▶ the consumer
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any

from asyncloader.arguments import checked_count
from asyncloader.datapipes.running.in_flight import HandedOver
from asyncloader.waiting import do_nothing

_NO_LIMIT = sys.maxsize


class ItemBuffer:
    """Holds the items that came, and lets as many pass as are allowed.

    To take an item from ``ready`` is all that lets it pass: this happens for every item. If
    there is none, ``is_closed`` and ``wants_more`` say what to do. Items that never enter the
    buffer are only counted in ``arrived``, and count as passed.

    No other thread and no interrupt finds an item in two places or in none: each move is one
    assignment, and nothing is called between its parts.
    """

    __slots__ = (
        "__weakref__",
        "_held_back",
        "_is_paused",
        "_is_shut",
        "_limit",
        "_outdated",
        "_pause_lasts",
        "acknowledged",
        "arrived",
        "closes_at",
        "has_failed",
        "incoming",
        "is_ended",
        "lock",
        "reader",
        "ready",
    )

    def __init__(self, *, acknowledges: bool = False) -> None:
        #: The items that may be taken.
        self.ready: Iterator[Any] = iter(())
        #: Makes ``ready`` of a group of items; HandedOver where those are in flight.
        self.reader: Callable[[list[Any]], Iterator[Any]] = iter
        #: Where the consumer puts a group that came, before ``let_in``.
        self.incoming: list[Any] = []
        #: How many items came so far.
        self.arrived = 0
        #: How many of the items that passed were acknowledged; None where nobody acknowledges.
        self.acknowledged: int | None = 0 if acknowledges else None
        #: The buffer is closed when so many items have passed.
        self.closes_at = _NO_LIMIT
        self._held_back: list[Any] = []
        self._limit = _NO_LIMIT
        self._is_paused = self._pause_lasts = self._is_shut = False
        # Why nothing that passed is to be acknowledged any more.
        self._outdated: Exception | None = None
        self.is_ended = False
        self.has_failed = False
        #: While a thread holds this, no other lets items in or acknowledges any. A signal handler
        #: may pause the very thread that holds it.
        self.lock = threading.RLock()

    def renewed(self) -> ItemBuffer:
        """Return the buffer of the next iterator, with the same limit."""
        buffer = ItemBuffer(acknowledges=self.acknowledged is not None)
        buffer._limit = self._limit
        buffer._is_paused = buffer._pause_lasts = self._pause_lasts
        if buffer._is_paused or buffer._limit != _NO_LIMIT:
            buffer._open_unless_paused()
        return buffer

    @property
    def passed(self) -> int:
        """How many items have passed."""
        return self.arrived - length_hint(self.ready) - len(self._held_back)

    @property
    def settled(self) -> int:
        """How many items need not come again after a resume.

        Those are the items that passed or, where the consumer acknowledges, were acknowledged.
        """
        return self.passed if self.acknowledged is None else self.acknowledged

    @property
    def unacknowledged(self) -> int:
        """How many items passed and have to be acknowledged still."""
        if self.acknowledged is None:
            return 0
        with self.lock:
            return self.passed - self.acknowledged

    def ack(self, count: int, check: Callable[[int], object] = do_nothing) -> None:
        """Acknowledge the ``count`` oldest of the items that passed; from any thread.

        ``check`` raises if not so many may be acknowledged now, those of before included.
        """
        if self.acknowledged is None:
            raise RuntimeError(
                "ack() needs a loader that counts what is acknowledged: make it with"
                " DataLoader2(..., acknowledge=True)"
            )
        count = checked_count("count", count, at_least=1)
        with self.lock:
            if self._outdated is not None:
                raise self._outdated.with_traceback(None)
            left = self.passed - self.acknowledged
            if count > left:
                raise ValueError(
                    f"ack({count}) asks for more items than wait for it: {left} were delivered and"
                    " not acknowledged"
                )
            check(self.acknowledged + count)
            self.acknowledged += count

    def outdate(self, reason: Exception) -> None:
        """Make every later ``ack`` raise ``reason``."""
        with self.lock:
            self._outdated = reason

    def is_closed(self) -> bool:
        """Whether nothing may pass until ``resume`` or another limit."""
        return self.passed >= self.closes_at

    def wants_more(self) -> bool:
        """Whether more items are needed: more may pass, and none is ready."""
        if self.closes_at == _NO_LIMIT and not self._held_back:
            return not length_hint(self.ready)
        with self.lock:
            self._settle()
            return not self.is_closed() and not length_hint(self.ready)

    def let_in(self) -> None:
        """Take in the ``incoming`` items, and make as many ready as may pass, at least one.

        One item may pass in any case: it was on its way when the buffer was closed.
        """
        with self.lock:
            if self.closes_at == _NO_LIMIT and not self._held_back and not length_hint(self.ready):
                arrived, ready = self.arrived + len(self.incoming), self.reader(self.incoming)
                self.arrived, self.ready, self.incoming = arrived, ready, []
                return
            held_back = [*self._held_back, *self.incoming]
            arrived, incoming = self.arrived + len(self.incoming), list[Any]()
            self._held_back, self.arrived, self.incoming = held_back, arrived, incoming
            self._settle(at_least=1)

    def limit(self, num_items: int | None) -> None:
        """Let ``num_items`` more pass, now and after each ``resume``; None takes the limit away."""
        if num_items is None:
            self._limit = _NO_LIMIT
        else:
            self._limit = checked_count("limit", num_items, at_least=0)
        self._open_unless_paused()

    def pause(self, *, lasting: bool = False) -> None:
        """Let nothing pass until ``resume``; if ``lasting``, later buffers are paused too."""
        self._is_paused = True
        self._pause_lasts = self._pause_lasts or lasting
        self._open_for(0)

    def resume(self) -> None:
        """Let items pass again, as many as the limit allows."""
        self._is_paused = self._pause_lasts = False
        self._open_unless_paused()

    def shut(self) -> None:
        """Let nothing pass any more, even after ``resume``."""
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
        """Whether the consumer saw anything of the epoch: an item, an error, or its end."""
        return self.is_ended or self.passed > 0

    def _open_unless_paused(self) -> None:
        self._open_for(0 if self._is_paused else self._limit)

    def _open_for(self, count: int) -> None:
        with self.lock:
            count = 0 if self._is_shut else count
            self.closes_at = _NO_LIMIT if count == _NO_LIMIT else self.passed + count
            self._settle()

    def _settle(self, at_least: int = 0) -> None:
        """Divide the items here into those that are ready and those that are held back."""
        ready = self.ready
        untaken = ready.drain() if isinstance(ready, HandedOver) else ready
        self._held_back = [*untaken, *self._held_back]
        count = max(at_least, min(self.closes_at - self.passed, len(self._held_back)))
        ready, held_back = self.reader(self._held_back[:count]), self._held_back[count:]
        self.ready, self._held_back = ready, held_back
