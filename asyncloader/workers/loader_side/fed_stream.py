"""The items of a part whose source lives with the loader.

This file is about ``FedStream``: it deals the source's items to the least busy worker, and
hands on what comes back as it comes. A worker's death costs only what that worker had.

    source ─ deal ─▶ FeedLine ─▶ worker ─▶ Inbox ─ take ─▶ the loader's part of the graph
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable
from typing import Any

from asyncloader.datapipes.going_on.iterating import aclose_items
from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.datapipes.pipe.weighing import is_heavy
from asyncloader.datapipes.running.home import cancelled
from asyncloader.errors import LoaderError, PipelineError, TransportError
from asyncloader.runtime import begin_task, in_thread
from asyncloader.safe_error_text import repr_of
from asyncloader.waiting import LoopWaiter
from asyncloader.workers.loader_side.feed_line import FeedLine
from asyncloader.workers.loader_side.inbox import Inbox
from asyncloader.workers.loader_side.link import Link
from asyncloader.workers.loader_side.place import StreamPlace, first_place
from asyncloader.workers.loader_side.silence import Silence
from asyncloader.workers.loader_side.worker_stream import Pool, PoolSettings

logger = logging.getLogger("asyncloader")


class FedStream:
    """What comes back of the items that are dealt in one epoch."""

    def __init__(self, pool: Pool, number: int, waiter: LoopWaiter, settings: PoolSettings) -> None:
        self._pool = pool
        self._number = number
        self._waiter = waiter
        self._settings = settings
        self._dealer = LoopWaiter(asyncio.get_running_loop())
        self._silence = Silence(self._living, settings.timeout, waiter.wake)
        self._inboxes: list[Inbox] = []
        #: Who was dealt to; a worker that died may have been replaced before it is buried.
        self._lines: dict[Link, FeedLine] = {}
        self._buried: set[Link] = set()
        #: Items that came to their end without coming back from a worker.
        self._lost: list[Envelope] = []
        self._is_dealt = False
        self._error: BaseException | None = None
        self._recovery: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Have the workers begin; to be called before ``deal`` and ``take``."""
        self._inboxes = self._pool.begin_stream(self._number, self.place())

    def place(self) -> StreamPlace:
        """Return the beginning: what was dealt never comes again."""
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
            # One whose worker is being replaced hands on what it was told.
            for link in self._pool.links:
                if link.line is not None:
                    link.line.finish()
            self._waiter.wake()

    async def take(self) -> list[Any]:
        """Wait for what comes next; [] at the end."""
        while True:
            await self._waiter.until(self._has_news)
            for inbox in self._inboxes:
                await inbox.get_torch()
                if inbox.is_heavy():
                    await in_thread(inbox.open)
            items = self._arrived() + self._of_dead()
            if items:
                return items
            self._check()
            if self._is_over():
                return []

    async def aclose(self) -> None:
        """Stop replacing workers, and looking after them."""
        await self._silence.aclose()
        if self._recovery is not None:
            await cancelled([self._recovery])

    # Dealing ----------------------------------------------------------------------------

    def _living(self) -> list[Link]:
        return [link for link in self._pool.links if link.failure is None and link.line is not None]

    def _line_to(self, link: Link) -> FeedLine:
        line = link.line
        assert line is not None
        line.on_credit = self._dealer.wake
        self._lines[link] = line
        return line

    def _can_deal(self) -> bool:
        lines = [self._line_to(link) for link in self._living()]
        return any(line.can_deal() for line in lines)

    async def _deal(self, item: Any) -> None:
        asking = [line for line in map(self._line_to, self._living()) if line.can_deal()]
        line = min(asking, key=lambda line: (len(line.out), -line.credits))
        self._silence.watch()
        try:
            if is_heavy(item.item if isinstance(item, Envelope) else item):
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
        if any(link.failure is not None for link in self._unburied()):
            return True
        return any(map(self._has_news_of, self._pool.links, self._inboxes))

    def _has_news_of(self, link: Link, inbox: Inbox) -> bool:
        if inbox.is_over():
            return inbox.error is not None and inbox.error is not link.failure
        return inbox.has_something()

    def _arrived(self) -> list[Any]:
        items: list[Any] = []
        for inbox in self._inboxes:
            items += self._opened(inbox)
        return items

    def _opened(self, inbox: Inbox) -> list[Any]:
        """Return the items of the frame whose turn it is; its worker does not owe them any more."""
        count = inbox.open()
        items = inbox.take(count) if count else []
        for item in items:
            if isinstance(item, Envelope):
                for line in self._lines.values():
                    line.out.pop(item.key, None)
        return items

    def _unburied(self) -> set[Link]:
        """Return all that may have something of ours, those too that were replaced already.

        One that is asked where it stands is buried with what it says.
        """
        return {*self._pool.links, *self._lines} - self._buried - self._silence.dying

    def _of_dead(self) -> list[Any]:
        """Return what dead workers had; they are replaced where that is wanted."""
        items: list[Any] = []
        # One whose place another has taken does not come again.
        self._buried.intersection_update(self._pool.links)
        for link in self._unburied():
            if link.failure is not None:
                self._buried.add(link)
                items += self._left_in(self._inboxes[link.worker or 0])
                self._lose_all(link, link.failure)
                self._check_nameless(link, link.failure)
                self._recover(link)
        lost, self._lost = self._lost, []
        return items + lost

    def _left_in(self, inbox: Inbox) -> list[Any]:
        """Return all that came before a death: it is whole."""
        items: list[Any] = []
        while opened := self._opened(inbox):
            items += opened
        return items

    def _check_nameless(self, link: Link, failure: BaseException) -> None:
        """End the stream where nobody can say which of a worker's items did not come back."""
        inbox = self._inboxes[link.worker or 0]
        has_given_all = inbox.is_over() and inbox.error is None
        if link.line is not None and link.line.has_nameless and not has_given_all:
            self._error = failure

    def _lose_all(self, link: Link, error: BaseException) -> None:
        line = self._lines.pop(link, None)
        if line is not None:
            self._lost += [envelope.failed(error) for envelope in line.lose_all()]

    def _recover(self, link: Link) -> None:
        if self._settings.max_restarts is None:
            logger.warning("%s; the other workers go on without it", link.failure)
        elif self._recovery is None:
            loop = asyncio.get_running_loop()
            self._recovery = begin_task(loop, self._recovered(), "asyncloader recovery")

    async def _recovered(self) -> None:
        try:
            # Another may die while one is replaced.
            while await self._pool.recover():
                self._dealer.wake()
            left = self._failure()
        except LoaderError as error:
            left = error
        finally:
            self._recovery = None
            self._waiter.wake()
        if left is not None:
            logger.warning("%s; the other workers go on without it", left)

    def _is_deserted(self) -> bool:
        """Whether no worker is left, and none will come."""
        if self._recovery is not None or self._silence.dying:
            return False
        return not any(link.failure is None for link in self._pool.links)

    def _failure(self) -> BaseException | None:
        failures = (link.failure for link in self._pool.links)
        return next((failure for failure in failures if failure is not None), None)

    def _check(self) -> None:
        """Raise what ends the stream."""
        if self._error is not None:
            raise self._error
        for link, inbox in zip(self._pool.links, self._inboxes, strict=True):
            if link.epoch_failure is not None:
                raise link.epoch_failure
            if inbox.is_over() and inbox.error is not None and inbox.error is not link.failure:
                self._excuse(link, inbox, inbox.error)
        failure = self._failure()
        if self._is_deserted() and failure is not None:
            raise failure

    def _excuse(self, link: Link, inbox: Inbox, error: BaseException) -> None:
        """Let a result that cannot be read fail for all that the worker has: one of them is it."""
        if not isinstance(error, TransportError):
            raise error
        inbox.go_on()
        self._lose_all(link, error)
        if link.failure is not None:
            inbox.end(link.failure)

    def _is_over(self) -> bool:
        if not self._is_dealt or self._lost or self._recovery or self._silence.dying:
            return False
        return all(inbox.is_over() for inbox in self._inboxes)
