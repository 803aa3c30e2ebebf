"""The items of one branch of the graph, from all workers.

This file is about ``WorkerStream``: it waits for whoever owes an item, hands on
what is due, and grants the workers more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from asyncloader.errors import WorkerTimeout
from asyncloader.runtime import LoopWaiter, in_thread
from asyncloader.workers.link import Link
from asyncloader.workers.merging import AsTheyCome, InOrder, Merge
from asyncloader.workers.messages import Grant, Hurry

logger = logging.getLogger("asyncloader")

WARN_SECONDS = 30.0
HURRY_SECONDS = 0.05


@dataclass(frozen=True)
class PoolSettings:
    """How many workers there are, how they start, and how far they may run ahead."""

    num_workers: int
    method: str | None
    credits: int
    in_order: bool
    timeout: float | None
    prefetch_bytes: int


class WorkerStream:
    """The items of one branch in one epoch, from all workers."""

    def __init__(
        self,
        links: list[Link],
        watched: list[Link],
        number: int,
        epoch: int,
        waiter: LoopWaiter,
        settings: PoolSettings,
    ) -> None:
        self._links = links
        self._watched = watched
        self._number = number
        self._epoch = epoch
        self._waiter = waiter
        self._settings = settings
        self._inboxes = [link.inboxes[number] for link in links]
        order = InOrder if settings.in_order else AsTheyCome
        self._merge: Merge = order(self._inboxes)

    async def take(self) -> list[Any]:
        """Wait for the next items; [] at the end, and an error in the place of its item."""
        items: list[Any] = []
        while not items and not self._merge.is_over():
            await self._until_ready()
            await self._open_heavy()
            items = self._merge.take()
            self._grant()
        return items

    async def _until_ready(self) -> None:
        begun = time.monotonic()
        while not self._merge.is_ready():
            failure = self._failure()
            if failure is not None:
                raise failure
            self._ask()
            hurry = asyncio.get_running_loop().call_later(HURRY_SECONDS, self._hurry)
            try:
                async with asyncio.timeout(self._patience(begun)):
                    await self._waiter.until(self._has_news)
            except TimeoutError:
                self._complain(begun)
            finally:
                hurry.cancel()

    def _has_news(self) -> bool:
        return self._merge.is_ready() or self._failure() is not None

    def _failure(self) -> BaseException | None:
        failures = (link.failure or link.epoch_failure for link in self._watched)
        return next((failure for failure in failures if failure is not None), None)

    def _ask(self) -> None:
        """Grant a frame to every worker that has nothing, where workers make nothing ahead."""
        if self._settings.credits:
            return
        for link, inbox in zip(self._links, self._inboxes, strict=True):
            if not inbox.is_asked and not inbox.has_something():
                inbox.is_asked = True
                link.send(Grant(self._epoch, self._number, 1))

    def _hurry(self) -> None:
        for inbox in self._merge.awaited():
            self._links[inbox.worker].send(Hurry(self._epoch, self._number))

    def _grant(self) -> None:
        if not self._settings.credits:
            return
        # A grant wakes the worker, so several go together; it has credits left meanwhile.
        for link, inbox in zip(self._links, self._inboxes, strict=True):
            if inbox.credits_done > self._settings.credits // 2:
                link.send(Grant(self._epoch, self._number, inbox.credits_done))
                inbox.credits_done = 0

    async def _open_heavy(self) -> None:
        for inbox in self._inboxes:
            if inbox.is_heavy():
                await in_thread(inbox.open)

    def _patience(self, begun: float) -> float:
        limit = self._settings.timeout
        return WARN_SECONDS if limit is None else max(0.0, limit - self._silence(begun))

    def _silence(self, begun: float) -> float:
        """How long the worker that owes an item has said nothing, since it was waited for."""
        return time.monotonic() - max(self._most_silent().last_heard, begun)

    def _most_silent(self) -> Link:
        owing = (self._links[inbox.worker] for inbox in self._merge.awaited())
        return min(owing, key=lambda link: link.last_heard)

    def _complain(self, begun: float) -> None:
        link = self._most_silent()
        owing, silence = link.worker, self._silence(begun)
        limit = self._settings.timeout
        if limit is None:
            logger.warning("waiting for worker %d for %.0f s", owing, silence)
            return
        if silence < limit:
            return
        failure = WorkerTimeout(
            f"worker {owing} (pid {link.process.pid}) owes an item and said nothing for"
            f" {silence:.1f} s (timeout={limit:g}); it was killed",
            worker=owing,
        )
        link.fail(failure)
        link.process.kill()
        raise failure
