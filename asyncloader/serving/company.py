"""How long requests wait for others, to be worked on in one batch.

This file is about ``Company``, which says when a batch that is not full is closed: after some time
(``ForSeconds``), or as soon as waiting longer would win nothing (``WhileBusy``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol


class OpenBatch(Protocol):
    """A batch that more requests can come into; there is at least one."""

    def count(self) -> int:
        """Return how many there are."""

    def is_closed(self) -> bool:
        """Whether it is full, or no more can come."""

    def since(self) -> float:
        """Return when the first of them came, by ``monotonic``."""

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until it is closed, or ``ready()`` after a ``look``."""

    def look(self) -> None:
        """Let ``until`` look again; called whenever a batch before it was settled."""


class Company(Protocol):
    """Says when a batch is closed."""

    async def gathered(self, batch: OpenBatch) -> None:
        """Wait until a batch is to be closed."""


@dataclass(frozen=True)
class ForSeconds:
    """Closes a batch when its first request has waited for so many seconds."""

    max_wait: float

    async def gathered(self, batch: OpenBatch) -> None:
        if batch.is_closed():
            return
        # A timer may fire a clock tick early, so trust the call and not the clock.
        is_due = False

        def fall_due() -> None:
            nonlocal is_due
            is_due = True
            batch.look()

        left = batch.since() + self.max_wait - monotonic()
        timer = asyncio.get_running_loop().call_later(left, fall_due)
        try:
            await batch.until(lambda: is_due)
        finally:
            timer.cancel()


@dataclass(frozen=True)
class WhileBusy:
    """Closes a batch when there is nobody that it could wait for.

    That is when fewer than ``at_a_time`` batches are being worked on, as ``under_way`` says, and
    a turn of the loop has brought no other request. Those who have just heard their answers ask
    again in the turn after that.
    """

    under_way: Callable[[], int]
    at_a_time: int

    async def gathered(self, batch: OpenBatch) -> None:
        count = 0
        while not batch.is_closed():
            if not self._is_idle():
                await batch.until(self._is_idle)
            elif batch.count() == count:
                return
            else:
                count = batch.count()
                await asyncio.sleep(0)

    def _is_idle(self) -> bool:
        return self.under_way() < self.at_a_time
