"""The items of one epoch, as an iterator draws them.

This file is about three ways to run an epoch, which iterators choose from:
in a task on the consumer's own loop, in a task on a private loop, or right in
the consumer's thread where the whole graph is made of plain generators.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors, first_cursors, put_own_cursors, started
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.going_on.lasting import LastingError
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.watch.watching import WatchedCalls
from asyncloader.graph.walk import pipes_of
from asyncloader.loader.epoch import Epoch
from asyncloader.loader.gate import Gate
from asyncloader.loader.lifecycle import Lifecycle
from asyncloader.loader.seeding import EpochStart
from asyncloader.loader.timing import Timing
from asyncloader.runtime import LoopThread
from asyncloader.waiting import LoopWaiter, ThreadWaiter


class RunningItems(ABC):
    """An epoch under way, as its loader sees it."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the epoch and wait until it is over, for a bounded time; on any loop."""

    @abstractmethod
    def abandon(self) -> None:
        """End the epoch without waiting, from wherever the garbage collector runs."""

    @abstractmethod
    def cursors(self, handed_out: int) -> Cursors:
        """Return where the graph stood after so many items, or somewhat earlier."""

    @abstractmethod
    def leave(self) -> None:
        """Close what a thread of the consumer's runs, in the present one; the rest is aclose's."""

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether the epoch can go on only while ``loop`` does."""
        return False


class AsyncItems(RunningItems):
    """Items of an epoch on the running loop, taken by one of its tasks."""

    def __init__(self, lifecycle: Lifecycle, start: EpochStart, timing: Timing, gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        self._gate = gate
        self._waiter = LoopWaiter(loop)
        self._timing = timing
        self._epoch = Epoch(lifecycle, start, loop, self._waiter, timing)
        self._epoch.start()

    @property
    def iterator(self) -> Any:
        """The graph's own iterator, or None before there is one."""
        return self._epoch.iterator

    async def next(self) -> Any:
        """Wait for the next item; StopAsyncIteration at the end. Cancelling this loses nothing."""
        gate = self._gate
        while True:
            for item in gate.passing:
                return item
            if gate.is_closed() or (gate.wants_more() and not await self._more_came()):
                raise StopAsyncIteration

    async def _more_came(self) -> bool:
        self._timing.wait()
        try:
            await self._waiter.until(self._epoch.is_ready)
        finally:
            self._timing.go_on()
        return _took(self._epoch, self._gate)

    def cursors(self, handed_out: int) -> Cursors:
        return self._epoch.cursors()

    async def aclose(self) -> None:
        await self._epoch.aclose()

    def abandon(self) -> None:
        self._epoch.abandon()

    def leave(self) -> None:
        """Do nothing: no thread of the consumer's runs anything."""

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return self._epoch.loop is loop and not self._epoch.is_over


class LoopItems(RunningItems):
    """Items of an epoch on a private loop, taken by a thread."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        timing: Timing,
        gate: Gate,
        thread: LoopThread,
    ) -> None:
        self._waiter = ThreadWaiter()
        self._gate = gate
        self._timing = timing
        self._epoch = Epoch(lifecycle, start, thread.loop, self._waiter, timing)
        thread.loop.call_soon_threadsafe(self._epoch.start)

    @property
    def iterator(self) -> Any:
        """The graph's own iterator, or None before there is one."""
        return self._epoch.iterator

    def next(self) -> Any:
        """Wait for the next item; StopIteration at the end, and after an error it again."""
        gate = self._gate
        while True:
            for item in gate.passing:
                return item
            if gate.is_closed() or (gate.wants_more() and not self._more_came()):
                raise StopIteration

    def _more_came(self) -> bool:
        # An interrupt may have kept what was taken from being let in.
        if not self._gate.coming:
            self._wait()
        return _took(self._epoch, self._gate)

    def _wait(self) -> None:
        self._epoch.ask()
        self._timing.wait()
        try:
            self._waiter.until(self._epoch.is_ready)
        finally:
            self._timing.go_on()

    def cursors(self, handed_out: int) -> Cursors:
        return self._epoch.cursors()

    async def aclose(self) -> None:
        self._waiter.stop()
        await self._epoch.aclose()

    def abandon(self) -> None:
        self._epoch.abandon()

    def leave(self) -> None:
        """Do nothing: no thread of the consumer's runs anything."""


class DirectItems(RunningItems):
    """Items made right in the consumer's thread, nothing ahead of it."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        timing: Timing,
        gate: Gate,
        thread: LoopThread,
    ) -> None:
        self._gate = gate
        self._lifecycle = lifecycle
        self._thread = thread
        self._timing = timing
        self._error: LastingError | None = None
        self._is_closed = False
        self._made = 0
        self._watched = WatchedCalls(list, DirectItems.next.__code__)
        pipe = thread.call(self._begin(start))
        put = functools.partial(put_own_cursors, pipe)
        self._marks = Marks(put, lambda: self._made - 1, first_cursors(pipe))
        self.iterator: Iterator[Any] = started(pipe)

    def next(self) -> Any:
        """Make the next item; StopIteration at the end, and after an error it again."""
        gate = self._gate
        if gate.arrived >= gate.closes_at:
            raise StopIteration
        if self._error is not None:
            raise self._error.again()
        if self._watched.is_parked:
            self._watched.go_on()
        try:
            item = next(self.iterator)
            if self._is_closed:
                close_items(self.iterator)
            self._made += 1
            self._marks.passed(self._made)
            # It passes even if the gate was closed meanwhile.
            gate.arrived += 1
            return item
        except BaseException as error:
            # The end has no traceback worth a circle of references.
            is_end = isinstance(error, StopIteration)
            self._error = LastingError(StopIteration() if is_end else error)
            self._timing.end()
            # An interrupt shows nothing of the epoch.
            if isinstance(error, Exception | SystemExit):
                gate.end(error)
            self._thread.call(self._lifecycle.end_epoch())
            raise

    def cursors(self, handed_out: int) -> Cursors:
        return self._marks.at(handed_out)

    async def aclose(self) -> None:
        self.leave()
        await self._lifecycle.end_epoch()

    def abandon(self) -> None:
        self.leave()
        work = self._lifecycle.end_epoch()
        try:
            asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        except RuntimeError:  # the private loop is closed, and with it the loader
            work.close()

    def leave(self) -> None:
        self._is_closed = True
        self._timing.end()
        # A thread that is inside the generators closes them when it comes out.
        if not getattr(self.iterator, "gi_running", False):
            close_items(self.iterator)

    async def _begin(self, start: EpochStart) -> Any:
        pipe = await self._lifecycle.begin_epoch(start)
        self._watched.restart(lambda: pipes_of(pipe))
        self._timing.watching.begin(lambda: self._watched.pipes)
        self._timing.watch_consumer(self._watched, self._thread.loop)
        return pipe


def _took(epoch: Epoch, gate: Gate) -> bool:
    """Let in what is there to be taken; whether that was anything but the end."""
    try:
        if not gate.coming:
            epoch.take(gate.coming)
    except (Exception, SystemExit) as error:
        gate.end(error)
        raise
    if gate.coming:
        gate.let_in()
        return True
    gate.end()
    return False
