"""Loops, threads and the process around them.

This file is about where code runs: event loops of our own, ways for a thread or
a task to wait for the other, guards against use after a fork, and what the
present process is (a worker or not). It is the only file that knows uvloop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


# Waiting --------------------------------------------------------------------------------


class Stopped(GeneratorExit):
    """Raised in a thread that waits, when what it works for is being closed.

    It is a GeneratorExit, so the generators on the way out close as they would
    for ``generator.close()``.
    """


class ThreadWaiter:
    """Lets one thread wait until something is so; any thread may wake or stop it."""

    def __init__(self) -> None:
        # Free when it rings. An event of threading's could be left half-way by an interrupt.
        self._bell = threading.Lock()
        self._bell.acquire()
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
            self._bell.acquire(False)
            self._waiting = True
            if not ready() and not self.stopped:
                self._bell.acquire(timeout=-1 if left is None else min(left, threading.TIMEOUT_MAX))
            self._waiting = False
        return True

    def wake(self) -> None:
        """Make a waiting thread look again."""
        if self._waiting:
            self._ring()

    def stop(self) -> None:
        """End this and every later wait with Stopped."""
        self.stopped = True
        self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            # Another thread may have let it ring just now.
            with contextlib.suppress(RuntimeError):
                self._bell.release()


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


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function on a loop, from any thread; a closed loop has nobody left to serve."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def release(future: asyncio.Future[None]) -> None:
    """Let whoever awaits the future go on; to be called on its loop."""
    if not future.done():
        future.set_result(None)


def begin_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    name: str,
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    """Begin a task of ours; to be called on its loop.

    A loop may be closed under the task. The iterator's own warning says so, once, and
    asyncio's message for every task that was pending says no more.
    """
    task = loop.create_task(work, name=name, context=context)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def is_being_cancelled() -> bool:
    """Whether somebody has told the present task to end."""
    task = None if running_loop() is None else asyncio.current_task()
    return task is not None and task.cancelling() > 0


def not_cancelled(error: asyncio.CancelledError) -> RuntimeError:
    """Return the error for a CancelledError that nobody asked for.

    A source raises one that awaits a task which was cancelled. It must not pass for the end
    of those who read it.
    """
    failure = RuntimeError("a source raised CancelledError, but nobody had cancelled its reader")
    failure.__cause__ = error
    return failure


# Loops of our own -----------------------------------------------------------------------


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for our own use: uvloop's where it is installed."""
    fill_standard_descriptors()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop in a daemon thread of its own, for callers that have none."""

    def __init__(self, name: str = "asyncloader loop") -> None:
        self.loop = new_event_loop()
        self._ended: Future[None] = uncancellable()
        self._thread = threading.Thread(
            target=_run_loop, args=(self.loop, self._ended), name=name, daemon=True
        )
        self._thread.start()
        _loop_threads.add(self)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it returns."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            # Whoever stops waiting (Ctrl-C) stops the work as well.
            future.cancel()
            raise

    def finished(self, result: Any) -> Any:
        """Return a result, awaiting it on the loop as long as there is something to await."""
        while inspect.isawaitable(result):
            result = self.call(_result(result))
        return result

    def close(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, at most so long."""
        _loop_threads.discard(self)
        call_soon(self.loop, self.loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    async def aclose(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, from another loop."""
        _loop_threads.discard(self)
        call_soon(self.loop, self.loop.stop)
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=seconds)

    def __del__(self) -> None:
        call_soon(self.loop, self.loop.stop)


async def _result(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _run_loop(loop: asyncio.AbstractEventLoop, ended: Future[None]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        winding_up = loop.create_task(_wind_up())
        winding_up.add_done_callback(lambda _: loop.stop())
        # It may be told once more to stop, which is no reason to leave this undone.
        while not winding_up.done():
            loop.run_forever()
        loop.close()
        ended.set_result(None)


async def _wind_up() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_loop_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _close_loop_threads() -> None:
    # A daemon thread that still runs while the interpreter is torn down may crash it.
    for thread in list(_loop_threads):
        thread.close(seconds=1.0)


def uncancellable() -> Future[Any]:
    """A future that who waits may leave, by a cancellation too, and whose result may still come."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of its own and wait for its result."""
    return await asyncio.wrap_future(call_in_thread(function, *args))


def call_in_thread(function: Callable[..., T], *args: Any) -> Future[T]:
    """Begin to call a function in a thread of its own."""
    future: Future[T] = uncancellable()
    thread = threading.Thread(
        target=_call_into, args=(future, function, *args), name="asyncloader work", daemon=True
    )
    thread.start()
    return future


def _call_into(future: Future[T], function: Callable[..., T], *args: Any) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - whoever waits raises it
        future.set_exception(error)
    else:
        future.set_result(result)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    return asyncio._get_running_loop()


# Descriptors ----------------------------------------------------------------------------


def fill_standard_descriptors() -> None:
    """Open the null device where standard input, output or errors were closed.

    A channel of ours in such a place would get what any library prints, and uvloop aborts the
    process when it closes a descriptor there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)


_LAST_STANDARD = 2


# Forks ----------------------------------------------------------------------------------


def _forget_threads() -> None:
    # Threads do not survive a fork.
    _loop_threads.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_threads)


# Workers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerInfo:
    """Which of how many workers this process is.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def named(pipe, info):
    ...     return pipe.map(lambda number: f"{number} of worker {info.worker_id}")
    >>> pipe = IterableWrapper(range(2)).sharding_filter()
    >>> service = MultiProcessingReadingService(2, worker_init_fn=named)
    >>> with DataLoader2(pipe, None, service) as loader:
    ...     list(loader)
    ['0 of worker 0', '1 of worker 1']
    """

    num_workers: int
    worker_id: int


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return what worker this process is, or None outside of workers.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(2)).sharding_filter().map(lambda number: get_worker_info())
    >>> with DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader:
    ...     list(loader)
    [WorkerInfo(num_workers=2, worker_id=0), WorkerInfo(num_workers=2, worker_id=1)]
    >>> get_worker_info() is None
    True
    """
    return _worker_info


def set_worker_info(info: WorkerInfo) -> None:
    """Make this process a worker."""
    global _worker_info
    _worker_info = info
