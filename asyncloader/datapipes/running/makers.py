"""Threads that make one thing each.

This file is about ``Makers``: each thing is made in a thread of its own, at the home of
the pass, and goes on whether or not anybody takes what was made before it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from asyncloader.datapipes.running.home import PLACE, Home, ended_threads, present_waiter, thread_at
from asyncloader.runtime import LoopThread, running_loop, start_thread
from asyncloader.waiting import Stopped, ThreadWaiter

T = TypeVar("T")


class Making(Generic[T]):
    """One thing that is being made, or was."""

    def __init__(self) -> None:
        self.is_done = False
        self._result: Any = None
        self._error: BaseException | None = None

    @classmethod
    def done(cls, result: T) -> Making[T]:
        """Return what is there already."""
        making = cls()
        making.is_done, making._result = True, result
        return making

    @classmethod
    def failed(cls, error: BaseException) -> Making[T]:
        """Return what cannot be made."""
        making = cls()
        making.is_done, making._error = True, error
        return making

    def run(self, function: Callable[..., T], *args: Any) -> None:
        """Make it."""
        try:
            self._result = function(*args)
        except BaseException as error:  # noqa: BLE001 - user code ran; whoever takes it raises it
            self._error = error
        self.is_done = True

    def outcome(self) -> T:
        """Return what was made, or raise what kept it from being made."""
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result


class Makers:
    """Starts threads, and ends them when it is left."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiter = present_waiter()
        self._threads: dict[threading.Thread, ThreadWaiter] = {}
        # A thread may begin others while this is left.
        self._lock = threading.Lock()
        self._is_left = False

    def __enter__(self) -> Makers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_left = True
            threads = dict(self._threads)
        for waiter in threads.values():
            waiter.stop()
        ended_threads(threads)

    def start(self, function: Callable[..., T], *args: Any) -> Making[T]:
        """Begin to make something; what waits in there is stopped when the makers are left."""
        making: Making[T] = Making()
        waiter = ThreadWaiter()
        thread = thread_at(
            "asyncloader maker", self._home, waiter, self._make, making, function, *args
        )
        with self._lock:
            if self._is_left:
                raise Stopped
            self._threads[thread] = waiter
            try:
                start_thread(thread)
            except BaseException:
                del self._threads[thread]
                raise
        return making

    def outcome(self, making: Making[T]) -> T:
        """Wait until something is made, and return it or raise the error."""
        self.until(lambda: making.is_done)
        return making.outcome()

    def until(self, ready: Callable[[], bool]) -> None:
        """Let the consumer wait until something is so; it looks whenever something was made."""
        self._waiter.until(ready)

    def wake(self) -> None:
        """Make the consumer look again; from any thread."""
        self._waiter.wake()

    def _make(self, making: Making[T], function: Callable[..., T], *args: Any) -> None:
        making.run(function, *args)
        self._threads.pop(threading.current_thread(), None)
        self._waiter.wake()


@contextlib.contextmanager
def some_home() -> Iterator[Home]:
    """Give the home of the running pass, or one of its own."""
    place = PLACE.get()
    if place is not None and place[0].loop is not running_loop():
        yield place[0]
        return
    thread = LoopThread()
    try:
        yield Home(thread.loop)
    finally:
        thread.close()
