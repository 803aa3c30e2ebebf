"""Threads and tasks that wait for a condition, and waking them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any


class Stopped(GeneratorExit):
    """Raised in a waiting thread when the pass that it works for is being closed.

    It is a GeneratorExit, so the generators on the way out close as they would
    for ``generator.close()``.
    """


class AwaitsOthers:
    """Waits in its methods for somebody outside of the epoch, whom its frames do not show."""

    def awaited(self) -> str:
        """Return whom or what it waits for."""
        raise NotImplementedError

    def their_stack(self) -> tuple[str, ...]:
        """Return where those stand, as far as that can be known."""
        return ()


def do_nothing(*_: object) -> None:
    """Ignore what happened."""


class Bell:
    """A signal to one thread: it stays on until the thread has received it.

    Any thread may ring it at any moment, also in a signal handler or a garbage collection,
    where a threading.Event could deadlock or be left half set.
    """

    def __init__(self) -> None:
        # Free while it rings: to acquire it resets the bell.
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread that listens, now or when it begins to."""
        if self._silence.locked():
            # Another thread has just rung it.
            with contextlib.suppress(RuntimeError):
                self._silence.release()

    def heard(self, timeout: float | None = None) -> bool:
        """Wait until it rings and reset it; False if it did not ring within ``timeout`` seconds."""
        seconds = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        return self._silence.acquire(timeout=seconds)


class ThreadWaiter(Bell):
    """Lets one thread wait for a condition; any thread may wake or stop it."""

    def __init__(self) -> None:
        super().__init__()
        #: Whether the thread waits.
        self.is_waiting = False
        self.stopped = False

    def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until ``ready()``; raise Stopped once ``stop()`` was called.

        Returns whether it is ready: False if it was not within ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        try:
            # Announce the wait before the check, so that no wake is missed.
            self._silence.acquire(False)
            self.is_waiting = True
            while True:
                if ready():
                    return True
                if self.stopped:
                    raise Stopped
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self.heard(left)
        finally:
            self.is_waiting = False

    def wake(self) -> None:
        """Make a waiting thread check again."""
        if self.is_waiting:
            self.ring()

    def wake_soon(self) -> None:
        """Make it check again at once: a thread is not asked to wait for several."""
        self.wake()

    def stop(self) -> None:
        """End this and every later wait with Stopped."""
        self.stopped = True
        self.ring()


class LoopWaiter:
    """Lets one task wait for a condition; any thread may wake it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()``."""
        try:
            while True:
                # Announce the wait before the check, so that no wake is missed.
                self._future = future = self._loop.create_future()
                if ready():
                    return
                await future
        finally:
            self._future = None

    async def news(self) -> None:
        """Wait for the next ``wake``; only if it is called on the loop."""
        self._future = future = self._loop.create_future()
        try:
            await future
        finally:
            self._future = None

    def wake(self) -> None:
        """Make a waiting task check again."""
        future = self._future
        if future is None:
            return
        if asyncio._get_running_loop() is self._loop:
            release(future)
        else:
            call_soon(self._loop, release, future)
        # After an interrupt before this line, the task is just woken twice.
        if self._future is future:
            self._future = None

    def wake_soon(self) -> None:
        """Make a waiting task check again, at once or together with what comes after this."""
        self.wake()


class GroupWaiter(LoopWaiter):
    """A LoopWaiter for what comes from a thread; where much comes quickly, it waits for several.

    To wake the task takes as long as to make a small item. So once something came at once, by
    ``wake_soon``, the next wait is for ``seconds``, unless ``wake`` is called before; and so on,
    as long as several come each time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        super().__init__(loop)
        self._seconds = seconds
        self._comes_quickly = False
        self._is_patient = False
        # How often something came since the last wait ended.
        self._came = 0

    async def until(self, ready: Callable[[], bool]) -> None:
        if self._comes_quickly:
            await self._until_several(ready)
            self._comes_quickly = self._came > 1
        else:
            begun = time.perf_counter()
            await super().until(ready)
            is_quick = time.perf_counter() - begun < self._seconds / 2
            self._comes_quickly = is_quick and self._came > 0
        self._came = 0

    async def _until_several(self, ready: Callable[[], bool]) -> None:
        self._is_patient = True
        timer = self._loop.call_later(self._seconds, self._look)
        try:
            await super().until(ready)
        finally:
            timer.cancel()
            self._is_patient = False

    def wait_for_one(self) -> None:
        """Wait for no more than one from now on, however quickly they come."""
        self._seconds = 0.0

    def wake_soon(self) -> None:
        self._came += 1
        if not self._is_patient:
            self.wake()

    def _look(self) -> None:
        # Said before the look, so that whoever comes after it wakes the task.
        self._is_patient = False
        self.wake()


class Patience:
    """Calls a function after its loop could run for ``seconds``, unless it is cancelled.

    If the machine or the program is stopped for a while, the processes that it waits for are
    stopped too. So such a time counts at most for a fifth of ``seconds``.
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


class WaitTimer:
    """Calls a function once a wait has lasted ``seconds``; short waits cost almost nothing.

    The loop's timer is set for the first wait, and set again only when it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        # Held only during a wait: the loop's timer may outlive the waiting code.
        self._ring: Callable[[], object] = do_nothing
        self._at = math.inf
        self._is_set = False

    def begin(self, ring: Callable[[], object]) -> None:
        """Note that a wait begins; ``ring`` is called if it gets long."""
        self._ring = ring
        self._at = self._loop.time() + self._seconds
        if not self._is_set:
            self._set()

    def end(self) -> None:
        """Note that the wait is over."""
        self._ring = do_nothing
        self._at = math.inf

    def _set(self) -> None:
        self._is_set = True
        self._loop.call_at(self._at, self._look)

    def _look(self) -> None:
        self._is_set = False
        if self._loop.time() >= self._at - _EARLY:
            self._at = math.inf
            self._ring()
        elif self._at < math.inf:
            self._set()


#: Timers may fire one tick of the loop's clock early; uvloop's ticks are milliseconds.
_EARLY = 0.001


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function on a loop, from any thread; do nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def release(future: asyncio.Future[None]) -> None:
    """Wake the task that awaits the future; call this on its loop."""
    if not future.done():
        future.set_result(None)
