"""Reading ahead of a consumer on the same loop.

This file is about ``RunningAhead``: one task reads a source as far as there is room, can be paused,
and ends in one way, whatever happens to it.

    source ──read (a task)──▶ hold ──▶ what is held ──has_next──▶ consumer
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from asyncloader.datapipes.running.cursors import aclose_items
from asyncloader.datapipes.running.run_place import GRACE_SECONDS, telling
from asyncloader.deadline import time_left
from asyncloader.runtime import begin_task
from asyncloader.waiting import LoopWaiter


class RunningAhead(ABC):
    """A task that reads a source ahead, and the items that the consumer has not taken yet.

    The consumer is on the same loop. ``reads`` is an edge, or other async items.
    """

    def __init__(self, reads: Any) -> None:
        loop = asyncio.get_running_loop()
        self.reads = reads
        self.has_ended = False
        self.error: BaseException | None = None
        self._reader = LoopWaiter(loop)
        self._consumer = LoopWaiter(loop)
        self._may_cancel = True
        self._is_paused = False
        self._is_wanted = False
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
        self._task = begin_task(self.loop, self._run(), f"asyncloader {name}")

    @abstractmethod
    def hold(self, item: Any) -> None:
        """Keep an item of the source, or what is made of it."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether one more item may be read."""

    @abstractmethod
    def has_something(self) -> bool:
        """Whether there is something to take."""

    def is_empty(self) -> bool:
        """Whether there is nothing to take, and will not be until more is read."""
        return not self.has_something()

    def set_paused(self, is_paused: bool) -> None:
        """Stop reading ahead of the consumer, or do so again; from any thread."""
        self._is_paused = is_paused
        self.wake_reader()

    @abstractmethod
    def drop(self) -> None:
        """Drop what is held; nobody will take it."""

    async def has_next(self) -> bool:
        """Wait for something to take; False at the end. Raise the source's error in its place."""
        self._is_wanted = True
        if self._is_paused:
            self.wake_reader()
        await self._consumer.until(self._is_ready)
        self._is_wanted = False
        if self.has_something():
            return True
        if self.error is not None:
            raise self.error
        return False

    def wake_consumer(self) -> None:
        """Make the consumer check again whether there is something to take."""
        self._consumer.wake()

    def wake_reader(self) -> None:
        """Make the reader check again whether there is room."""
        self._reader.wake()

    async def aclose(self) -> None:
        """Stop reading, within a bounded time."""
        if self._may_cancel:
            self._task.cancel()
        await asyncio.wait([self._task], timeout=time_left(GRACE_SECONDS))
        self._task.cancel()
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
        async for item in items:
            self.hold(item)
            del item
            if not self._may_read():
                await self._reader.until(self._may_read)

    def _fail(self, error: BaseException) -> None:
        self.error = error

    async def until(self, ready: Callable[[], bool]) -> None:
        """Let the reader wait until it is woken and ``ready()`` is true."""
        await self._reader.until(ready)

    async def until_held(self, ready: Callable[[], bool]) -> None:
        """Let the consumer wait until it is woken and ``ready()`` is true."""
        await self._consumer.until(ready)

    def _may_read(self) -> bool:
        if self._is_paused and not (self._is_wanted and self.is_empty()):
            return False
        return self.has_room()

    def _is_ready(self) -> bool:
        return self.has_something() or self.is_over()

    def is_over(self) -> bool:
        """Whether nothing more comes than what there is to take."""
        return self.has_ended

    async def _run(self) -> None:
        try:
            await self.work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            # The first error is the one to report.
            self.error = self.error or error
        finally:
            self.has_ended = True
            self._consumer.wake()
