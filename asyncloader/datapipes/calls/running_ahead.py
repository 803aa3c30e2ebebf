"""A source read ahead of its consumer.

This file is about ``RunningAhead``: a task of its own reads a source as far as
there is room, and a consumer on the same loop takes what is held.

    source ──read (a task)──▶ hold ──▶ what is held ──has_next──▶ consumer
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.going_on.iterating import aclose_items
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.running.home import GRACE_SECONDS
from asyncloader.deadline import time_left
from asyncloader.runtime import begin_task, is_being_cancelled, not_cancelled
from asyncloader.waiting import LoopWaiter, Stopped


class RunningAhead(ABC):
    """What was read of a source and was not yet taken."""

    def __init__(self, reads: Run[Any]) -> None:
        loop = asyncio.get_running_loop()
        self.reads = reads
        self.has_ended = False
        self.error: BaseException | None = None
        self._reader = LoopWaiter(loop)
        self._consumer = LoopWaiter(loop)
        self._may_cancel = True
        self._is_paused = False
        self._is_wanted = False
        self._loop = loop
        self._task: asyncio.Task[None]

    def start(self, name: str) -> None:
        """Begin to read."""
        self._task = begin_task(self._loop, self._run(), f"asyncloader {name}")

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
        """Whether nothing is there, or will be unless more is read."""
        return not self.has_something()

    def set_paused(self, is_paused: bool) -> None:
        """Read nothing ahead of what is waited for, or do so again; from any thread."""
        self._is_paused = is_paused
        self.wake_reader()

    @abstractmethod
    def drop(self) -> None:
        """Let go of what is held, which nobody will take."""

    async def has_next(self) -> bool:
        """Wait for something to take; False at the end, and an error in its place."""
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
        """Make the consumer look again: there may be something to take."""
        self._consumer.wake()

    def wake_reader(self) -> None:
        """Make the reader look again: there may be room."""
        self._reader.wake()

    async def aclose(self) -> None:
        """End the reading and whatever belongs to it, in a bounded time."""
        if self._may_cancel:
            self._task.cancel()
        await asyncio.wait([self._task], timeout=time_left(GRACE_SECONDS))
        self._task.cancel()
        # The errors that ended it keep this alive for a while.
        self.drop()

    async def work(self) -> None:
        """Do what the task is for."""
        await self.read()

    async def read(self) -> None:
        """Read the source to its end, as room allows; keep its error for its place."""
        items = aiter(self.reads.abegin())
        try:
            async for item in items:
                self.hold(item)
                del item
                if not self._may_read():
                    await self._reader.until(self._may_read)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            self.error = not_cancelled(error)
        except Stopped:
            # The source was closed elsewhere: the consumer must not take that for its end.
            self.error = Stopped()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self.error = error
        except KeyboardInterrupt as error:
            # It is the user who interrupts whatever runs on this loop.
            self.error = error
            raise
        finally:
            await aclose_items(items)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Let the reader wait until it is woken and something is so."""
        await self._reader.until(ready)

    def _may_read(self) -> bool:
        if self._is_paused and not (self._is_wanted and self.is_empty()):
            return False
        return self.has_room()

    def _is_ready(self) -> bool:
        return self.has_something() or self.has_ended

    async def _run(self) -> None:
        try:
            await self.work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            # What failed first is what is heard of.
            self.error = self.error or error
        finally:
            self.has_ended = True
            self._consumer.wake()
