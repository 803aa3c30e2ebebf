"""Requests that are given up when nothing comes.

This file is about ``Listeners``: one timer for all requests of a session. aiohttp's own limit
sets a timer and takes it back for every piece, which is a twentieth of a small request.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

#: A loop that was held has not yet read what came meanwhile: this long it has for that.
GRACE_SECONDS = 0.1

#: A timer may call a little early; it is set again for at least so long.
_TICK = 0.01


class Listeners:
    """The requests under way, of which none is to hear nothing for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.all: set[Listening] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, listening: Listening) -> None:
        """Watch one more."""
        self.all.add(listening)
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._look)

    def close(self) -> None:
        """Watch none any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Look at all when the one that heard least lately may have waited for too long."""
        oldest = min((each.heard_at for each in self.all), default=None)
        if oldest is None:
            self._timer = None
            return
        left = oldest + self.seconds - monotonic()
        if left > 0:
            self._timer = self._loop.call_later(max(left, _TICK), self._look)
            return
        self._timer = self._loop.call_later(GRACE_SECONDS, self._end_silent)

    def _end_silent(self) -> None:
        last = monotonic() - self.seconds
        for each in list(self.all):
            if each.heard_at <= last:
                each.give_up()
        self._look()


class Listening:
    """The time in which the present task hears of one request; TimeoutError if it does not."""

    __slots__ = ("_cancels", "_is_given_up", "_listeners", "_task", "heard_at")

    _task: asyncio.Task[object]

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        #: When something came; to be set again whenever something does.
        self.heard_at = monotonic()
        self._is_given_up = False

    def __enter__(self) -> Listening:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancels = task, task.cancelling()
        self._listeners.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listeners.all.discard(self)
        if not self._is_given_up:
            return
        # Who is cancelled by others too goes their way.
        is_ours = self._task.uncancel() <= self._cancels
        if is_ours and kind is asyncio.CancelledError:
            raise TimeoutError(f"nothing came for {self._listeners.seconds:g} s") from None

    def give_up(self) -> None:
        """End the wait of the task; it is told once."""
        self._listeners.all.discard(self)
        self._is_given_up = True
        self._task.cancel()
