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
    """What an iterator has at hand, and who may take it.

    It is looked at for every item. An iterator that has ``__getattr__`` is slow to tell its
    own attributes, so they are here.
    """

    __slots__ = ("gate", "is_busy", "is_running", "loop", "refusal", "thread")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        # Why nothing is handed out any more; then the gate is shut.
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
            self._hand.gate.shut()

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
        # The parent's may be locked for ever here.
        self._hand.gate = Gate()
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
        for item in self._hand.gate.passing:
            return item  # type: ignore[no-any-return]  # an item
        return self._next(self._hand)

    def _next(self, hand: _Hand) -> T_co:
        # Nothing is called here, so no other thread and no interrupt comes in between.
        hand.is_busy, was_busy = True, hand.is_busy
        if was_busy:
            raise ConcurrentIterationError(
                "another next() on this iterator is still under way; let one thread iterate"
                " and hand the items to the others"
            )
        try:
            _check_live(hand)
            if self._items is None and hand.gate.is_closed():
                raise StopIteration
            items = self._items or self._begin(hand)
            return items.next()  # type: ignore[no-any-return]  # an item
        except BaseException:
            if hand.refusal is not None:
                raise hand.refusal.with_traceback(None) from None
            raise
        finally:
            hand.is_busy = False

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
        if get_ident() == hand.thread and hand.is_running():
            for item in hand.gate.passing:
                return item  # type: ignore[no-any-return]  # an item
        return await self._next(hand)

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

    async def _next(self, hand: _Hand) -> T_co:
        self._check_caller(hand)
        hand.is_busy = True
        try:
            if self._items is None:
                if hand.gate.is_closed():
                    raise StopAsyncIteration
                await self._engine.end_epoch()
                _check_live(hand)
                self._running = self._items = self._engine.begin_async(hand.gate)
            return await self._items.next()  # type: ignore[no-any-return]  # an item
        except (Exception, SystemExit):
            if hand.refusal is not None:
                raise hand.refusal.with_traceback(None) from None
            raise
        finally:
            hand.is_busy = False
