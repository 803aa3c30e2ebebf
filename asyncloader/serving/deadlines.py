"""The deadlines of requests.

This file is about ``Deadlines``: most requests of a feed have the same timeout, and then they
expire in the order in which they came. So one timer of the loop is enough for all of them, and to
add or to remove a request costs next to nothing.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

#: So many different timeouts are kept at least.
_FEW = 64


class Expires(Protocol):
    """What can wait for too long."""

    #: When it began to wait, by ``monotonic``.
    accepted: float

    def expire(self) -> None:
        """End the wait."""


class Deadlines:
    """The requests that have a timeout; to be used on one loop at a time."""

    def __init__(self) -> None:
        self._equals: dict[float, Equals] = {}
        # Then those are dropped that no request has at the moment.
        self._most = _FEW

    def of(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Equals:
        """Return those that have this timeout, to add another one to them."""
        equals = self._equals.get(seconds)
        if equals is None or equals.loop is not loop:
            if len(self._equals) >= self._most:
                self._forget_idle()
            self._equals[seconds] = equals = Equals(loop, seconds)
        return equals

    def _forget_idle(self) -> None:
        for seconds, equals in [*self._equals.items()]:
            if not equals.waiting:
                equals.close()
                del self._equals[seconds]
        self._most = max(_FEW, 2 * len(self._equals))


class Equals:
    """Requests with the same timeout, by their keys, the oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self._seconds = seconds
        #: Whoever is answered is taken out.
        self.waiting: dict[int, Expires] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: int, request: Expires) -> None:
        """Let a request expire that has just been accepted."""
        self.waiting[key] = request
        if self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self._look)

    def close(self) -> None:
        """Let nobody expire any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        latest = monotonic() - self._seconds
        for request in [*self.waiting.values()]:
            if request.accepted > latest:
                self._timer = self.loop.call_later(request.accepted - latest, self._look)
                return
            request.expire()
