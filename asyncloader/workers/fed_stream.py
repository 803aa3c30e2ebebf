"""The items of a part whose source lives with the loader.

This file is about ``FedStream``: it deals each item of the source to the least busy worker, and
yields the results as they arrive. If a worker dies, only the items it had are lost.

    source ─ deal ─▶ FeedLine ─▶ worker ─▶ Inbox ─ take ─▶ the loader's part of the graph
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from asyncloader.datapipes.envelope import Envelope
from asyncloader.datapipes.prefetching import is_heavy
from asyncloader.datapipes.running.cursors import aclose_items
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.errors import LoaderError, PipelineError, TransportError, WorkerTimeout
from asyncloader.places.stream_place import StreamPlace, first_place
from asyncloader.runtime import begin_task
from asyncloader.safe_error_text import repr_of
from asyncloader.waiting import LoopWaiter
from asyncloader.workers.feed_line import FeedLine
from asyncloader.workers.handle import LOST, WorkerHandle
from asyncloader.workers.inbox import Inbox
from asyncloader.workers.worker_stream import WARN_SECONDS, Pool, PoolSettings

logger = logging.getLogger("asyncloader")


class FedStream:
    """The results of the items that are dealt in one epoch."""

    def __init__(self, pool: Pool, number: int, settings: PoolSettings) -> None:
        loop = asyncio.get_running_loop()
        self._pool = pool
        self._number = number
        self._waiter = LoopWaiter(loop)
        self._settings = settings
        self._dealer = LoopWaiter(loop)
        self._silence = Silence(self._living, settings.timeout, self._waiter.wake)
        self._inboxes: list[Inbox] = []
        #: The workers that got items; a dead one may be replaced before its items are given up.
        self._lines: dict[WorkerHandle, FeedLine] = {}
        self._accounted: set[WorkerHandle] = set()
        #: Items that failed or were lost before a worker returned them.
        self._lost: list[Envelope] = []
        self._is_dealt = False
        self._error: BaseException | None = None
        self._recovery: asyncio.Task[None] | None = None

    def news(self) -> None:
        """Note that something came from a worker, or that one has ended."""
        self._waiter.wake()

    def begin(self) -> None:
        """Let the workers begin; call this before ``deal`` and ``take``."""
        self._inboxes = self._pool.begin_stream(self._number, self.place())

    def place(self) -> StreamPlace:
        """Return the beginning: dealt items cannot be made again, so there is no other place."""
        return first_place(self._settings.num_workers)

    async def deal(self, source: AsyncIterable[Any]) -> None:
        """Deal the items of the source, each when a worker asks for one."""
        items = aiter(source)
        try:
            while True:
                await self._dealer.until(self._can_deal)
                item = await anext(items)
                # The worker that asked for it may have died meanwhile.
                await self._dealer.until(self._can_deal)
                await self._deal(item)
                del item
        except StopAsyncIteration:
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self._error = error
        finally:
            await aclose_items(items)
            self._is_dealt = True
            # The line of a worker that is being replaced tells its successor.
            for handle in self._pool.handles:
                if handle.line is not None:
                    handle.line.finish()
            self._waiter.wake()

    async def take(self) -> list[Any]:
        """Wait for what comes next; [] at the end."""
        while True:
            await self._waiter.until(self._has_news)
            for inbox in self._inboxes:
                if inbox.has_slow_frame():
                    await inbox.open_slow()
            items = self._arrived() + self._of_dead()
            if items:
                return items
            self._check()
            if self._is_over():
                return []

    async def aclose(self) -> None:
        """Stop replacing and watching workers."""
        await self._silence.aclose()
        if self._recovery is not None:
            await cancelled([self._recovery])

    def holding_up(self) -> list[UnderWay]:
        """Ask the workers that owe an answer what they do."""
        owing = [each for each in self._living() if each.line is not None and each.line.out]
        return [each for handle in owing for each in handle.holding_up()]

    # Dealing ----------------------------------------------------------------------------

    def _living(self) -> list[WorkerHandle]:
        return [
            handle
            for handle in self._pool.handles
            if handle.life is not LOST and handle.line is not None
        ]

    def _line_to(self, handle: WorkerHandle) -> FeedLine:
        line = handle.line
        assert line is not None
        line.on_credit = self._dealer.wake
        self._lines[handle] = line
        return line

    def _can_deal(self) -> bool:
        lines = [self._line_to(handle) for handle in self._living()]
        return any(line.can_deal() for line in lines)

    async def _deal(self, item: Any) -> None:
        asking = [line for line in map(self._line_to, self._living()) if line.can_deal()]
        line = min(asking, key=lambda line: (len(line.out), -line.credits))
        self._silence.watch()
        try:
            of = item.item if isinstance(item, Envelope) else item
            if line.pickles and is_heavy(of):
                await line.deal_heavy(item)
            else:
                line.deal(item)
        except Exception as error:  # noqa: BLE001 - user code ran: __reduce__, __getstate__
            self._refuse(item, error)

    def _refuse(self, item: Any, error: Exception) -> None:
        of = item.item if isinstance(item, Envelope) else item
        refusal = PipelineError(
            f"an item of type {type(of).__qualname__} could not be pickled: {repr_of(error)}; feed"
            " plain data or tensors"
        )
        refusal.__cause__ = error
        if not isinstance(item, Envelope):
            raise refusal
        self._lost.append(item.failed(refusal))
        self._waiter.wake()

    # Taking -----------------------------------------------------------------------------

    def _has_news(self) -> bool:
        if self._lost or self._error is not None or self._is_over() or self._is_deserted():
            return True
        if any(handle.life is LOST for handle in self._unaccounted()):
            return True
        return any(map(self._has_news_of, self._pool.handles, self._inboxes))

    def _has_news_of(self, handle: WorkerHandle, inbox: Inbox) -> bool:
        return _has_failed(handle, inbox) if inbox.is_over() else inbox.has_something()

    def _arrived(self) -> list[Any]:
        items: list[Any] = []
        for inbox in self._inboxes:
            items += self._opened(inbox)
        return items

    def _opened(self, inbox: Inbox) -> list[Any]:
        """Return the items of the next frame, which its worker then no longer owes."""
        count = inbox.open()
        items = inbox.take(count) if count else []
        for item in items:
            if isinstance(item, Envelope):
                for line in self._lines.values():
                    line.out.pop(item.key, None)
        return items

    def _unaccounted(self) -> set[WorkerHandle]:
        """Return all workers that may have items of ours, also those already replaced.

        A worker that is asked for its threads' stacks is given up after it has answered.
        """
        return {*self._pool.handles, *self._lines} - self._accounted - self._silence.dying

    def _of_dead(self) -> list[Any]:
        """Return the items that dead workers had; replace the workers if that is allowed."""
        items: list[Any] = []
        # A worker that was already replaced is not replaced again.
        self._accounted.intersection_update(self._pool.handles)
        for handle in self._unaccounted():
            if handle.life is LOST and (failure := handle.failure) is not None:
                self._accounted.add(handle)
                items += self._left_in(self._inboxes[handle.worker or 0])
                self._lose_all(handle, failure)
                self._check_unkeyed(handle, failure)
                self._recover(handle)
        lost, self._lost = self._lost, []
        return items + lost

    def _left_in(self, inbox: Inbox) -> list[Any]:
        """Return all items that arrived before the worker's death; they are complete."""
        items: list[Any] = []
        while opened := self._opened(inbox):
            items += opened
        return items

    def _check_unkeyed(self, handle: WorkerHandle, failure: BaseException) -> None:
        """End the stream if nobody can tell which of the worker's items are missing."""
        inbox = self._inboxes[handle.worker or 0]
        has_given_all = inbox.is_over() and inbox.error is None
        if handle.line is not None and handle.line.has_unkeyed and not has_given_all:
            self._error = failure

    def _lose_all(self, handle: WorkerHandle, error: BaseException) -> None:
        line = self._lines.pop(handle, None)
        if line is not None:
            lost = [envelope.failed(error) for envelope in line.lose_all()]
            self._lost += lost
            # Their error is an answer, and so many requests that kill may come in a row.
            handle.has_delivered = handle.has_delivered or bool(lost)

    def _recover(self, handle: WorkerHandle) -> None:
        if self._settings.max_restarts is None:
            logger.warning("%s; the other workers continue without it", handle.failure)
        elif self._recovery is None:
            loop = asyncio.get_running_loop()
            self._recovery = begin_task(loop, self._recovered(), "asyncloader recovery")

    async def _recovered(self) -> None:
        try:
            # Another worker may die while this one is replaced.
            while await self._pool.recover():
                self._dealer.wake()
            left = self._failure()
        except LoaderError as error:
            left = error
        finally:
            self._recovery = None
            self._waiter.wake()
        if left is not None:
            logger.warning("%s; the other workers continue without it", left)

    def _is_deserted(self) -> bool:
        """Whether no worker is left and none will be started."""
        if self._recovery is not None or self._silence.dying:
            return False
        return all(handle.life is LOST for handle in self._pool.handles)

    def _failure(self) -> BaseException | None:
        failures = (handle.failure for handle in self._pool.handles)
        return next((failure for failure in failures if failure is not None), None)

    def _check(self) -> None:
        """Raise what ends the stream."""
        if self._error is not None:
            raise self._error
        for handle, inbox in zip(self._pool.handles, self._inboxes, strict=True):
            if inbox.is_over() and inbox.error is not None and _has_failed(handle, inbox):
                self._excuse(handle, inbox, inbox.error)
        failure = self._failure()
        if self._is_deserted() and failure is not None:
            raise failure

    def _excuse(self, handle: WorkerHandle, inbox: Inbox, error: BaseException) -> None:
        """Fail all pending items of the worker; we cannot tell which one is unreadable."""
        if not isinstance(error, TransportError):
            raise error
        inbox.continue_after_error()
        self._lose_all(handle, error)
        if handle.life is LOST:
            inbox.end(handle.failure)

    def _is_over(self) -> bool:
        if not self._is_dealt or self._lost or self._recovery or self._silence.dying:
            return False
        return all(inbox.is_over() for inbox in self._inboxes)


def _has_failed(handle: WorkerHandle, inbox: Inbox) -> bool:
    """Whether a stream ended with an error, and not because its worker was lost."""
    return inbox.error is not None and not (handle.life is LOST and inbox.error is handle.failure)


#: A timer may call a little early; it is set again for at least so long.
_TICK = 0.01

_ENDING = "asyncloader hang dump"


class Silence:
    """Gives up workers that owe an answer and say nothing for ``limit`` seconds.

    Such workers fail at once; ``on_end`` is called when their stacks are known. Without a
    limit this only logs a warning every half minute.
    """

    def __init__(
        self,
        handles: Callable[[], Iterable[WorkerHandle]],
        limit: float | None,
        on_end: Callable[[], None],
    ) -> None:
        self._handles = handles
        self._on_end = on_end
        self._limit = limit
        self._seconds = WARN_SECONDS if limit is None else limit
        #: The workers that a warning was about, and when.
        self._complaints: dict[WorkerHandle, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: The workers given up that are being asked for their stacks.
        self.dying: set[WorkerHandle] = set()
        self._endings: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Watch the workers until none owes an item; call this when one does."""
        if self._timer is None:
            self._look_after(self._seconds)

    async def aclose(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await cancelled([*self._endings])

    def _look_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(seconds, _TICK), self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._complaints = {handle: self._complaints.get(handle, 0.0) for handle in self._handles()}
        for handle in self._handles():
            if now - self._silent_since(handle) >= self._seconds:
                self._complain(handle, now)
        oldest = min(map(self._silent_since, self._handles()), default=math.inf)
        if oldest < math.inf:
            self._look_after(oldest + self._seconds - now)

    def _silent_since(self, handle: WorkerHandle) -> float:
        if handle.line is None or handle.failure is not None:
            return math.inf
        heard = max(handle.last_heard, handle.line.last_heard, self._complaints.get(handle, 0.0))
        return max(handle.line.owes_since(), heard)

    def _complain(self, handle: WorkerHandle, now: float) -> None:
        self._complaints[handle] = now
        if self._limit is None:
            logger.warning("waiting for %s for %.0f s", handle.name, self._seconds)
            return
        failure = WorkerTimeout(
            f"{handle.name} ({handle.process.place}) owes an answer and said nothing for"
            f" {self._limit:g} s; {handle.process.when_silent}",
            worker=handle.worker,
        )
        # We end it, so its end must not be reported as a death.
        self.dying.add(handle)
        handle.fail(failure)
        ending = begin_task(asyncio.get_running_loop(), self._end(handle, failure), _ENDING)
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, handle: WorkerHandle, failure: WorkerTimeout) -> None:
        try:
            await handle.add_stack(failure)
        finally:
            handle.process.kill()
            self.dying.discard(handle)
            self._on_end()
