"""One epoch, as a loader's iterators draw its items.

This file is about ``Epoch`` and the three ways to run one: in a task on the consumer's own
loop (``AsyncEpoch``), in a task on a private loop (``SyncEpoch``), or, where the whole graph
is made of plain generators, right in the consumer's thread (``DirectEpoch``).
"""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from asyncloader.datapipes.cursors import Cursors, LastingError, close_items
from asyncloader.datapipes.exchange import Exchange, Waiter
from asyncloader.datapipes.marks import Marks
from asyncloader.datapipes.run import Run, is_async_pipe
from asyncloader.datapipes.run_place import Home, give_groups, run_at
from asyncloader.datapipes.watch.watching import WatchedCalls, WatchedWait, Watching
from asyncloader.deadline import give_time_left, leaving_time, time_left
from asyncloader.errors import LoaderClosed
from asyncloader.graph.walk import pipes_of
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.lifecycle import CLOSE_SECONDS, Lifecycle
from asyncloader.loader.state import EpochStart
from asyncloader.runtime import (
    LoopThread,
    begin_task,
    is_being_cancelled,
    not_cancelled,
    running_loop,
)
from asyncloader.waiting import LoopWaiter, ThreadWaiter, call_soon

_CLOSED = "the epoch was closed before its end"


class Epoch(ABC):
    """An epoch that runs, as its loader sees it.

    Its iterator calls ``next``, a plain method or a coroutine method.
    """

    @property
    @abstractmethod
    def iterator(self) -> Any:
        """The graph's own iterator, or None before there is one."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the epoch and wait until it is over, for a bounded time; on any loop."""

    @abstractmethod
    def abandon(self) -> None:
        """End the epoch without waiting, because its iterator is gone; from any thread."""

    @abstractmethod
    def cursors(self, passed: int) -> Cursors:
        """Return where the graph was after so many items, or somewhat earlier."""

    @staticmethod
    @abstractmethod
    def new_watching() -> Watching:
        """Return what measures the time of such an epoch, which begins now."""

    def leave(self) -> None:  # noqa: B027 - only a DirectEpoch has something to close
        """Close the generators that a consumer's thread runs, in the present thread."""

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether the epoch needs this loop, one of the consumer's, to run."""
        return False


class LoopEpoch(Epoch):
    """An epoch that a task of its own runs on an event loop.

    The task begins the epoch, runs the graph and ends the epoch, whatever the consumer does.
    The consumer only waits for what is in the exchange, so cancelling it cannot hurt a pipe;
    it is woken when there is something to take.

        supervisor task ─ runs ─▶ graph ─▶ Exchange ─▶ ItemBuffer ─▶ a task, or a thread
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        watching: Watching,
        buffer: ItemBuffer,
        loop: asyncio.AbstractEventLoop,
        consumer: Waiter,
    ) -> None:
        self._lifecycle = lifecycle
        self._start = start
        self._watching = watching
        self._buffer = buffer
        self._loop = loop
        self._consumer = consumer
        self._home = Home(loop, watching)
        self._context = run_at(self._home)
        self._top: Run[Any] | None = None
        self._exchange: Exchange[Any] = Exchange(consumer, self._put_cursors, start.cursors)
        self._error: LastingError | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_over = False
        self._iterator_of: Callable[[], Any] = lambda: None

    @staticmethod
    def new_watching() -> Watching:
        return Watching(WatchedWait())

    @property
    def iterator(self) -> Any:
        return self._iterator_of()

    def cursors(self, passed: int) -> Cursors:
        into: Cursors = {}
        self._exchange.put_cursors(into)
        return into

    def abandon(self) -> None:
        # Nobody takes the items at hand any more: they must not live as long as this.
        self._buffer = ItemBuffer()
        if self._is_over:
            return
        if self._loop.is_closed():
            self._home.stop()
            warnings.warn(
                "the event loop was closed while an epoch was running; use `async with loader`"
                " or `await loader.aclose()` before the loop ends",
                ResourceWarning,
                stacklevel=3,
            )
        call_soon(self._loop, self._cancel)

    async def aclose(self) -> None:
        if self._is_over or self._loop.is_closed():
            return
        if not self._loop.is_running():
            # It ends when its loop runs next. Nobody can wait for that here.
            self._home.stop()
            call_soon(self._loop, self._cancel)
            return
        if asyncio.get_running_loop() is self._loop:
            await self._close()
        else:
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=time_left(CLOSE_SECONDS))

    def _begin(self) -> None:
        """Begin the epoch; to be called on its loop."""
        self._task = begin_task(self._loop, self._supervise(), "asyncloader epoch", self._context)
        self._task.add_done_callback(self._ended)

    def _is_ready(self) -> bool:
        """Whether there is something to take: items, the end, or an error."""
        return self._exchange.has_items() or self._is_over

    def _take(self) -> bool:
        """Let in the items that are ready; False at the end, and the error each time after one."""
        buffer = self._buffer
        try:
            # An interrupt may have come before items that were taken were let in.
            if not buffer.incoming:
                if self._exchange.has_items():
                    self._exchange.take(buffer.incoming)
                elif self._error is not None:
                    raise self._error.again()
        except (Exception, SystemExit) as error:
            buffer.end(error)
            raise
        if buffer.incoming:
            buffer.let_in()
            return True
        buffer.end()
        return False

    async def _supervise(self) -> None:
        try:
            await self._run(await self._lifecycle.begin_epoch(self._start))
        except asyncio.CancelledError as error:
            if not is_being_cancelled():
                self._error = LastingError(not_cancelled(error))
                return
            self._error = LastingError(LoaderClosed(_CLOSED))
            raise
        except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self._error = LastingError(error)
        finally:
            self._finish()

    async def _run(self, run: Run[Any]) -> None:
        self._top = run
        self._exchange.begin(run.first_cursors())
        self._watching.begin(run.tree, lambda: pipes_of(run.pipe))
        try:
            if is_async_pipe(run.pipe):
                iterator = run.astarted()
                self._iterator_of = lambda: iterator
                is_patient = run.is_made_elsewhere()
                if not is_patient:
                    self._watching.main.begin_later(self._loop)
                await give_groups(iterator, self._exchange, self._loop, is_patient=is_patient)
            else:
                giver = self._home.start_thread(run, self._exchange)
                self._iterator_of = lambda: giver.iterator
                await giver.finish()
        finally:
            # A task that is collected after its loop was closed has no loop to wait on.
            if running_loop() is self._loop:
                self._is_closing = True
                if not self._home.is_empty():
                    with leaving_time(1):
                        await self._home.aclose()
                await self._lifecycle.end_epoch()

    def _put_cursors(self, into: Cursors) -> None:
        if self._top is not None:
            self._top.put_own_cursors(into)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs none of its own code.
        if not self._is_over:
            self._error = LastingError(LoaderClosed(_CLOSED))
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._watching.main.end()
        self._consumer.wake()

    async def _close(self) -> None:
        give_time_left(self._context)
        self._cancel()
        if self._task is not None:
            _, stuck = await asyncio.wait([self._task], timeout=time_left(CLOSE_SECONDS))
            for task in stuck:
                task.cancel()

    def _cancel(self) -> None:
        # Only once, and not while it ends by itself: that would disturb the cleanup.
        if self._task is not None and not self._is_closing:
            self._is_closing = True
            self._task.cancel()


class AsyncEpoch(LoopEpoch):
    """An epoch on the running loop, whose items one of its tasks takes."""

    def __init__(
        self, lifecycle: Lifecycle, start: EpochStart, watching: Watching, buffer: ItemBuffer
    ) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = LoopWaiter(loop)
        super().__init__(lifecycle, start, watching, buffer, loop, self._waiter)
        self._begin()

    async def next(self) -> Any:
        """Wait for the next item; StopAsyncIteration at the end. Cancelling this loses nothing."""
        buffer = self._buffer
        while True:
            for item in buffer.ready:
                return item
            if buffer.is_closed() or (buffer.wants_more() and not await self._more_came()):
                raise StopAsyncIteration

    async def _more_came(self) -> bool:
        self._watching.main.resume()
        try:
            await self._waiter.until(self._is_ready)
        finally:
            self._watching.main.resting_since = perf_counter()
        return self._take()

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return self._loop is loop and not self._is_over


class SyncEpoch(LoopEpoch):
    """An epoch on a private loop, whose items a thread takes."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        watching: Watching,
        buffer: ItemBuffer,
        thread: LoopThread,
    ) -> None:
        self._waiter = ThreadWaiter()
        super().__init__(lifecycle, start, watching, buffer, thread.loop, self._waiter)
        thread.loop.call_soon_threadsafe(self._begin)

    def next(self) -> Any:
        """Wait for the next item; StopIteration at the end, and after an error it again."""
        buffer = self._buffer
        while True:
            for item in buffer.ready:
                return item
            if buffer.is_closed() or (buffer.wants_more() and not self._more_came()):
                raise StopIteration

    def _more_came(self) -> bool:
        if not self._buffer.incoming:
            # An interrupt may have kept the last taking from asking for more.
            self._exchange.ask()
            self._watching.main.resume()
            try:
                self._waiter.until(self._is_ready)
            finally:
                self._watching.main.resting_since = perf_counter()
        return self._take()

    async def aclose(self) -> None:
        self._waiter.stop()
        await super().aclose()


class DirectEpoch(Epoch):
    """An epoch whose items are made right in the consumer's thread, nothing ahead of it."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        watching: Watching,
        buffer: ItemBuffer,
        thread: LoopThread,
    ) -> None:
        self._buffer = buffer
        self._lifecycle = lifecycle
        self._thread = thread
        self._watching = watching
        self._caller = watching.main
        self._error: LastingError | None = None
        self._is_closed = False
        self._made = 0
        run = thread.call(self._begin(start))
        self._marks = Marks(run.put_cursors, lambda: self._made - 1, run.first_cursors())
        self._iterator: Iterator[Any] = run.started()

    @staticmethod
    def new_watching() -> Watching:
        return Watching(WatchedCalls(DirectEpoch.next.__code__))

    @property
    def iterator(self) -> Any:
        return self._iterator

    def next(self) -> Any:
        """Make the next item; StopIteration at the end, and after an error it again."""
        buffer = self._buffer
        if buffer.arrived >= buffer.closes_at:
            raise StopIteration
        if self._error is not None:
            raise self._error.again()
        if self._caller.is_parked:
            self._caller.resume()
        try:
            item = next(self._iterator)
            if self._is_closed:
                close_items(self._iterator)
            self._made += 1
            self._marks.passed(self._made)
            # It passes even if the buffer was closed meanwhile.
            buffer.arrived += 1
            return item
        except BaseException as error:
            # The end has no traceback: it would make a circle of references.
            is_end = isinstance(error, StopIteration)
            self._error = LastingError(StopIteration() if is_end else error)
            self._watching.main.end()
            # An interrupt is no error of the epoch.
            if isinstance(error, Exception | SystemExit):
                buffer.end(error)
            self._thread.call(self._lifecycle.end_epoch())
            raise

    def cursors(self, passed: int) -> Cursors:
        return self._marks.at(passed)

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
        self._watching.main.end()
        # A thread that is inside the generators closes them when it comes out.
        if not getattr(self._iterator, "gi_running", False):
            close_items(self._iterator)

    async def _begin(self, start: EpochStart) -> Run[Any]:
        run = await self._lifecycle.begin_epoch(start)
        self._watching.begin(run.tree, lambda: pipes_of(run.pipe))
        self._watching.main.begin_later(self._thread.loop)
        return run
