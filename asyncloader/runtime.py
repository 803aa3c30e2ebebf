"""Our own event loops and threads, their file descriptors, and their end at interpreter exit.

This is the only file that knows uvloop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - uvloop needs it, and it cannot be imported at exit
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
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from asyncloader.errors import ResourceExhausted
from asyncloader.system import (
    descriptor_limits,
    in_forked_child,
    may_use_uvloop,
    process_limit,
    unless_exiting,
)
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
    """Begin a task of ours at the next turn of its loop; call this on that loop.

    A task factory of the user has no part in it: asyncio.eager_task_factory would let the task run
    before anybody knows of it. The loop may be closed while the task is pending. The iterator warns
    about that once, so asyncio's message for every such task is turned off.
    """
    task = asyncio.Task(work, loop=loop, name=name, context=context)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class Exit:
    """The result of a coroutine that raised an error that would have ended its loop."""

    __slots__ = ("error",)

    def __init__(self, error: SystemExit | KeyboardInterrupt) -> None:
        self.error = error


async def contained(function: Callable[..., Awaitable[T]], *args: Any) -> T | Exit:
    """Await ``function(*args)`` and catch SystemExit; ``released`` returns or raises it."""
    try:
        return await function(*args)
    except SystemExit as error:
        return Exit(error)


async def holding_interrupts(function: Callable[..., Awaitable[T]], *args: Any) -> T | Exit:
    """Await it like ``contained``, for a task that another one waits for; hold Ctrl-C back too.

    An interrupt must come out of the task that waits, where ``released`` raises it: otherwise
    that task would be left pending in a loop that runs no more.
    """
    try:
        return await function(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        return Exit(error)


def finished_at_once(work: Coroutine[Any, Any, T], otherwise: str) -> T:
    """Return the result of a coroutine that waits for nothing; TypeError if it has to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # of the coroutine
    work.close()
    raise TypeError(otherwise)


def begin_closing(function: Callable[..., Awaitable[T]], *args: Any) -> asyncio.Task[T | Exit]:
    """Begin a task that closes something, for which the present task waits at once.

    A loop that ends cancels all of its tasks, also one whose turn has not come yet; this one
    begins its work even then.
    """

    async def close() -> T | Exit:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cast("asyncio.Task[Any]", asyncio.current_task()).uncancel()
        return await holding_interrupts(function, *args)

    work = close()
    # It waits for its turn inside the `try`.
    work.send(None)
    return begin_task(asyncio.get_running_loop(), work, "asyncloader closing")


def released(result: T | Exit) -> T:
    """Return such a task's result, or raise what would have ended its loop."""
    if isinstance(result, Exit):
        raise result.error
    return result


def is_being_cancelled() -> bool:
    """Whether the present task is being cancelled."""
    task = None if running_loop() is None else asyncio.current_task()
    return task is not None and task.cancelling() > 0


def not_cancelled(error: asyncio.CancelledError) -> RuntimeError:
    """Return the error for a CancelledError that nobody asked for.

    A source raises one if it awaits a task that was cancelled. It must not look like a
    cancellation of its reader.
    """
    failure = RuntimeError("a source raised CancelledError, but nobody had cancelled its reader")
    failure.__cause__ = error
    return failure


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for our own use: uvloop's if it is installed and can run here."""
    # uvloop aborts the process if descriptors run out while its first loop is made.
    with descriptors_for("an event loop", _DESCRIPTORS_OF_A_LOOP):
        fill_standard_descriptors()
        with contextlib.suppress(ImportError):
            import uvloop

            if may_use_uvloop():
                return uvloop.new_event_loop()
        return asyncio.new_event_loop()


# The first loop of a process needs the most.
_DESCRIPTORS_OF_A_LOOP = 8


# Descriptors ----------------------------------------------------------------------------


@contextlib.contextmanager
def descriptors_for(what: str, count: int = 0) -> Iterator[None]:
    """Raise ResourceExhausted if no file descriptor is left for what the block makes.

    If fewer than ``count`` are left, raise it before the block runs.
    """
    try:
        require_descriptors(count)
        yield
    except OSError as error:
        if error.errno not in _NONE_LEFT:
            raise
        raise without_descriptor(what, os.strerror(error.errno)) from error


def require_descriptors(count: int) -> None:
    """Raise OSError unless ``count`` files can be opened now."""
    with contextlib.ExitStack() as reserve:
        for _ in range(count):
            reserve.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def without_descriptor(what: str, reason: str) -> ResourceExhausted:
    """Return the error for missing file descriptors."""
    return ResourceExhausted(
        f"no file descriptor is left for {what} ({reason}{_limit()});"
        " close files, or raise the limit, by `ulimit -n` or resource.setrlimit"
    )


def _limit() -> str:
    limits = descriptor_limits()
    return "" if limits is None else f"; at most {limits[0]}"


_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


# Processes and threads ------------------------------------------------------------------


@contextlib.contextmanager
def process_for(what: str) -> Iterator[None]:
    """Raise ResourceExhausted if the system allows no more processes for what the block makes."""
    try:
        yield
    except BlockingIOError as error:
        raise _without_process(f"process for {what}", error.strerror or str(error)) from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raise ResourceExhausted at the thread limit, and clean up."""
    _refuse_green_threads()
    if sys.is_finalizing():
        # Later versions of Python say so themselves. In 3.11 the thread never runs.
        raise RuntimeError("can't create new thread at interpreter shutdown")
    try:
        thread.start()
    except RuntimeError as error:
        # Otherwise the interpreter is ending.
        if _NO_THREAD not in str(error):
            raise
        raise _without_process(f"thread for {thread.name!r}", _NO_THREAD) from error


_NO_THREAD = "can't start new thread"


def _refuse_green_threads() -> None:
    """Raise RuntimeError where a thread would be a coroutine of its maker's thread.

    Our threads wait for the kernel, so such a one would never let its maker continue.
    """
    for module, is_patched, parts, patch in _GREEN:
        patcher = sys.modules.get(module)
        if patcher is not None and any(map(getattr(patcher, is_patched), parts)):
            raise RuntimeError(
                f"{patch}() has replaced the threads that a loader needs by coroutines; leave"
                f" these out, {patch}({', '.join(f'{part}=False' for part in parts.values())}),"
                " or use the loader in another process"
            )


#: What tells who has patched what, and the parts that must be as they were: as the library names
#: them when it is asked, and when it patches.
_GREEN: tuple[tuple[str, str, dict[str, str], str], ...] = (
    (
        "gevent.monkey",
        "is_module_patched",
        {"_thread": "thread", **{name: name for name in ("queue", "select", "os", "subprocess")}},
        "gevent.monkey.patch_all",
    ),
    (
        "eventlet.patcher",
        "is_monkey_patched",
        {"thread": "thread", "select": "select"},
        "eventlet.monkey_patch",
    ),
)


def require_process() -> None:
    """Raise ResourceExhausted unless one more process, or thread, can be started now."""
    probe = threading.Thread(name="asyncloader probe")
    start_thread(probe)
    probe.join()


def _without_process(what: str, reason: str) -> ResourceExhausted:
    """Return the error for a process or thread beyond the system's limit."""
    return ResourceExhausted(
        f"the system allows no {what} ({reason}{_limit_of_processes()}); end other processes or"
        " threads, or raise the limit, by `ulimit -u` or resource.setrlimit, or the container's"
    )


def _limit_of_processes() -> str:
    limit = process_limit()
    return "" if limit is None else f"; this user may have {limit} processes and threads"


def fill_standard_descriptors() -> None:
    """Open the null device where standard input, output or errors were closed.

    Otherwise a channel of ours could get such a number and receive what libraries print, and
    uvloop aborts the process when it closes one of these descriptors.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(fd, True)
    os.close(fd)


_LAST_STANDARD = 2


# The end of the interpreter -------------------------------------------------------------


def at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function when the interpreter exits: the latest first, even if others raise.

    Ctrl-C does not interrupt them. Afterwards it ends the process silently, as it always does
    a little later, when the interpreter no longer handles signals.
    """
    _exit_functions.append(function)
    # They run before the exit functions of modules that were imported before this one.
    atexit.unregister(_run_exit_functions)
    atexit.register(_run_exit_functions)
    return function


def leave_if_exiting() -> None:
    """While the interpreter exits, end the present thread silently, unless it is the main one.

    Only daemon threads are left by then, and Python ends them without a word a little later. An
    error of what has been closed under them would be printed.
    """
    if _is_exiting and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def _run_exit_functions() -> None:
    global _is_exiting
    _is_exiting = True
    try:
        is_ignored = _ignore_interrupts()
    except KeyboardInterrupt:
        # As if it had come a moment later.
        is_ignored = _ignore_interrupts()
    try:
        with contextlib.ExitStack() as functions:
            for function in _exit_functions:
                functions.callback(function)
    finally:
        if is_ignored:
            for stream in (sys.stdout, sys.stderr):
                # It may be closed, None, or no file at all.
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignore_interrupts() -> bool:
    """Ignore Ctrl-C from here on; False where it does not raise KeyboardInterrupt here."""
    # A program with its own Ctrl-C handler keeps it.
    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_raised or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return True


_exit_functions: list[Callable[[], None]] = []
_is_exiting = False


# Loops in threads -----------------------------------------------------------------------


#: A loop that calls nothing for so long stands still.
_STILL_SECONDS = 0.5


class LoopThread:
    """An event loop in a daemon thread of its own, for callers that have none.

    The thread starts when somebody asks for the loop, as many never do.
    """

    def __init__(self, name: str = "asyncloader loop") -> None:
        self._name = name
        self._starting = threading.Lock()
        self._is_stopped = False
        self._running: _Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop or self.start()

    @property
    def present_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop, if it was started."""
        return self._loop

    @property
    def ident(self) -> int | None:
        """The number of the thread, once it runs."""
        return None if self._running is None else self._running.thread.ident

    def start(self) -> asyncio.AbstractEventLoop:
        """Start the thread, unless it was started; return the loop."""
        with self._starting:
            if self._loop is not None:
                return self._loop
            if self._is_stopped:
                raise RuntimeError("this loop was closed before it was started")
            running = _Running(self._name)
            try:
                start_thread(running.thread)
                # The thread makes the loop, because Ctrl-C could interrupt that here.
                loop = running.loop.result()
            except BaseException:
                running.stop()
                raise
            self._running, self._loop = running, loop
            _loop_threads.add(self)
            if self._is_stopped:
                # Another thread did so meanwhile, when there was nothing to stop yet.
                running.stop()
            return loop

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a function's coroutine on the loop and wait for what it returns.

        The loop's thread makes the coroutine, because Ctrl-C could interrupt that here, and
        then nobody would await it.
        """
        answer: Future[T] = Future()
        try:
            self._ask(function, answer)
            return answer.result()
        except BaseException:
            # A caller that stops waiting (Ctrl-C) cancels the work too.
            answer.cancel()
            raise

    def call_unless_still(
        self, function: Callable[[], Coroutine[Any, Any, None]], seconds: float
    ) -> threading.Thread | None:
        """Do the same, unless the loop stands still when so many seconds are over.

        Then the loop does it when it goes on, and stops; this returns its thread.
        """
        answer: Future[None] = Future()
        try:
            self._ask(function, answer)
            wait([answer], seconds - _STILL_SECONDS)
            if answer.done() or not self._is_still():
                answer.result()
                return None
        except BaseException:
            answer.cancel()
            raise
        assert self._running is not None
        answer.add_done_callback(lambda _: self.stop())
        _loop_threads.discard(self)
        return self._running.thread

    def _ask(self, function: Callable[[], Coroutine[Any, Any, T]], answer: Future[T]) -> None:
        self.loop.call_soon_threadsafe(_answer, function, answer)

    def _is_still(self) -> bool:
        lives = threading.Event()
        self.loop.call_soon_threadsafe(lives.set)
        return not lives.wait(_STILL_SECONDS)

    def finished(self, result: Any) -> Any:
        """Return a result; while it is awaitable, await it on the loop."""
        while inspect.isawaitable(result):
            result = self.call(partial(_result, result))
        return result

    def stop(self) -> None:
        """Let the loop and its thread end, without waiting for them; from any thread."""
        self._is_stopped = True
        if self._running is not None:
            self._running.stop()

    def close(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, at most ``seconds``."""
        _loop_threads.discard(self)
        self.stop()
        if self._running is not None and self._running.thread is not threading.current_thread():
            self._running.thread.join(seconds)

    async def aclose(self, seconds: float = 3.0) -> None:
        """Stop the loop and wait for its thread, from another loop."""
        _loop_threads.discard(self)
        self.stop()
        if self._running is not None:
            await asyncio.wait([asyncio.wrap_future(self._running.ended)], timeout=seconds)

    @unless_exiting
    def __del__(self) -> None:
        self.stop()


class _Running:
    """A loop in its thread, from its creation to its close."""

    def __init__(self, name: str) -> None:
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
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
        except BaseException as error:  # noqa: BLE001 - the caller that wants the loop raises it
            self.loop.set_exception(error)
            return
        asyncio.set_event_loop(loop)
        self.loop.set_result(loop)
        while not self._is_stopped:
            # The task's waiter gets this error too; other tasks still need the loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        winding_up = loop.create_task(_wind_up())
        winding_up.add_done_callback(lambda _: loop.stop())
        # A second stop must not prevent this cleanup.
        while not winding_up.done():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        loop.close()
        self.ended.set_result(None)


def _answer(function: Callable[[], Coroutine[Any, Any, T]], answer: Future[T]) -> None:
    """Run a function's coroutine as a task of this loop; ``answer`` gets what becomes of it."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(function())

    def cancel(answer: Future[T]) -> None:
        if answer.cancelled():
            call_soon(loop, task.cancel)

    def pass_on(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            answer.cancel()
            return
        error = task.exception()
        # Who no longer waits for the answer wants none of its errors either.
        if not answer.set_running_or_notify_cancel():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    answer.add_done_callback(cancel)
    task.add_done_callback(pass_on)


async def _result(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _wind_up() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_loop_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def thread_of_loop(loop: asyncio.AbstractEventLoop) -> int | None:
    """Return the number of the thread in which a loop runs, if that is one of these."""
    found = (each.ident for each in list(_loop_threads) if each.present_loop is loop)
    return next(found, None)


@at_exit
def _close_loop_threads() -> None:
    # A daemon thread that runs while the interpreter shuts down may crash it.
    for thread in list(_loop_threads):
        thread.close(seconds=1.0)


@in_forked_child
def _forget_threads() -> None:
    # Threads do not survive a fork.
    _loop_threads.clear()
    _closing_threads.clear()


# Calls in threads -----------------------------------------------------------------------


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of its own and wait for its result."""
    future: Future[T] = uncancellable()
    thread = threading.Thread(
        target=call_into, args=(future, function, *args), name="asyncloader work", daemon=True
    )
    start_thread(thread)
    return await asyncio.wrap_future(future)


def close_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run what closes something on a loop in a thread of its own, without waiting for it.

    The interpreter does not exit before that is done, so the work must be bounded in time.
    """
    thread = threading.Thread(
        target=asyncio.run, args=(work,), name="asyncloader closing", daemon=True
    )
    _closing_threads.add(thread)
    try:
        start_thread(thread)
    except BaseException:
        _closing_threads.discard(thread)
        work.close()
        raise


_closing_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@at_exit
def _wait_for_closing() -> None:
    for thread in list(_closing_threads):
        thread.join()


class CallThread:
    """A daemon thread that makes calls, one after the other, in the order of ``submit``."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._turn = threading.Lock()
        start_thread(threading.Thread(target=self._run, name=name, daemon=True))

    def submit(self, call: Callable[[], object]) -> None:
        """Make a call after all that were submitted before; from any thread."""
        self._calls.put(call)

    def close(self) -> None:
        """End the thread after what was submitted."""
        self._calls.put(None)

    def retire(self, timeout: float) -> None:
        """Begin no other call; wait for the one that runs, for ``timeout`` seconds at most.

        The thread stays, for ever waiting for its turn: its end might end what it has started.
        """
        self._turn.acquire(timeout=timeout)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._turn:
                call()
            # An idle thread keeps nothing alive.
            del call


def call_into(future: Future[T], function: Callable[..., T], *args: Any) -> None:
    """Call a function, and let a future have its result or its error."""
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - the waiter raises it
        future.set_exception(error)
    else:
        future.set_result(result)


def uncancellable() -> Future[Any]:
    """A future that survives its waiter's cancellation."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
