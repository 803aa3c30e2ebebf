"""One epoch, run by a task of its own.

This file is about ``Epoch``: it begins the epoch, runs the graph where it
belongs, and ends the epoch, whoever consumes it and however. The consumer only
ever waits for what lies in the exchange, so cancelling it cannot hurt a pipe.

    supervisor task ─ runs ─▶ graph ─▶ Exchange ─▶ consumer (a task, or a thread)
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.datapipes.going_on.lasting import LastingError
from asyncloader.datapipes.pipe.run import Run, is_async_pipe
from asyncloader.datapipes.running.exchange import Exchange, Waiter
from asyncloader.datapipes.running.home import Home, give_groups, run_at
from asyncloader.deadline import give_time_left, leaving_time, time_left
from asyncloader.errors import LoaderClosed
from asyncloader.graph.walk import pipes_of
from asyncloader.loader.lifecycle import CLOSE_SECONDS, Lifecycle
from asyncloader.loader.seeding import EpochStart
from asyncloader.loader.timing import Timing
from asyncloader.runtime import begin_task, is_being_cancelled, not_cancelled, running_loop
from asyncloader.waiting import call_soon

_CLOSED = "the epoch was closed before its end"


class Epoch:
    """An epoch on the loop ``loop``; ``consumer`` is woken when there is something to take."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        start: EpochStart,
        loop: asyncio.AbstractEventLoop,
        consumer: Waiter,
        timing: Timing,
    ) -> None:
        self.loop = loop
        self.is_over = False
        self._lifecycle = lifecycle
        self._start = start
        self._consumer = consumer
        self._timing = timing
        self._home = Home(loop, timing.watching)
        self._context = run_at(self._home)
        self._top: Run[Any] | None = None
        self._exchange: Exchange[Any] = Exchange(consumer, self._put_cursors, start.cursors)
        self._error: LastingError | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._iterator_of: Callable[[], Any] = lambda: None

    @property
    def iterator(self) -> Any:
        """The iterator of the graph itself, or None before there is one."""
        return self._iterator_of()

    def start(self) -> None:
        """Begin the epoch; to be called on its loop."""
        self._task = begin_task(self.loop, self._supervise(), "asyncloader epoch", self._context)
        self._task.add_done_callback(self._ended)

    def is_ready(self) -> bool:
        """Whether there is something to take: items, the end, or an error."""
        return self._exchange.has_items() or self.is_over

    def ask(self) -> None:
        """Have it go on, should an interrupt have kept ``take`` from saying so."""
        self._exchange.ask()

    def take(self, into: list[Any] | None = None) -> list[Any]:
        """Return the items that are ready; [] at the end, and the error each time after one.

        They are added to ``into``, which whoever may be interrupted holds already.
        """
        if self._exchange.has_items():
            return self._exchange.take(into)
        if self._error is not None:
            raise self._error.again()
        return []

    def cursors(self) -> Cursors:
        """Return where the graph stood when at most what was taken had been made."""
        into: Cursors = {}
        self._exchange.put_cursors(into)
        return into

    def abandon(self) -> None:
        """End the epoch without waiting for it; any thread may call this."""
        if self.is_over:
            return
        if self.loop.is_closed():
            self._home.stop()
            warnings.warn(
                "the event loop was closed while an epoch was running; use `async with loader`"
                " or `await loader.aclose()` before the loop ends",
                ResourceWarning,
                stacklevel=3,
            )
        call_soon(self.loop, self._cancel)

    async def aclose(self) -> None:
        """End the epoch and wait until it is over, for a bounded time; on any loop."""
        if self.is_over or self.loop.is_closed():
            return
        if not self.loop.is_running():
            # It ends when its loop next runs. Nobody can wait for that here.
            self._home.stop()
            self.abandon()
            return
        if asyncio.get_running_loop() is self.loop:
            await self._close()
        else:
            closing = asyncio.run_coroutine_threadsafe(self._close(), self.loop)
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=time_left(CLOSE_SECONDS))

    async def _close(self) -> None:
        give_time_left(self._context)
        self._cancel()
        if self._task is not None:
            _, stuck = await asyncio.wait([self._task], timeout=time_left(CLOSE_SECONDS))
            for task in stuck:
                task.cancel()

    def _cancel(self) -> None:
        # Once is enough, and none where it ends by itself: it would disturb the cleaning up.
        if self._task is not None and not self._is_closing:
            self._is_closing = True
            self._task.cancel()

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

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs nothing of its own.
        if not self.is_over:
            self._error = LastingError(LoaderClosed(_CLOSED))
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self._timing.end()
        self._consumer.wake()

    def _put_cursors(self, into: Cursors) -> None:
        if self._top is not None:
            self._top.put_own_cursors(into)

    async def _run(self, run: Run[Any]) -> None:
        self._top = run
        self._exchange.begin(run.first_cursors())
        self._timing.watching.begin(lambda: pipes_of(run.pipe))
        try:
            if is_async_pipe(run.pipe):
                iterator = run.astarted()
                self._iterator_of = lambda: iterator
                is_patient = run.is_made_elsewhere()
                await give_groups(iterator, self._exchange, self.loop, is_patient=is_patient)
            else:
                giver = self._home.start_thread(run, self._exchange)
                self._iterator_of = lambda: giver.iterator
                await giver.finish()
        finally:
            # A task that is collected after its loop was closed has no loop to wait on.
            if running_loop() is self.loop:
                self._is_closing = True
                await self._end()

    async def _end(self) -> None:
        if not self._home.is_empty():
            with leaving_time(1):
                await self._home.aclose()
        await self._lifecycle.end_epoch()
