"""One epoch, as a loader's iterators draw its items.

This file is about ``Epoch`` and the three ways to run one: in a task on the consumer's own
loop (``AsyncEpoch``), in a task on a private loop (``SyncEpoch``), or, where the whole graph
is made of plain generators, right in the consumer's thread (``DirectEpoch``).
"""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterator
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any

from asyncloader.datapipes.running.cursor_history import CursorHistory
from asyncloader.datapipes.running.cursors import Cursors, LastingError, close_items
from asyncloader.datapipes.running.exchange import GROUP_SECONDS, Exchange, MadeElsewhere, Waiter
from asyncloader.datapipes.running.in_flight import HandedOver, current_device
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import Home, ThreadGiver, give_groups, run_at
from asyncloader.datapipes.running.traits import hands_over, is_async_pipe
from asyncloader.datapipes.running.watch.frames import OUTSIDE, present_frames
from asyncloader.datapipes.running.watch.watching import (
    SAMPLER,
    WatchedCalls,
    WatchedWait,
    Watching,
)
from asyncloader.deadline import give_time_left, leaving_time, time_left
from asyncloader.errors import LoaderClosed
from asyncloader.graph.walk import pipes_of
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.lifecycle import CLOSE_SECONDS, Lifecycle
from asyncloader.places.states import EpochStart
from asyncloader.runtime import (
    LoopThread,
    begin_task,
    is_being_cancelled,
    not_cancelled,
    running_loop,
)
from asyncloader.waiting import GroupWaiter, ThreadWaiter, call_soon

_CLOSED = "the epoch was closed before its end"


#: The giver of a group wakes who waits for it when an item ends after GROUP_SECONDS. The timer of
#: who waits comes later than that: the loop would ask for the GIL in the midst of an item.
_WAIT_SECONDS = 1.5 * GROUP_SECONDS


class SettingsChanged(Exception):
    """The rest of the epoch is run with other settings: its iterator has to begin that."""


class EpochLife(Enum):
    """Where an epoch is in its life, and what moves it.

    RUNNING ──▶ CLOSING  the end of a LoopEpoch; ``aclose``, ``abandon`` or ``leave`` before it
    CLOSING ──▶ OVER     the reading service knows of the end
    RUNNING ──▶ OVER     the same, of a DirectEpoch that nobody has left
    """

    RUNNING = "running"
    CLOSING = "closing"
    OVER = "over"


RUNNING, CLOSING, OVER = EpochLife


class Epoch(ABC):
    """An epoch that runs, as its loader sees it.

    Its iterator calls ``next``, a plain method or a coroutine method.
    """

    life: EpochLife
    #: Measures its time, since it was begun.
    watching: Watching

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

    @abstractmethod
    def change_settings(self) -> None:
        """Let ``next`` raise SettingsChanged soon; from any thread."""

    @abstractmethod
    def waits_since(self) -> float:
        """Return since when its consumer has waited for an item; 0.0 if it does not."""

    def leave(self) -> None:  # noqa: B027 - only a DirectEpoch has something to close
        """Close the generators that a consumer's thread runs, in the present thread."""

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether the epoch needs this loop, one of the consumer's, to run."""
        return False


class LoopEpoch(Epoch):
    """An epoch that a task of its own runs on an event loop.

    The task begins the epoch, runs the graph and ends the epoch, whatever the consumer does.
    The consumer only waits for what has come, so cancelling it cannot hurt a pipe; it is
    woken when there is something to take.

        the graph's task, or a thread ──▶ Exchange ──▶ ItemBuffer ──▶ a task, or a thread
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        buffer: ItemBuffer,
        loop: asyncio.AbstractEventLoop,
        consumer: Waiter,
    ) -> None:
        self._lifecycle = lifecycle
        self._start = start
        self.watching = Watching(WatchedWait())
        self._buffer = buffer
        self._loop = loop
        self._consumer = consumer
        self._home = Home(loop, self.watching, consumer)
        self._context = run_at(self._home)
        # The GPU that is current in the consumer's thread, where that is not the loop's.
        self._current_device: int | None = None
        # What the graph yields comes by this, once it runs; and what is iterated for it, in its own
        # thread where it is sync.
        self._exchange: Exchange[Any] | None = None
        self._begun: AsyncIterable[Any] | None = None
        self._giver: ThreadGiver[Any] | None = None
        self._error: LastingError | None = None
        self._task: asyncio.Task[None] | None = None
        self.life = RUNNING
        self._is_changing = False

    @property
    def iterator(self) -> Any:
        return self._begun if self._giver is None else self._giver.iterator

    def cursors(self, passed: int) -> Cursors:
        if self._exchange is None:
            return self._start.cursors
        into: Cursors = {}
        self._exchange.put_cursors(into, passed)
        return into

    def change_settings(self) -> None:
        if self.life is RUNNING:
            self._is_changing = True
            if self._exchange is not None:
                self._exchange.let_this_be_the_last()
            # The consumer may wait for more than the workers have credits for.
            self._consumer.wake()

    def waits_since(self) -> float:
        consumer = self.watching.main
        is_over = self.life is OVER
        is_waiting = not (is_over or consumer.resting_since or self._buffer.is_closed())
        return consumer.working_since if is_waiting else 0.0

    def abandon(self) -> None:
        is_over = self.life is OVER
        if is_over and self._buffer.is_ended:
            return
        # Nobody takes the items at hand any more: they must not live as long as this.
        self._buffer = ItemBuffer()
        if self._exchange is not None:
            self._exchange.drop()
        if is_over:
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
        if self.life is OVER or self._loop.is_closed():
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

    def _take(self) -> bool:
        """Let in the items that have come, or end the buffer; False if there is nothing yet.

        Raises SettingsChanged, and the epoch's error each time.
        """
        buffer = self._buffer
        self._home.do_asked()
        # Read before the look for items, as the last of them come before the end.
        is_over, exchange = self.life is OVER, self._exchange
        # An interrupt may have come before items that were taken were let in.
        if exchange is not None and not buffer.incoming:
            if exchange.has_items():
                exchange.take(buffer.incoming)
            else:
                # An interrupt may have kept the last taking from letting more come.
                exchange.ask()
        if buffer.incoming:
            buffer.let_in()
            return True
        if self._is_changing:
            raise SettingsChanged
        if is_over:
            self._end()
        return is_over

    def _end(self) -> None:
        """End the buffer, or raise the error that has ended the epoch."""
        try:
            if self._error is not None:
                raise self._error.again()
        except StopAsyncIteration as error:
            # An `async for` would take it for the end of the data.
            failure = RuntimeError("a pipe raised StopAsyncIteration")
            self._buffer.end(failure)
            raise failure from error
        except (Exception, SystemExit) as error:
            self._buffer.end(error)
            raise
        self._buffer.end()

    async def _supervise(self) -> None:
        try:
            await self._run(await self._lifecycle.begin_epoch(self._start, self._buffer))
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

    async def _run(self, edge: Edge[Any]) -> None:
        self.watching.begin(edge.tree, lambda: pipes_of(edge.pipe))
        if hands_over(edge.pipe):
            self._hand_over(edge)
        try:
            first = edge.first_cursors()
            self._begun = begun = edge.astarted() if is_async_pipe(edge.pipe) else None
            if isinstance(begun, MadeElsewhere):
                new_history = partial(begun.new_history, first)
            else:
                new_history = partial(CursorHistory, edge.put_own_cursors, first=first)
                if begun is not None:
                    self.watching.main.begin_later(self._loop)
            # What is handed over runs ahead by itself.
            may_give = None if edge.current_device is None else edge.has_room
            exchange = Exchange[Any](self._consumer, new_history, may_give, edge.tree.settled_items)
            if begun is None:
                self._giver = self._home.start_thread(edge, exchange)
            self._exchange = exchange
            # A thread may have woken the consumer before there was anything to look at.
            self._consumer.wake()
            if begun is not None:
                await give_groups(begun, exchange, self._loop)
            elif self._giver is not None:
                await self._giver.finish()
        finally:
            # A task that is collected after its loop was closed has no loop to wait on.
            if running_loop() is self._loop:
                self.life = CLOSING
                # Workers that are threads may wait for the consumer, too.
                self._home.stop()
                if not self._home.is_empty():
                    with leaving_time(1):
                        await self._home.aclose()
                edge.tree.close_sources()
                await self._lifecycle.end_epoch(edge.tree)

    def _hand_over(self, edge: Edge[Any]) -> None:
        """Let the consumer take items in flight, and hand each over in its own thread."""
        current = self._current_device
        edge.current_device = current_device() if current is None else current
        self._buffer.reader = HandedOver

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs none of its own code.
        if self.life is not OVER:
            self._error = LastingError(LoaderClosed(_CLOSED))
            self._finish()
        if not task.cancelled():
            # What it raised, such as an interrupt, has come out of the loop itself.
            task.exception()

    def _finish(self) -> None:
        self.life = OVER
        self.watching.main.end()
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
        if self._task is not None and self.life is RUNNING:
            self.life = CLOSING
            self._task.cancel()


class AsyncEpoch(LoopEpoch):
    """An epoch on the running loop, whose items one of its tasks takes."""

    def __init__(self, lifecycle: Lifecycle, start: EpochStart, buffer: ItemBuffer) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = GroupWaiter(loop, _WAIT_SECONDS)
        super().__init__(lifecycle, start, buffer, loop, self._waiter)
        self._begin()

    async def next(self) -> Any:
        """Wait for the next item; StopAsyncIteration at the end. Cancelling this loses nothing."""
        buffer = self._buffer
        while True:
            for item in buffer.ready:
                return item
            if buffer.wants_more():
                self.watching.main.resume()
                try:
                    await self._waiter.until(self._take)
                finally:
                    self.watching.main.resting_since = perf_counter()
                if buffer.is_ended:
                    raise StopAsyncIteration
            elif buffer.is_closed():
                raise StopAsyncIteration

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return self._loop is loop and self.life is not OVER

    def _hand_over(self, edge: Edge[Any]) -> None:
        super()._hand_over(edge)
        # Each item is worth a wake-up: the device may have nothing else to do.
        self._waiter.wait_for_one()


class SyncEpoch(LoopEpoch):
    """An epoch on a private loop, whose items a thread takes."""

    def __init__(
        self, lifecycle: Lifecycle, start: EpochStart, buffer: ItemBuffer, thread: LoopThread
    ) -> None:
        self._waiter = ThreadWaiter()
        loop = thread.loop
        super().__init__(lifecycle, start, buffer, loop, self._waiter)
        if hands_over(lifecycle.adapted):
            self._current_device = current_device()
        loop.call_soon_threadsafe(self._begin)

    def next(self) -> Any:
        """Wait for the next item; StopIteration at the end, and after an error it again."""
        buffer = self._buffer
        while True:
            for item in buffer.ready:
                return item
            if buffer.wants_more():
                self.watching.main.resume()
                try:
                    self._waiter.until(self._take)
                finally:
                    self.watching.main.resting_since = perf_counter()
                if buffer.is_ended:
                    raise StopIteration
            elif buffer.is_closed():
                raise StopIteration

    async def aclose(self) -> None:
        self._waiter.stop()
        await super().aclose()


class DirectEpoch(Epoch):
    """An epoch whose items are made right in the consumer's thread, nothing ahead of it."""

    def __init__(
        self, lifecycle: Lifecycle, start: EpochStart, buffer: ItemBuffer, thread: LoopThread
    ) -> None:
        self._buffer = buffer
        self._lifecycle = lifecycle
        self._thread = thread
        self._caller = WatchedCalls(DirectEpoch.next.__code__)
        self.watching = Watching(self._caller)
        # Why there is no next item; and how the epoch ended, if it has.
        self._error: LastingError | None = None
        self._end: LastingError | None = None
        self.life = RUNNING
        self._made = 0
        # How many items were made when somebody first saw the consumer wait for the next, and when.
        self._seen_waiting = (-1, 0.0)
        run = lifecycle.begin_epoch_here(start, buffer) or thread.call(
            lambda: lifecycle.begin_epoch(start, buffer)
        )
        self.watching.begin(run.tree, lambda: pipes_of(run.pipe))
        # To set a timer would wake the loop's thread, which then asks for the GIL.
        self._caller.begins_at = perf_counter() + SAMPLER.begin_seconds
        self._run = run
        self._tree = run.tree
        self._history = CursorHistory(
            self._put_cursors,
            # The item that is made now is none of them.
            run.tree.settled_items,
            first=run.first_cursors(),
        )
        try:
            self._iterator: Iterator[Any] = run.started()
        except BaseException:
            # Otherwise it might be watched for ever.
            self._caller.end()
            raise

    @property
    def iterator(self) -> Any:
        return self._iterator

    def next(self) -> Any:
        """Make the next item; StopIteration at the end, and after an error it again."""
        buffer = self._buffer
        if buffer.arrived >= buffer.closes_at:
            raise StopIteration
        if self._error is not None:
            # It may have ended while its settings were changed.
            raise (self._end or self._error).again()
        if self._caller.is_parked:
            self._caller.resume()
        try:
            item = next(self._iterator)
            if self.life is not RUNNING:
                self._close_items()
            self._made += 1
            self._history.passed(self._made)
            # It passes even if the buffer was closed meanwhile.
            buffer.arrived += 1
            return item
        except BaseException as error:
            # The end has no traceback: it would make a circle of references.
            is_end = isinstance(error, StopIteration)
            self._error = self._end = LastingError(StopIteration() if is_end else error)
            self._caller.end()
            # An interrupt is no error of the epoch.
            if isinstance(error, Exception | SystemExit):
                buffer.end(error)
            self._close_items()
            if not self._lifecycle.end_epoch_here(self._tree):
                self._thread.call(lambda: self._lifecycle.end_epoch(self._tree))
            self.life = OVER
            raise

    def cursors(self, passed: int) -> Cursors:
        return self._history.at(passed)

    def waits_since(self) -> float:
        # Nothing is noted for each item, so a wait is as old as the first look at it.
        with present_frames() as frames:
            place = self._caller.place(self.watching.owners(), frames)
        if self.life is OVER or place == OUTSIDE:
            self._seen_waiting = (-1, 0.0)
        elif self._seen_waiting[0] != self._made:
            self._seen_waiting = (self._made, perf_counter())
        return self._seen_waiting[1]

    def _put_cursors(self, into: Cursors) -> None:
        self._run.put_cursors(into)
        # It is asked for now and then, which is often enough for this.
        self._caller.begin_if_due()

    def change_settings(self) -> None:
        if self._error is None and self.life is RUNNING:
            self._error = LastingError(SettingsChanged())

    async def aclose(self) -> None:
        self.leave()
        await self._lifecycle.end_epoch(self._tree)

    def abandon(self) -> None:
        self.leave()
        # The next epoch may have begun on another loop when this one gets to it.
        work = self._lifecycle.end_epoch(self._tree)
        try:
            asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        except RuntimeError:  # the private loop is closed, and with it the loader
            work.close()

    def leave(self) -> None:
        if self.life is RUNNING:
            self.life = CLOSING
        self.watching.main.end()
        # A thread that is inside the generators closes them when it comes out.
        if not getattr(self._iterator, "gi_running", False):
            self._close_items()

    def _close_items(self) -> None:
        close_items(self._iterator)
        self._tree.close_sources()
