"""Noticing that a wait takes long.

This file is about ``Overdue``, a timer for a great many waits that are mostly short.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

#: Timers go off up to a tick of their loop's clock early; uvloop's ticks are milliseconds.
_TICK = 0.001


class Overdue:
    """Rings once in a wait that has lasted ``seconds``; short waits cost next to nothing.

    The loop's timer is set for the first of them, and set again only when it goes off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        # Of a wait only: the loop keeps the timer for longer than who waits may live.
        self._ring: Callable[[], object] = bool
        self._at = math.inf
        self._is_set = False

    def begin(self, ring: Callable[[], object]) -> None:
        """Note that a wait begins, which is to be rung for."""
        self._ring = ring
        self._at = self._loop.time() + self._seconds
        if not self._is_set:
            self._set()

    def end(self) -> None:
        """Note that the wait is over."""
        self._ring = bool
        self._at = math.inf

    def _set(self) -> None:
        self._is_set = True
        self._loop.call_at(self._at, self._look)

    def _look(self) -> None:
        self._is_set = False
        if self._loop.time() >= self._at - _TICK:
            self._at = math.inf
            self._ring()
        elif self._at < math.inf:
            self._set()
