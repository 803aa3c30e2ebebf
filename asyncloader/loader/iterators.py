"""A loader's iterators.

This file is about what ``iter(loader)`` and ``aiter(loader)`` return. Both hand
out the same items in the same order; a loader has one live iterator, and a new
one takes the place of the one before.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from asyncio import _get_running_loop as _running_loop
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from asyncloader.errors import (
    ConcurrentIterationError,
    ForkedError,
    LoaderClosed,
    LoopMismatchError,
)
from asyncloader.loader.engine import Engine
from asyncloader.loader.gate import Gate
from asyncloader.loader.items import AsyncItems, DirectItems, LoopItems, RunningItems

T_co = TypeVar("T_co", covariant=True)


class DataLoader2Iterator(Generic[T_co]):
    """What the sync and the async iterator of a loader share.

    ``limit``, ``pause`` and ``resume`` are plain methods. Other attributes are
    those of the graph's own iterator.
    """

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._refusal: BaseException | None = None
        self._running: RunningItems | None = None
        _alive.add(self)

    def limit(self, num_items: int | None) -> None:
        """End iteration after ``num_items`` more without ending the epoch.

        ``resume`` lets as many pass again; None takes the limit away.
        """
        self._gate.limit(num_items)
        self._engine.lifecycle.limit(num_items)

    def pause(self) -> None:
        """Produce and hand out nothing until ``resume``."""
        self._gate.pause()
        self._engine.lifecycle.pause()

    def resume(self) -> None:
        """Go on after ``pause`` or a limit."""
        self._gate.resume()
        self._engine.lifecycle.resume()

    def invalidate(self, reason: BaseException) -> None:
        """Make every later next raise ``reason``."""
        if self._refusal is None:
            self._refusal = reason

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            iterator = getattr(self.__dict__.get("_running"), "iterator", None)
            if hasattr(iterator, name):
                return getattr(iterator, name)
        raise AttributeError(
            f"neither {type(self).__name__} nor the graph's iterator has an attribute {name!r}"
        )

    def __del__(self) -> None:
        running = self.__dict__.get("_running")
        if running is not None:
            running.abandon()

    def _forget_parent(self) -> None:
        """In a forked child: refuse to go on, and leave the parent's epoch alone."""
        self._running = None
        self._refusal = ForkedError(
            "this iterator belongs to the process that made it, not to its forked child;"
            " make a new DataLoader2 in the child"
        )


_alive: weakref.WeakSet[DataLoader2Iterator[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for iterator in list(_alive):
        iterator._forget_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)


class SyncIterator(DataLoader2Iterator[T_co], Iterator[T_co]):
    """Iterates a loader with ``for``, in one thread at a time."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        super().__init__(engine, gate)
        self._lock = threading.Lock()
        self._items: DirectItems | LoopItems | None = None
        self._group: Iterator[T_co] = iter(())

    def __iter__(self) -> SyncIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        if not self._lock.acquire(False):
            raise ConcurrentIterationError(
                "another next() on this iterator is still under way; let one thread iterate"
                " and hand the items to the others"
            )
        try:
            # The usual case, with an item at hand, comes first and is short.
            gate = self._gate
            if self._refusal is None and gate.left:
                for item in self._group:
                    gate.left -= 1
                    return item
            return self._next(gate)
        finally:
            self._lock.release()

    def _next(self, gate: Gate) -> T_co:
        if self._refusal is not None:
            raise self._refusal
        if not gate.left:
            raise StopIteration
        if self._items is None:
            self._running = self._items = self._engine.begin_sync(gate)
        try:
            item: T_co = self._items.next()
            self._group = self._items.group
        except BaseException:
            gate.is_ended = True
            if self._refusal is not None:
                raise self._refusal from None
            raise
        gate.let_late_pass()
        return item


class AsyncIterator(DataLoader2Iterator[T_co]):
    """Iterates a loader with ``async for``, in one task at a time of one loop."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        super().__init__(engine, gate)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._items: AsyncItems | None = None
        self._group: Iterator[T_co] = iter(())
        self._is_waiting = False

    def __aiter__(self) -> AsyncIterator[T_co]:
        return self

    async def __anext__(self) -> T_co:
        # One look at the usual case: this runs for every item.
        if self._refusal is not None or self._is_waiting or _running_loop() is not self._loop:
            self._check_caller()
        gate = self._gate
        if not gate.left:
            raise StopAsyncIteration
        for item in self._group:
            gate.left -= 1
            return item
        item = await self._first_of_next_group()
        gate.let_late_pass()
        return item

    async def aclose(self) -> None:
        """End the epoch; every later ``anext`` raises LoaderClosed."""
        self.invalidate(LoaderClosed("this iterator was closed; take a new one from its loader"))
        if self._items is not None:
            await self._items.aclose()

    def _check_caller(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._is_waiting:
            raise ConcurrentIterationError(
                "another task is waiting for this iterator's next item; let one task iterate"
                " and hand the items to the others"
            )
        loop = _running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LoopMismatchError(
                    f"this iterator belongs to {self._loop!r} and was used from {loop!r};"
                    " take a new one with aiter(loader) there"
                )
            self._loop = loop

    async def _first_of_next_group(self) -> T_co:
        self._is_waiting = True
        try:
            if self._items is None:
                self._running = self._items = await self._engine.begin_async(self._gate)
            group = await self._items.group()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._gate.is_ended = True
            if self._refusal is not None:
                raise self._refusal from None
            raise
        finally:
            self._is_waiting = False
        if not group:
            self._gate.is_ended = True
            raise StopAsyncIteration
        self._group = iter(group)
        return next(self._group)
