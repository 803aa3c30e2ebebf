"""The crossing between threads and loops.

This file is about how items get from a sync pipe to an async consumer and from
an async pipe to a sync one. Crossing costs tens of microseconds, so items cross
in groups; an ``Exchange`` holds the one group that is on its way.

    giver (a thread or a task)  ──give──▶  Exchange  ──take──▶  taker (a task or a thread)

A ``Home`` is where one pass over a graph runs: it owns the givers' threads and
tasks, and closing it ends them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
import time
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from asyncloader.datapipes.lasting import LastingError
from asyncloader.runtime import (
    LoopThread,
    LoopWaiter,
    Stopped,
    ThreadWaiter,
    begin_task,
    call_soon,
    release,
)

T = TypeVar("T")

GROUP_ITEMS = 64
GROUP_SECONDS = 0.001
# What closes a whole loader takes a second more at most.
CLOSE_SECONDS = 2.0


class Waiter(Protocol):
    """Whoever waits on the other side of an exchange."""

    def wake(self) -> None: ...


class Nobody:
    """The waiter of a side that has no one on it yet."""

    def wake(self) -> None:
        """There is no one to wake."""


class Exchange(Generic[T]):
    """At most one group of items, on its way from a giver to a taker.

    A group is full at 64 items, or one millisecond after its first; what is
    there may be taken at any moment. Every step is safe between threads because
    it is a single operation on a list.
    """

    def __init__(self, taker: Waiter) -> None:
        self.giver: Waiter = Nobody()
        self.taker = taker
        self._items: list[T] = []
        self._begun = 0.0
        self._ended = False
        self._error: LastingError | None = None

    def give(self, item: T) -> None:
        """Add an item and wake the taker."""
        self._items.append(item)
        if len(self._items) == 1:
            self._begun = time.perf_counter()
        self.taker.wake()

    def give_group(self, items: list[T]) -> None:
        """Add several items and wake the taker."""
        if not self._items:
            self._begun = time.perf_counter()
        self._items += items
        self.taker.wake()

    def end(self, error: BaseException | None) -> None:
        """Say that no item follows, and why if it is not the natural end."""
        if not self._ended:
            self._error = None if error is None else LastingError(error)
            self._ended = True
        self.taker.wake()

    def has_room(self) -> bool:
        """Whether the giver may go on."""
        count = len(self._items)
        if count == 0:
            return True
        return count < GROUP_ITEMS and time.perf_counter() - self._begun < GROUP_SECONDS

    def has_items(self) -> bool:
        """Whether there are items to take."""
        return bool(self._items)

    def is_ready(self) -> bool:
        """Whether there is something to take: items, the end, or an error."""
        return bool(self._items) or self._ended

    def take(self) -> list[T]:
        """Return the items that are there; at the end [] or the error, each time."""
        # The giver may append in between: what it appends stays for the next group.
        count = len(self._items)
        if count:
            group = self._items[:count]
            del self._items[:count]
            self.giver.wake()
            return group
        if self._error is not None:
            raise self._error.again()
        return []


class ThreadGiver(Generic[T]):
    """Runs a sync iterable in a daemon thread of its own and gives its items."""

    def __init__(self, home: Home, items: Iterable[T], exchange: Exchange[T]) -> None:
        self._home = home
        self._items = items
        self._waiter = ThreadWaiter()
        self._exchange = exchange
        self._finished: asyncio.Future[None] = home.loop.create_future()
        self._is_left_behind = False
        #: The items' own iterator, once the thread has it.
        self.iterator: Iterator[T] = iter(())
        self.error: BaseException | None = None
        exchange.giver = self._waiter
        context = contextvars.copy_context()
        context.run(_place.set, (home, self._waiter))
        name = f"asyncloader {type(items).__name__}"
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=name, daemon=True
        )
        self._thread.start()

    async def finish(self) -> None:
        """Wait until the thread is done with its items; raise the error it met."""
        await asyncio.shield(self._finished)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Let the thread end after the item in progress."""
        self._waiter.stop()

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """End the thread; one that does not end in time is abandoned with a warning."""
        self.stop()
        await asyncio.wait([self._finished], timeout=seconds)
        if not self._finished.done() and not self._is_left_behind:
            self._is_left_behind = True
            warn_left_behind(self._thread, seconds)
        self._home.forget(self)

    def _run(self) -> None:
        try:
            self._give_all()
        except BaseException as error:  # noqa: BLE001 - user code ran; the taker raises it
            self.error = error
        self._exchange.end(self.error)
        call_soon(self._home.loop, self._finish)

    def _finish(self) -> None:
        self._home.forget(self)
        release(self._finished)

    def _give_all(self) -> None:
        self.iterator = iterator = iter(self._items)
        exchange, waiter = self._exchange, self._waiter
        try:
            for item in iterator:
                exchange.give(item)
                # The item just given is not kept alive here while the next is made.
                del item
                if not exchange.has_room():
                    waiter.until(exchange.has_room)
                if waiter.stopped:
                    raise Stopped
        finally:
            close_items(iterator)


class TaskGiver(Generic[T]):
    """Runs an async iterable in a task of its own and gives its items."""

    def __init__(self, home: Home, items: AsyncIterable[T], exchange: Exchange[T]) -> None:
        self._home = home
        self._items = items
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._context = run_at(home)
        self.is_done = False

    def start(self) -> None:
        """Begin the task; to be called on the home's loop."""
        if self._stopped:
            self._finish(Stopped())
            return
        name = f"asyncloader {type(self._items).__name__}"
        self._task = begin_task(self._home.loop, self._run(), name, self._context)

    def stop(self) -> None:
        """Cancel the task; to be called on the home's loop, unless that is closed."""
        self._stopped = True
        if self._task is not None and not self._home.loop.is_closed():
            self._task.cancel()

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """Cancel the task and wait until it is done, for a bounded time."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
        self._home.forget(self)

    async def _run(self) -> None:
        try:
            await give_groups(self._items, self._exchange, self._home.loop)
        except asyncio.CancelledError:
            # Whoever takes must not mistake a closed pass for the end of the data.
            self._finish(Stopped())
            raise
        except BaseException as error:  # noqa: BLE001 - user code ran; the taker raises it
            self._finish(error)
        else:
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        self.is_done = True
        self._home.forget(self)
        self._exchange.end(error)


async def give_groups(
    items: AsyncIterable[T], exchange: Exchange[T], loop: asyncio.AbstractEventLoop
) -> None:
    """Give all of an async iterable's items from the present task."""
    waiter = LoopWaiter(loop)
    exchange.giver = waiter
    async with contextlib.aclosing(groups_of(items)) as groups:
        async for group in groups:
            exchange.give_group(group)
            del group
            await waiter.until(exchange.has_room)


class Home:
    """Where one pass over a graph runs: a loop, and the threads and tasks it owns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._givers: set[ThreadGiver[Any] | TaskGiver[Any]] = set()

    def start_thread(self, items: Iterable[T], exchange: Exchange[T]) -> ThreadGiver[T]:
        """Give a sync iterable's items from a thread."""
        giver = ThreadGiver(self, items, exchange)
        self._givers.add(giver)
        return giver

    def prepare_task(self, items: AsyncIterable[T], exchange: Exchange[T]) -> TaskGiver[T]:
        """Give an async iterable's items from a task, once it is started on the loop."""
        giver = TaskGiver(self, items, exchange)
        self._givers.add(giver)
        return giver

    def forget(self, giver: ThreadGiver[Any] | TaskGiver[Any]) -> None:
        """Own a giver no longer: it is closed."""
        self._givers.discard(giver)

    def stop(self) -> None:
        """Tell all to end, without waiting for them; on the loop, unless that is closed."""
        for giver in list(self._givers):
            giver.stop()

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all threads and tasks within ``seconds`` in total."""
        self.stop()
        await asyncio.gather(*(giver.aclose(seconds) for giver in list(self._givers)))


# What runs in this context: its home, and the waiter of the thread if it is a giver's.
_place: ContextVar[tuple[Home, ThreadWaiter | None] | None] = ContextVar(
    "asyncloader_place", default=None
)


def run_at(home: Home) -> contextvars.Context:
    """Return a copy of this context in which pipes run at ``home``."""
    context = contextvars.copy_context()
    context.run(_place.set, (home, None))
    return context


async def from_thread(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield a sync iterable's items on the loop while it runs in a thread."""
    place = _place.get()
    loop = asyncio.get_running_loop()
    shared = place[0] if place is not None and place[0].loop is loop else None
    home = shared or Home(loop)
    taker = LoopWaiter(loop)
    exchange: Exchange[T] = Exchange(taker)
    giver = home.start_thread(items, exchange)
    try:
        while True:
            await taker.until(exchange.is_ready)
            group = exchange.take()
            if not group:
                return
            for item in group:
                yield item
            del group
    finally:
        # Its home waits for the thread. A wait right here would be cut off by the end of
        # the loop where a reader drops this generator instead of closing it.
        giver.stop()
        if shared is None:
            await giver.aclose()


def draw_for_all(items: Iterator[T]) -> T:
    """Return the next of items that several threads draw, one at a time.

    Waits that begin in here last as long as the pass: closing the thread that happens
    to draw does not end them for the others.
    """
    place = _place.get()
    if place is None or place[1] is None:
        return next(items)
    token = _place.set((place[0], None))
    try:
        return next(items)
    finally:
        _place.reset(token)


def present_waiter() -> ThreadWaiter:
    """Return a waiter for this thread, which ends its waits when its pass is closed."""
    place = _place.get()
    return (place[1] if place is not None else None) or ThreadWaiter()


async def cancelled(tasks: Iterable[asyncio.Task[Any]], seconds: float = CLOSE_SECONDS) -> None:
    """Cancel tasks and wait until they are done, for a bounded time."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def ended_threads(threads: Iterable[threading.Thread], seconds: float = 2.0) -> None:
    """Wait for threads that were told to end; warn of those that do not in time."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            warn_left_behind(thread, seconds)


def warn_left_behind(thread: threading.Thread, seconds: float) -> None:
    """Say which function kept a thread from ending."""
    frame = sys._current_frames().get(thread.ident or 0)
    where = f"{frame.f_code.co_qualname}()" if frame is not None else "its last function"
    warnings.warn(
        f"thread {thread.name!r} is still inside {where} {seconds:g} s after the loader was"
        " closed and was left behind; give long calls a timeout of their own",
        ResourceWarning,
        stacklevel=3,
    )


def from_loop(items: AsyncIterable[T]) -> Iterator[T]:
    """Yield an async iterable's items in this thread while it runs on a loop.

    The loop is that of the running pass; a pipe that is used alone gets one for
    itself, in a thread.
    """
    place = _place.get()
    if place is not None and place[0].loop is not asyncio._get_running_loop():
        home, waiter = place
        yield from _taken(home, items, waiter or ThreadWaiter())
        return
    thread = LoopThread()
    try:
        yield from _taken(Home(thread.loop), items, ThreadWaiter())
    finally:
        thread.close()


@contextlib.contextmanager
def loop_calls() -> Iterator[Callable[..., Any]]:
    """Give ``call(function, *args)``, which runs an async function and waits for its result.

    It runs where ``from_loop`` would run a pipe: on the loop of the running pass.
    """
    place = _place.get()
    if place is not None and place[0].loop is not asyncio._get_running_loop():
        yield functools.partial(_call, place[0].loop, place[1] or ThreadWaiter())
        return
    thread = LoopThread()
    try:
        yield functools.partial(_call, thread.loop, ThreadWaiter())
    finally:
        thread.close()


def _call(
    loop: asyncio.AbstractEventLoop,
    waiter: ThreadWaiter,
    function: Callable[..., Coroutine[Any, Any, T]],
    *args: Any,
) -> T:
    future = asyncio.run_coroutine_threadsafe(function(*args), loop)
    future.add_done_callback(lambda _: waiter.wake())
    try:
        waiter.until(future.done)
        return future.result()
    finally:
        # Whoever stops waiting stops the work as well.
        future.cancel()


def _taken(home: Home, items: AsyncIterable[T], waiter: ThreadWaiter) -> Iterator[T]:
    exchange: Exchange[T] = Exchange(waiter)
    giver = home.prepare_task(items, exchange)
    home.loop.call_soon_threadsafe(giver.start)
    try:
        while True:
            waiter.until(exchange.is_ready)
            group = exchange.take()
            if not group:
                return
            yield from group
            del group
    finally:
        # A loop that is closed has ended its tasks; a home that closes ends them itself.
        with contextlib.suppress(RuntimeError, Stopped):
            home.loop.call_soon_threadsafe(giver.stop)
            waiter.until(lambda: giver.is_done)


async def groups_of(items: AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    """Yield an async iterable's items in lists: those it makes itself, or one by one."""
    groups = getattr(items, "groups", None)
    if groups is not None:
        source: AsyncIterator[list[T]] = groups()
        try:
            async for group in source:
                yield group
        finally:
            await aclose_items(source)
        return
    iterator = aiter(items)
    try:
        async for item in iterator:
            yield [item]
    finally:
        await aclose_items(iterator)


def async_items(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Return an async iterator over either colour of iterable."""
    if isinstance(items, AsyncIterable):
        return aiter(items)
    return from_thread(items)


def close_items(iterator: Iterator[Any]) -> None:
    """Close an iterator that can be closed, as generators can."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


async def aclose_items(iterator: AsyncIterator[Any]) -> None:
    """Close an async iterator that can be closed, as async generators can."""
    aclose = getattr(iterator, "aclose", None)
    # A coroutine may be collected after its loop was closed: then nothing can be awaited.
    if aclose is not None and asyncio._get_running_loop() is not None:
        await aclose()
