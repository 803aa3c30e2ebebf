"""Batches that are closed by the clock.

This file is about ``timed_batches``, for items that come when they come: a batch is
closed when it is full, or when its oldest item has waited long enough for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Generic, TypeVar

from asyncloader.datapipes.going_on.iterating import aclose_items
from asyncloader.datapipes.running.home import cancelled
from asyncloader.runtime import begin_task, is_being_cancelled, not_cancelled
from asyncloader.waiting import LoopWaiter, Stopped

T = TypeVar("T")


async def timed_batches(
    source: AsyncIterable[T], size: int, max_wait: float
) -> AsyncGenerator[list[T], None]:
    """Yield the source's items in lists of ``size``, or of fewer after ``max_wait`` seconds.

    The seconds count from the arrival of a list's first item. Whoever is slow to take
    a list gets a longer one: it is closed when it is taken. At most ``size`` items are held.
    """
    waiting: Waiting[T] = Waiting(size, max_wait)
    loop = asyncio.get_running_loop()
    reader = begin_task(loop, waiting.read(source), "asyncloader batch")
    try:
        while batch := await waiting.batch():
            yield batch
            # The batch just yielded is not kept alive here while the next is made.
            del batch
    finally:
        await cancelled([reader])


class Waiting(Generic[T]):
    """The items that wait for company, with the moments at which their waiting ends."""

    def __init__(self, size: int, max_wait: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._size = size
        self._max_wait = max_wait
        self._items: deque[tuple[T, float]] = deque()
        self._is_due = False
        self._ended = False
        self._error: BaseException | None = None
        self._reader = LoopWaiter(self._loop)
        self._consumer = LoopWaiter(self._loop)

    async def read(self, source: AsyncIterable[T]) -> None:
        """Hold what comes from the source, as long as there is room."""
        try:
            await self._read(aiter(source))
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            self._error = not_cancelled(error)
        except Stopped:
            # The source was closed elsewhere: the consumer must not take that for its end.
            self._error = Stopped()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self._error = error
        except KeyboardInterrupt as error:
            # It is the user who interrupts whatever runs on this loop.
            self._error = error
            raise
        finally:
            self._ended = True
            self._consumer.wake()

    async def _read(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self._items.append((item, self._loop.time() + self._max_wait))
                del item
                self._consumer.wake()
                await self._reader.until(self._has_room)
        finally:
            await aclose_items(items)

    async def batch(self) -> list[T]:
        """Wait for the next batch; [] at the end, and the source's error in its place."""
        await self._consumer.until(lambda: bool(self._items) or self._ended)
        if not self._items and self._error is not None:
            raise self._error
        await self._until_closed()
        self._reader.wake()
        return [self._items.popleft()[0] for _ in range(min(self._size, len(self._items)))]

    async def _until_closed(self) -> None:
        if self._is_closed():
            return
        _, due = self._items[0]
        # A timer's call comes up to a tick of the clock early; what counts is that it came.
        timer = self._loop.call_at(due, self._fall_due)
        try:
            await self._consumer.until(self._is_closed)
        finally:
            timer.cancel()
            self._is_due = False

    def _fall_due(self) -> None:
        self._is_due = True
        self._consumer.wake()

    def _is_closed(self) -> bool:
        return len(self._items) >= self._size or self._ended or self._is_due

    def _has_room(self) -> bool:
        return len(self._items) < self._size
