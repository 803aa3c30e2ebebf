"""Reading ahead of a consumer.

This file is about ``Ahead``: a source is read as far as there is room, can be paused, and ends in
one way, whatever happens to it. The reader is a task on the consumer's loop (``RunningAhead``), or
a thread beside the consumer's (``RunningBeside``).

    source ──read──▶ hold ──▶ what is held ──has_next──▶ consumer
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from time import perf_counter
from typing import Any, Self

from asyncloader.datapipes.running.cursors import aclose_items, close_items
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import (
    GRACE_SECONDS,
    Home,
    Makers,
    present_waiter,
    telling,
)
from asyncloader.deadline import time_left
from asyncloader.runtime import begin_task
from asyncloader.waiting import LoopWaiter, ThreadWaiter


class Ahead(ABC):
    """What was read ahead of a consumer and not taken yet, and how far that may go."""

    def __init__(self, reader: LoopWaiter | ThreadWaiter, consumer: LoopWaiter | Makers) -> None:
        self._reader = reader
        self._consumer = consumer
        self._is_paused = False
        self._is_wanted = False

    @abstractmethod
    def hold(self, item: Any) -> None:
        """Keep an item of the source, or what is made of it."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether one more item may be read."""

    @abstractmethod
    def has_something(self) -> bool:
        """Whether there is something to take."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing more comes than what there is to take."""

    def is_empty(self) -> bool:
        """Whether there is nothing to take, and will not be until more is read."""
        return not self.has_something()

    def set_paused(self, is_paused: bool) -> None:
        """Stop reading ahead of the consumer, or do so again; from any thread."""
        self._is_paused = is_paused
        self.wake_reader()

    def wake_consumer(self) -> None:
        """Make the consumer check again whether there is something to take."""
        self._consumer.wake()

    def wake_reader(self) -> None:
        """Make the reader check again whether there is room."""
        self._reader.wake()

    def may_read(self) -> bool:
        """Whether the reader goes on."""
        if self._is_paused and not (self._is_wanted and self.is_empty()):
            return False
        return self.has_room()

    def _begin_wait(self) -> None:
        self._is_wanted = True
        if self._is_paused:
            self.wake_reader()

    def _is_ready(self) -> bool:
        # The end is looked at first: the reader may hold one more before it ends.
        is_over = self.is_over()
        return self.has_something() or is_over


class RunningAhead(Ahead):
    """A task that reads a source, on the loop of the consumer.

    ``reads`` is an edge, or other async items.
    """

    _reader: LoopWaiter
    _consumer: LoopWaiter

    def __init__(self, reads: Any) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(LoopWaiter(loop), LoopWaiter(loop))
        self.reads = reads
        self.has_ended = False
        self.error: BaseException | None = None
        self._may_cancel = True
        self.loop = loop
        self._task: asyncio.Task[None]

    @contextlib.asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[Self]:
        """Read as long as this is open."""
        self.start(name)
        try:
            yield self
        finally:
            await self.aclose()

    def start(self, name: str) -> None:
        """Begin to read."""
        if isinstance(self.reads, Edge):
            self.reads.ahead = self
        self._task = begin_task(self.loop, self._run(), f"asyncloader {name}")

    @abstractmethod
    def drop(self) -> None:
        """Drop what is held; nobody will take it."""

    async def has_next(self) -> bool:
        """Wait for something to take; False at the end. Raise the source's error in its place."""
        self._begin_wait()
        await self._consumer.until(self._is_ready)
        self._is_wanted = False
        if self.has_something():
            return True
        if self.error is not None:
            raise self.error
        return False

    async def aclose(self) -> None:
        """Stop reading, within a bounded time."""
        if self._may_cancel:
            self._task.cancel()
        await asyncio.wait([self._task], timeout=time_left(GRACE_SECONDS))
        self._task.cancel()
        if isinstance(self.reads, Edge):
            # The edge lasts longer, and must not keep alive what this holds.
            self.reads.ahead = None
        # Tracebacks of errors may keep this object alive for a while, but not the items.
        self.drop()

    async def work(self) -> None:
        """Run the task; a subclass may wrap this."""
        await self.read()

    async def read(self) -> None:
        """Read the source to its end, as room allows; keep its error for the consumer."""
        items = aiter(self.reads)
        try:
            await telling(self.hold_all(items), self._fail)
        finally:
            await aclose_items(items)

    async def hold_all(self, items: AsyncIterator[Any]) -> None:
        """Hold the items, one by one, as room allows; a subclass may wrap this."""
        count = 0
        async for item in items:
            self.hold(item)
            del item
            count += 1
            if count % GROUP_ITEMS == 0:
                # A source that never waits would give nobody else a turn until there is no room.
                await asyncio.sleep(0)
            if not self.may_read():
                await self._reader.until(self.may_read)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Let the reader wait until it is woken and ``ready()`` is true."""
        await self._reader.until(ready)

    async def until_held(self, ready: Callable[[], bool]) -> None:
        """Let the consumer wait until it is woken and ``ready()`` is true."""
        await self._consumer.until(ready)

    def is_over(self) -> bool:
        return self.has_ended

    def _fail(self, error: BaseException) -> None:
        self.error = error

    async def _run(self) -> None:
        try:
            await self.work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            # The first error is the one to report.
            self.error = self.error or error
        finally:
            self.has_ended = True
            self._consumer.wake()


class RunningBeside(Ahead):
    """A thread that reads a source, beside the thread of the consumer.

    The consumer creates it. ``makers`` own the reading thread, and end it when they are left.
    """

    _reader: ThreadWaiter
    _consumer: Makers

    def __init__(self, source: Edge[Any], makers: Makers) -> None:
        super().__init__(ThreadWaiter(), makers)
        self.source = source
        self.has_ended = False
        self._reading: Future[None] = Future()

    @contextlib.contextmanager
    def running(self, home: Home) -> Iterator[Self]:
        """Read in a thread of that home. Whoever owns ``makers`` ends it."""
        self.source.ahead = self
        try:
            self._reading = self._consumer.start(self._run, home)
            yield self
        finally:
            self.source.ahead = None

    def has_next(self) -> bool:
        """Wait for something to take; False at the end. Raise the source's error in its place."""
        self._begin_wait()
        self._consumer.until(self._is_ready)
        self._is_wanted = False
        if self.has_something():
            return True
        self._reading.result()
        return False

    def may_go_on(self) -> bool:
        """Whether the reader, once it had no room, goes on: a subclass may ask for more room."""
        return self.may_read()

    def is_over(self) -> bool:
        return self.has_ended and self.is_empty()

    def _run(self, home: Home) -> None:
        try:
            self._read(home)
        finally:
            # To ask the future for each item would take its lock.
            self.has_ended = True

    def _read(self, home: Home) -> None:
        self._reader = present_waiter()
        watched = home.watching.new(self.source.pipe, _READ, home.loop)
        try:
            items = iter(self.source)
            try:
                for item in items:
                    self.hold(item)
                    del item
                    if not self.may_read():
                        watched.resting_since = perf_counter()
                        self._reader.until(self.may_go_on)
                        watched.resume()
            finally:
                close_items(items)
        finally:
            home.watching.end(watched)


# Frames below this one are the work of the source's pipes.
_READ = RunningBeside._read.__code__
