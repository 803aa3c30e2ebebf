"""A loader's iterators.

This file is about what ``iter(loader)`` and ``aiter(loader)`` return. Both hand
out the same items in the same order; a loader has one live iterator, and a new
one takes the place of the one before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Generic, NoReturn, TypeVar

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


class _Hand:
    """What an iterator has at hand, and whether it may hand that out.

    It is looked at for every item. An iterator that has ``__getattr__`` is slow to tell its
    own attributes, so they are here.
    """

    __slots__ = ("gate", "group", "is_busy", "is_running", "loop", "refusal", "thread")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.group: Iterator[Any] = iter(())
        self.refusal: BaseException | None = None
        # Whether a thread or a task is at it to get the next item.
        self.is_busy = False
        # Of an async iterator. That the loop runs, and in this thread, is known sooner than
        # which loop runs in this thread.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_running: Callable[[], bool] = bool
        self.thread = 0


class DataLoader2Iterator(Generic[T_co]):
    """What the sync and the async iterator of a loader share.

    ``limit``, ``pause`` and ``resume`` are plain methods. Other attributes are
    those of the graph's own iterator.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper(range(5))) as loader:
    ...     items = iter(loader)
    ...     items.limit(2)
    ...     print(list(items))
    ...     items.resume()
    ...     items.limit(None)
    ...     print(list(items))
    [0, 1]
    [2, 3, 4]
    """

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._hand = _Hand(gate)
        self._running: RunningItems | None = None
        _alive.add(self)

    def limit(self, num_batches: int | None) -> None:
        """End iteration after ``num_batches`` more items without ending the epoch.

        ``resume`` lets as many pass again. The limit holds for this and later
        iterators of the loader, until None takes it away.
        """
        self._hand.gate.limit(num_batches)
        if self._is_live():
            self._engine.lifecycle.limit(num_batches)

    def pause(self) -> None:
        """Hand out nothing until ``resume``, and let no worker work."""
        self._hand.gate.pause()
        if self._is_live():
            self._engine.lifecycle.pause()

    def resume(self) -> None:
        """Go on after ``pause`` or a limit."""
        self._hand.gate.resume()
        if self._is_live():
            self._engine.lifecycle.resume()

    def invalidate(self, reason: BaseException) -> None:
        """Make every later next raise ``reason``."""
        if self._hand.refusal is None:
            self._hand.refusal = reason

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a loader's iterator cannot be copied or pickled; loader.state_dict() says where it"
            " stands"
        )

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

    def _is_live(self) -> bool:
        # The service may be at work on a later iterator's epoch already.
        return self._hand.refusal is None

    def _forget_parent(self) -> None:
        """In a forked child: refuse to go on, and leave the parent's epoch alone."""
        self._running = None
        self._hand.refusal = ForkedError(
            "this iterator belongs to the process that made it, not to its forked child;"
            " make a new DataLoader2 in the child"
        )


_alive: weakref.WeakSet[DataLoader2Iterator[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for iterator in list(_alive):
        iterator._forget_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)


def _check_live(hand: _Hand) -> None:
    if hand.refusal is not None:
        raise hand.refusal.with_traceback(None)


class SyncIterator(DataLoader2Iterator[T_co], Iterator[T_co]):
    """Iterates a loader with ``for``, in one thread at a time."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        super().__init__(engine, gate)
        self._items: DirectItems | LoopItems | None = None

    def __iter__(self) -> SyncIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        hand = self._hand
        # Nothing is called here, so no other thread and no interrupt comes in between.
        hand.is_busy, was_busy = True, hand.is_busy
        if was_busy:
            raise ConcurrentIterationError(
                "another next() on this iterator is still under way; let one thread iterate"
                " and hand the items to the others"
            )
        try:
            # The usual case, with an item at hand, comes first and is short.
            gate = hand.gate
            if hand.refusal is None and gate.left:
                for item in hand.group:
                    gate.left -= 1
                    return item  # type: ignore[no-any-return]  # an item
            return self._next(hand)
        finally:
            hand.is_busy = False

    def _next(self, hand: _Hand) -> T_co:
        _check_live(hand)
        if not hand.gate.left:
            raise StopIteration
        items = self._items or self._begin(hand)
        try:
            item: T_co = items.next()
            hand.group = items.group
        except BaseException as error:
            # An interrupt shows nothing of the epoch.
            if isinstance(error, Exception):
                hand.gate.end(error)
            if hand.refusal is not None:
                raise hand.refusal.with_traceback(None) from None
            raise
        hand.gate.let_late_pass()
        return item

    def _begin(self, hand: _Hand) -> DirectItems | LoopItems:
        try:
            with self._engine.beginning:
                self._engine.prepare_sync()
                _check_live(hand)
                items = self._engine.begin_sync(hand.gate)
        except concurrent.futures.CancelledError:
            # Another thread has shut the loader down meanwhile.
            _check_live(hand)
            raise
        self._running = self._items = items
        return items


class AsyncIterator(DataLoader2Iterator[T_co]):
    """Iterates a loader with ``async for``, in one task at a time of one loop."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        super().__init__(engine, gate)
        self._items: AsyncItems | None = None

    def __aiter__(self) -> AsyncIterator[T_co]:
        return self

    async def __anext__(self) -> T_co:
        # A short look at the usual case: this runs for every item.
        hand = self._hand
        if (
            hand.refusal is not None
            or hand.is_busy
            or get_ident() != hand.thread
            or not hand.is_running()
        ):
            self._check_caller(hand)
        gate = hand.gate
        if not gate.left:
            raise StopAsyncIteration
        for item in hand.group:
            gate.left -= 1
            return item  # type: ignore[no-any-return]  # an item
        first = await self._first_of_next_group(hand)
        gate.let_late_pass()
        return first

    async def aclose(self) -> None:
        """End the epoch; every later ``anext`` raises LoaderClosed."""
        self.invalidate(LoaderClosed("this iterator was closed; take a new one from its loader"))
        if self._items is not None:
            await self._items.aclose()

    def _check_caller(self, hand: _Hand) -> None:
        _check_live(hand)
        if hand.is_busy:
            raise ConcurrentIterationError(
                "another task is waiting for this iterator's next item; let one task iterate"
                " and hand the items to the others"
            )
        loop = asyncio.get_running_loop()
        if hand.loop is not None and hand.loop is not loop:
            raise LoopMismatchError(
                f"this iterator belongs to {hand.loop!r} and was used from {loop!r};"
                " take a new one with aiter(loader) there"
            )
        hand.loop, hand.is_running, hand.thread = loop, loop.is_running, get_ident()

    async def _first_of_next_group(self, hand: _Hand) -> T_co:
        hand.is_busy = True
        try:
            if self._items is None:
                await self._engine.end_epoch()
                _check_live(hand)
                self._running = self._items = self._engine.begin_async(hand.gate)
            group = await self._items.group()
        except Exception as error:
            hand.gate.end(error)
            if hand.refusal is not None:
                raise hand.refusal.with_traceback(None) from None
            raise
        finally:
            hand.is_busy = False
        if not group:
            hand.gate.end()
            raise StopAsyncIteration
        hand.group = iter(group)
        item: T_co = next(hand.group)
        return item
