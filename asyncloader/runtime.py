"""Loops, and threads, of our own, descriptors for them, and their end with the interpreter.

This is the only file that knows uvloop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import errno
import inspect
import os
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from asyncloader.errors import ResourceExhausted
from asyncloader.waiting import call_soon

T = TypeVar("T")


# Loops ----------------------------------------------------------------------------------


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    return asyncio._get_running_loop()


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


class Exit:
    """Stands for the result of a coroutine that raised SystemExit, which would end its loop."""

    __slots__ = ("error",)

    def __init__(self, error: SystemExit) -> None:
        self.error = error


async def contained(function: Callable[..., Awaitable[T]], *args: Any) -> T | Exit:
    """Await ``function(*args)`` in a task of its own; ``released`` gives its result."""
    try:
        return await function(*args)
    except SystemExit as error:
        return Exit(error)


def released(result: T | Exit) -> T:
    """Return the result of a function that was contained, or raise the SystemExit it raised."""
    if isinstance(result, Exit):
        raise result.error
    return result


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


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for our own use: uvloop's where it is installed."""
    # uvloop ends the process where its first loop finds out half-way that there are too few.
    with descriptors_for("an event loop", _DESCRIPTORS_OF_A_LOOP):
        fill_standard_descriptors()
        try:
            import uvloop
        except ImportError:
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()


# The first of a process takes the most.
_DESCRIPTORS_OF_A_LOOP = 8


# Descriptors ----------------------------------------------------------------------------


@contextlib.contextmanager
def descriptors_for(what: str, count: int = 0) -> Iterator[None]:
    """Raise ResourceExhausted where the process has no file descriptor left for what is made here.

    That is said before anything is made, where there are not ``count`` of them.
    """
    try:
        require_descriptors(count)
        yield
    except OSError as error:
        if error.errno not in _NONE_LEFT:
            raise
        raise without_descriptor(what, os.strerror(error.errno)) from error


def require_descriptors(count: int) -> None:
    """Raise OSError unless so many files can be opened now."""
    with contextlib.ExitStack() as reserve:
        for _ in range(count):
            reserve.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def without_descriptor(what: str, reason: str) -> ResourceExhausted:
    """Return the error for something that got no file descriptor."""
    return ResourceExhausted(
        f"no file descriptor is left for {what} ({reason}{_limit()});"
        " close files, or raise the limit, by `ulimit -n` or resource.setrlimit"
    )


def _limit() -> str:
    if sys.platform == "win32":
        return ""
    import resource

    return f"; at most {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"


_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


# Processes and threads ------------------------------------------------------------------


@contextlib.contextmanager
def process_for(what: str) -> Iterator[None]:
    """Raise ResourceExhausted where the system allows no process more for what is made here."""
    try:
        yield
    except BlockingIOError as error:
        raise _without_process(f"process for {what}", error.strerror or str(error)) from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; ResourceExhausted, and nothing is left of it, at the thread limit."""
    try:
        thread.start()
    except RuntimeError as error:
        # The other reason is that the interpreter ends.
        if _NO_THREAD not in str(error):
            raise
        raise _without_process(f"thread for {thread.name!r}", _NO_THREAD) from error


_NO_THREAD = "can't start new thread"


def _without_process(what: str, reason: str) -> ResourceExhausted:
    """Return the error for a process or a thread that the system does not allow."""
    return ResourceExhausted(
        f"the system allows no {what} ({reason}{_limit_of_processes()}); end other processes or"
        " threads, or raise the limit, by `ulimit -u` or resource.setrlimit, or the container's"
    )


def _limit_of_processes() -> str:
    if sys.platform == "win32":
        return ""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; this user may have {limit} processes and threads"


def fill_standard_descriptors() -> None:
    """Open the null device where standard input, output or errors were closed.

    A channel of ours in such a place would get what any library prints, and uvloop aborts the
    process when it closes a descriptor there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)


_LAST_STANDARD = 2


# The end of the interpreter -------------------------------------------------------------


def at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when the interpreter exits, the latest first, whatever others raise.

    Ctrl-C disturbs none of them. From then on it ends the process without a word, as it does
    a little later in any case, when the interpreter no longer handles signals.
    """
    _exit_functions.append(function)
    # They come before those of the modules that were imported before this one.
    atexit.unregister(_run_exit_functions)
    atexit.register(_run_exit_functions)
    return function


def _run_exit_functions() -> None:
    with _interrupts_ignored(), contextlib.ExitStack() as functions:
        for function in _exit_functions:
            functions.callback(function)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    # A program that handles Ctrl-C in its own way does so to the end.
    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_raised or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            # It may be no file, or a closed one, or None.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_exit_functions: list[Callable[[], None]] = []


# Loops in threads -----------------------------------------------------------------------


class LoopThread:
    """An event loop in a daemon thread of its own, for callers that have none."""

    def __init__(self, name: str = "asyncloader loop") -> None:
        self._running = running = _Running()
        self._thread = threading.Thread(target=running.run, name=name, daemon=True)
        try:
            start_thread(self._thread)
            # The thread makes the loop: an interrupt, which comes here, finds none half made.
            self.loop = running.loop.result()
        except BaseException:
            running.stop()
            raise
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

    def stop(self) -> None:
        """Let the loop and its thread end, without waiting for them; from any thread."""
        self._running.stop()

    def close(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, at most so long."""
        _loop_threads.discard(self)
        self._running.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    async def aclose(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, from another loop."""
        _loop_threads.discard(self)
        self._running.stop()
        await asyncio.wait([asyncio.wrap_future(self._running.ended)], timeout=seconds)

    def __del__(self) -> None:
        self._running.stop()


class _Running:
    """A loop in its thread, from where it is made to where it is closed."""

    def __init__(self) -> None:
        self.loop: Future[asyncio.AbstractEventLoop] = uncancellable()
        self.ended: Future[None] = uncancellable()
        self._is_stopped = False

    def stop(self) -> None:
        """Let the loop end, from any thread and at any moment."""
        self._is_stopped = True
        if self.loop.done() and self.loop.exception() is None:
            loop = self.loop.result()
            call_soon(loop, loop.stop)

    def run(self) -> None:
        """Run the loop until it is stopped."""
        try:
            loop = new_event_loop()
        except BaseException as error:  # noqa: BLE001 - whoever wants the loop raises it
            self.loop.set_exception(error)
            return
        asyncio.set_event_loop(loop)
        self.loop.set_result(loop)
        while not self._is_stopped:
            # Whoever waits for a task that raises one of these is told. Others need the loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        winding_up = loop.create_task(_wind_up())
        winding_up.add_done_callback(lambda _: loop.stop())
        # It may be told once more to stop, which is no reason to leave this undone.
        while not winding_up.done():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        loop.close()
        self.ended.set_result(None)


async def _result(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _wind_up() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_loop_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@at_exit
def _close_loop_threads() -> None:
    # A daemon thread that still runs while the interpreter is torn down may crash it.
    for thread in list(_loop_threads):
        thread.close(seconds=1.0)


def _forget_threads() -> None:
    # Threads do not survive a fork.
    _loop_threads.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_threads)


# Calls in threads -----------------------------------------------------------------------


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of its own and wait for its result."""
    future: Future[T] = uncancellable()
    thread = threading.Thread(
        target=_call_into, args=(future, function, *args), name="asyncloader work", daemon=True
    )
    start_thread(thread)
    return await asyncio.wrap_future(future)


def _call_into(future: Future[T], function: Callable[..., T], *args: Any) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - whoever waits raises it
        future.set_exception(error)
    else:
        future.set_result(result)


def uncancellable() -> Future[Any]:
    """A future that survives the cancellation of whoever waits for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
