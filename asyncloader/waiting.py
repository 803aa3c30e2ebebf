"""Waiting: a thread or a task that waits until something is so, and those who wake it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any


class Stopped(GeneratorExit):
    """Raised in a thread that waits, when what it works for is being closed.

    It is a GeneratorExit, so the generators on the way out close as they would
    for ``generator.close()``.
    """


class Bell:
    """Rings until one thread has heard it.

    Any thread may ring it, wherever it was interrupted: an event of threading's may be left
    half-way by a signal, and is locked while garbage is collected that may want to ring.
    """

    def __init__(self) -> None:
        # Free while it rings.
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread that listens, now or when it begins to."""
        if self._silence.locked():
            # Another thread may have let it ring just now.
            with contextlib.suppress(RuntimeError):
                self._silence.release()

    def heard(self, timeout: float | None = None) -> bool:
        """Wait until it rings, and end that; whether it did within so many seconds."""
        seconds = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        return self._silence.acquire(timeout=seconds)

    def hush(self) -> None:
        """End what rings."""
        self._silence.acquire(False)


class ThreadWaiter:
    """Lets one thread wait until something is so; any thread may wake or stop it."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._waiting = False
        self.stopped = False

    def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until ``ready()``; raise Stopped once ``stop()`` was called.

        Returns whether it is ready: False if it was not within ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not ready():
            if self.stopped:
                raise Stopped
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            # Announce the wait before the last look, so that no wake falls between.
            self._bell.hush()
            self._waiting = True
            if not ready() and not self.stopped:
                self._bell.heard(left)
            self._waiting = False
        return True

    def wake(self) -> None:
        """Make a waiting thread look again."""
        if self._waiting:
            self._bell.ring()

    def stop(self) -> None:
        """End this and every later wait with Stopped."""
        self.stopped = True
        self._bell.ring()


class LoopWaiter:
    """Lets one task wait until something is so; any thread may wake it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()``."""
        while not ready():
            # Announce the wait before the last look, so that no wake falls between.
            self._future = future = self._loop.create_future()
            if not ready():
                try:
                    await future
                finally:
                    self._future = None

    async def news(self) -> None:
        """Wait for the next ``wake``; for one who is woken on the loop only."""
        self._future = future = self._loop.create_future()
        try:
            await future
        finally:
            self._future = None

    def wake(self) -> None:
        """Make a waiting task look again."""
        future = self._future
        if future is None:
            return
        if asyncio._get_running_loop() is self._loop:
            release(future)
        else:
            call_soon(self._loop, release, future)
        # An interrupt before this, and it is woken once more.
        if self._future is future:
            self._future = None


class Patience:
    """Calls a function once a loop could run for so many seconds, unless it is cancelled before.

    Where a whole machine stands still for a while, or a program is stopped and goes on, those
    who are waited for do so as well: whatever such a time is, it counts for a fifth of what
    they have.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, function: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._function = function
        self._tick = seconds / _TICKS
        self._left = _TICKS
        self._wait()

    def cancel(self) -> None:
        """Call nothing; idempotent."""
        self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._tick, self._look)

    def _look(self) -> None:
        self._left -= 1
        if self._left:
            self._wait()
        else:
            self._function()


_TICKS = 5


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function on a loop, from any thread; a closed loop has nobody left to serve."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def release(future: asyncio.Future[None]) -> None:
    """Wake the task that awaits the future; to be called on its loop."""
    if not future.done():
        future.set_result(None)
