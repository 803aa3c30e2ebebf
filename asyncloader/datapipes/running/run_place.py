"""The loop, threads and tasks in which an epoch runs.

This file is about ``Home``, the loop of one epoch over a graph with the threads and tasks that
make its items; and about ``Makers``, threads that make one thing each. Closing a home ends them
all within a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from asyncloader.datapipes.running.cursors import close_items, groups_of
from asyncloader.datapipes.running.exchange import Exchange, MadeElsewhere, Waiter
from asyncloader.datapipes.running.naming import brief_name
from asyncloader.datapipes.running.watch.frames import present_frames
from asyncloader.datapipes.running.watch.watching import NOT_WATCHED, Watching
from asyncloader.deadline import ends_within, time_left
from asyncloader.runtime import (
    LoopThread,
    begin_task,
    call_into,
    is_being_cancelled,
    not_cancelled,
    running_loop,
    start_thread,
)
from asyncloader.waiting import (
    LoopWaiter,
    Stopped,
    ThreadWaiter,
    call_soon,
    do_nothing,
    release,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# Less when a whole loader closes and its deadline is nearer.
GRACE_SECONDS = 2.0


class Startable(Protocol[T_co]):
    """A run of a pipe, as the thread or task needs it that iterates the pipe."""

    pipe: Any

    def started(self) -> Iterator[T_co]:
        """Begin to iterate in this thread."""

    def astarted(self) -> AsyncIterable[T_co]:
        """Begin to iterate on the running loop."""


class Home:
    """Where one pass over a graph runs: a loop, and the threads and tasks it owns.

    A loop in a thread of its own is started by the first that needs it.
    """

    def __init__(
        self,
        where: asyncio.AbstractEventLoop | LoopThread,
        watching: Watching = NOT_WATCHED,
        consumer: Waiter | None = None,
        beyond: Callable[[], Home | None] = do_nothing,
    ) -> None:
        self._where = where
        # The home of the loader that a worker of this process sends its items to.
        self._beyond = beyond
        # Who waits for the items, and calls ``do_asked`` meanwhile; None if nobody does.
        self._consumer = consumer
        # What threads have asked it to do.
        self._asked: deque[Callable[[], None]] = deque()
        self._is_stopped = False
        #: Measures the threads' time.
        self.watching = watching
        watching.places.add(self)
        self._givers: set[ThreadGiver[Any] | TaskGiver[Any]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._where.loop if isinstance(self._where, LoopThread) else self._where

    @property
    def present_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop, if it was started."""
        where = self._where
        return where.present_loop if isinstance(where, LoopThread) else where

    def is_here(self) -> bool:
        """Whether its loop is the running one."""
        running = running_loop()
        return running is not None and running is self.loop

    def start_thread(self, run: Startable[T], exchange: Exchange[T]) -> ThreadGiver[T]:
        """Give a sync pipe's items from a thread."""
        giver = ThreadGiver(self, run, exchange)
        self._givers.add(giver)
        return giver

    def prepare_task(self, run: Startable[T], exchange: Exchange[T]) -> TaskGiver[T]:
        """Give an async pipe's items from a task, once it is started on the loop."""
        giver = TaskGiver(self, run, exchange)
        self._givers.add(giver)
        return giver

    def at_consumer(self, work: Callable[[], T]) -> T:
        """Call a function in the consumer's thread, from another one that may wait for it."""
        if self._consumer is None:
            beyond = self._beyond()
            return work() if beyond is None else beyond.at_consumer(work)
        answer: Future[T] = Future()
        waiter = present_waiter()

        def do() -> None:
            call_into(answer, _raise_stopped if self._is_stopped else work)
            waiter.wake()

        self._asked.append(do)
        if self._is_stopped:
            self.do_asked()
        self._consumer.wake()
        waiter.until(answer.done)
        return answer.result()

    def has_no_consumer(self) -> bool:
        """Whether nobody waits here for the items, as in a worker, which sends them."""
        return self._consumer is None

    def do_asked(self) -> None:
        """Do what threads have asked for, in the consumer's thread."""
        # Whoever closes this may do it at the same time.
        with contextlib.suppress(IndexError):
            while self._asked:
                self._asked.popleft()()

    def forget(self, giver: ThreadGiver[Any] | TaskGiver[Any]) -> None:
        """Drop a giver that is closed."""
        self._givers.discard(giver)

    def is_waiting(self) -> bool:
        """Whether no thread is at work: each waits for items, or for room."""
        return all(giver.is_waiting() for giver in list(self._givers))

    def is_empty(self) -> bool:
        """Whether there is no thread and no task to end."""
        return not self._givers

    def stop(self) -> None:
        """Tell all threads and tasks to end, without waiting; on the loop, unless it is closed."""
        for giver in list(self._givers):
            giver.stop()
        # The consumer does nothing any more, and a thread may wait for it that draws for others.
        self._is_stopped = True
        self.do_asked()

    async def aclose(self) -> None:
        """End all threads and tasks within a bounded time in total."""
        self.stop()
        # Again: a thread may have begun a task after it was told to stop.
        with ends_within(GRACE_SECONDS):
            while self._givers:
                await asyncio.gather(*(giver.aclose() for giver in list(self._givers)))


class ThreadGiver(Generic[T]):
    """Runs a sync pipe in a daemon thread of its own and gives its items."""

    def __init__(self, home: Home, run: Startable[T], exchange: Exchange[T]) -> None:
        self._home = home
        self._reading = run
        self._waiter = ThreadWaiter()
        self._exchange = exchange
        self._finished: asyncio.Future[None] = home.loop.create_future()
        self._is_left_behind = False
        #: The iterator over the items, once the thread has begun it.
        self.iterator: Iterator[T] = iter(())
        self.error: BaseException | None = None
        exchange.giver = self._waiter
        self._watched = home.watching.new(run.pipe, _GIVE_ALL, home.loop)
        name = f"asyncloader {brief_name(run.pipe)}"
        self._thread = thread_at(name, home, self._waiter, self._run)
        try:
            start_thread(self._thread)
        except BaseException:
            home.watching.end(self._watched)
            raise

    async def finish(self) -> None:
        """Wait until the thread has made all items; raise its error."""
        await asyncio.shield(self._finished)
        if self.error is not None:
            raise self.error

    def is_waiting(self) -> bool:
        """Whether the thread waits for items, or for room."""
        return self._waiter.is_waiting

    def stop(self) -> None:
        """Let the thread end after the item in progress."""
        self._waiter.stop()

    async def aclose(self) -> None:
        """End the thread; one that does not end in time is abandoned with a warning."""
        self.stop()
        seconds = time_left(GRACE_SECONDS)
        await asyncio.wait([self._finished], timeout=seconds)
        if not self._finished.done() and not self._is_left_behind:
            self._is_left_behind = True
            self._home.watching.end(self._watched)
            warn_left_behind(self._thread, seconds)
        self._home.forget(self)

    def _run(self) -> None:
        self._watched.thread = threading.get_ident()
        try:
            self._give_all()
        except Stopped:
            # A new exception: the traceback of this one would keep the pass's objects alive.
            self.error = Stopped()
        except asyncio.CancelledError as error:
            self.error = not_cancelled(error)
        except BaseException as error:  # noqa: BLE001 - user code ran; the taker raises it
            self.error = error
        self._home.watching.end(self._watched)
        self._exchange.end(self.error)
        call_soon(self._home.loop, self._finish)

    def _finish(self) -> None:
        self._home.forget(self)
        release(self._finished)

    def _give_all(self) -> None:
        self.iterator = iterator = self._reading.started()
        exchange, waiter = self._exchange, self._waiter
        try:
            for item in iterator:
                exchange.give(item)
                # Do not keep the given item alive while the next one is made.
                del item
                if not exchange.has_room():
                    exchange.taker.wake()
                    self._watched.resting_since = time.perf_counter()
                    waiter.until(exchange.has_room)
                    self._watched.resume()
                if waiter.stopped:
                    raise Stopped
        finally:
            close_items(iterator)


# Frames below this one are the pipes' work.
_GIVE_ALL = ThreadGiver._give_all.__code__


class TaskGiver(Generic[T]):
    """Runs an async pipe in a task of its own and gives its items."""

    def __init__(self, home: Home, run: Startable[T], exchange: Exchange[T]) -> None:
        self._home = home
        self._reading = run
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._context = run_at(home)
        self.is_done = False

    def start(self) -> None:
        """Begin the task; call it on the home's loop."""
        if self._stopped:
            self._finish(Stopped())
            return
        name = f"asyncloader {brief_name(self._reading.pipe)}"
        self._task = begin_task(self._home.loop, self._run(), name, self._context)
        self._task.add_done_callback(self._ended)

    def is_waiting(self) -> bool:
        """Whether it is at no work that only its loop could tell of."""
        return True

    def stop(self) -> None:
        """Cancel the task; call it on the home's loop, unless that is closed."""
        # Only once: a second cancel would interrupt the cleanup.
        if self._stopped:
            return
        self._stopped = True
        if self._task is not None and not self._home.loop.is_closed():
            self._task.cancel()

    async def aclose(self) -> None:
        """Cancel the task and wait until it is done, for a bounded time."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=time_left(GRACE_SECONDS))
        if not self.is_done:
            # Whoever closes its reader must not wait for it.
            self._finish(Stopped())

    async def _run(self) -> None:
        await telling(self._give_all(), self._finish)
        if not self.is_done:
            self._finish(None)

    async def _give_all(self) -> None:
        await give_groups(self._reading.astarted(), self._exchange, self._home.loop)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # It was cancelled. The taker must not take a closed pass for the end of the data.
        if not self.is_done:
            self._finish(Stopped())
        if not task.cancelled():
            # An interrupt has come out of the loop itself.
            task.exception()

    def _finish(self, error: BaseException | None) -> None:
        self.is_done = True
        self._home.forget(self)
        self._exchange.end(error)


async def telling(reading: Awaitable[None], tell: Callable[[BaseException], None]) -> None:
    """Read a source in a task of its own, and ``tell`` of its error, which the consumer raises.

    The task's own cancellation is raised, and told nobody.
    """
    try:
        await reading
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        tell(not_cancelled(error))
    except Stopped:
        # The source was closed elsewhere. The consumer must not take that for its end. A new
        # exception: the traceback of this one would keep the pass's objects alive.
        tell(Stopped())
    except KeyboardInterrupt as error:
        # The user interrupts the loop itself, so it must see this too.
        tell(error)
        raise
    except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
        tell(error)


async def give_groups(
    items: AsyncIterable[T], exchange: Exchange[T], loop: asyncio.AbstractEventLoop
) -> None:
    """Give all of an async iterable's items from the present task.

    Other processes make the next one anyway: so it is waited for first, and then for room, which
    there mostly is by then without a wake-up of this task.
    """
    elsewhere = items if isinstance(items, MadeElsewhere) else None
    waiter = LoopWaiter(loop)
    exchange.giver = waiter
    groups = groups_of(items)
    try:
        async for group in groups:
            exchange.give_group(group)
            del group
            exchange.note_cursors()
            # The last before this waits: a thread that takes needs the GIL then.
            exchange.taker.wake()
            if elsewhere is not None:
                if elsewhere.holds_much():
                    await waiter.until(lambda: not exchange.has_items())
                await elsewhere.come()
            if not exchange.has_room():
                await waiter.until(exchange.has_room)
    finally:
        # A task that is collected after its loop was closed cannot await.
        if running_loop() is loop:
            await groups.aclose()


# The home of this context, and the waiter of its thread if that was started there.
PLACE: ContextVar[tuple[Home, ThreadWaiter | None] | None] = ContextVar(
    "asyncloader_place", default=None
)


def run_at(home: Home) -> contextvars.Context:
    """Return a copy of this context in which pipes run at ``home``."""
    context = contextvars.copy_context()
    context.run(PLACE.set, (home, None))
    return context


# The waiter of the present thread, if it was started at a home.
_own = threading.local()


def thread_at(
    name: str, home: Home, waiter: ThreadWaiter, work: Callable[..., object], *args: Any
) -> threading.Thread:
    """Return an unstarted daemon thread whose waits end when its waiter is stopped."""

    def run() -> None:
        _own.waiter = waiter
        work(*args)

    context = contextvars.copy_context()
    context.run(PLACE.set, (home, waiter))
    return threading.Thread(target=context.run, args=(run,), name=name, daemon=True)


def present_home() -> Home | None:
    """Return the home of the running pass, or None for a pipe that is used alone."""
    place = PLACE.get()
    return None if place is None else place[0]


def present_waiter() -> ThreadWaiter:
    """Return a waiter for this thread, which ends its waits when its pass is closed."""
    place = PLACE.get()
    own: ThreadWaiter | None = getattr(_own, "waiter", None)
    # Threads started from here inherit the context, but a waiter is for one thread only.
    if own is None or place is None or place[1] is not own:
        return ThreadWaiter()
    return own


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they are done, for a bounded time.

    There may be thousands. So each turn of the loop ends a few, and other tasks have their turns.
    """
    to_cancel, pending = list(tasks), list[asyncio.Task[Any]]()
    try:
        while to_cancel:
            some = to_cancel[:_AT_ONCE]
            # Who is done is kept by nobody here.
            del to_cancel[:_AT_ONCE]
            for task in some:
                task.cancel()
            await asyncio.sleep(0)
            pending += [task for task in some if not task.done()]
    finally:
        # Whoever is cancelled here leaves none running.
        for task in to_cancel:
            task.cancel()
    with ends_within(GRACE_SECONDS):
        while pending and (seconds := time_left()):
            await asyncio.wait(pending[:_AT_ONCE], timeout=seconds)
            pending = [task for task in pending if not task.done()]


# So many tasks end in one turn of a loop, which takes a few milliseconds.
_AT_ONCE = 64


def ended_threads(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads that were told to end; warn about those that do not end in time."""
    end = time.monotonic() + GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            warn_left_behind(thread, GRACE_SECONDS)


def warn_left_behind(thread: threading.Thread, seconds: float) -> None:
    """Warn which function keeps a thread from ending."""
    warnings.warn(
        f"thread {thread.name!r} is still inside {function_in(thread)} {seconds:.1f} s"
        " after the loader was closed and was left behind; give long calls a timeout of their own",
        ResourceWarning,
        stacklevel=3,
    )


def function_in(thread: threading.Thread) -> str:
    """Return which function a thread is in."""
    with present_frames() as frames:
        frame = frames.get(thread.ident or 0)
        return f"{frame.f_code.co_qualname}()" if frame is not None else "its last function"


def at_consumer(work: Callable[[], T]) -> T:
    """Call a function in the thread that takes the loader's items, while that waits for one.

    So nothing else of that thread runs meanwhile. Where the present thread takes them itself, or
    sends them to another process, the function is called here.
    """
    place = PLACE.get()
    if place is None:
        return work()
    # A thread that draws for others has no waiter in its context, and is still a thread of a home.
    is_in_thread = getattr(_own, "waiter", None) is not None
    return place[0].at_consumer(work) if is_in_thread or place[0].has_no_consumer() else work()


def _raise_stopped() -> Any:
    raise Stopped


class Makers:
    """Starts threads, and ends them when it is left."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiter = present_waiter()
        self._threads: dict[threading.Thread, ThreadWaiter] = {}
        # A thread may start others while ``__exit__`` runs.
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

    def start(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Begin to make something in a thread; ``__exit__`` ends its waits."""
        made: Future[T] = Future()
        waiter = ThreadWaiter()
        thread = thread_at(
            "asyncloader maker", self._home, waiter, self._make, made, function, *args
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
        return made

    def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let the consumer wait until ``ready()``; it is checked after each thing that was made.

        Returns False if it was not ready within ``timeout`` seconds.
        """
        return self._waiter.until(ready, timeout)

    def wake(self) -> None:
        """Make the consumer check again; from any thread."""
        self._waiter.wake()

    def _make(self, made: Future[T], function: Callable[..., T], *args: Any) -> None:
        call_into(made, function, *args)
        self._threads.pop(threading.current_thread(), None)
        self._waiter.wake()


@contextlib.contextmanager
def some_home(watching: Watching) -> Iterator[Home]:
    """Give the home of the running pass, or a new one whose threads ``watching`` measures."""
    place = PLACE.get()
    if place is not None and not place[0].is_here():
        yield place[0]
        return
    thread = LoopThread()
    try:
        yield Home(thread, watching)
    finally:
        thread.close()
