"""A loader's iterators.

This file is about what ``iter(loader)`` and ``aiter(loader)`` return. Both yield the same
items in the same order. A loader has one live iterator: a new one invalidates the one before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Generic, NoReturn, TypeVar

from asyncloader.datapipes.tracebacks import trim_tracebacks
from asyncloader.errors import (
    ConcurrentIterationError,
    ForkedError,
    LoaderClosed,
    LoopMismatchError,
)
from asyncloader.loader.engine import Engine
from asyncloader.loader.epoch import AsyncEpoch, DirectEpoch, Epoch, SettingsChanged, SyncEpoch
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.runtime import leave_if_exiting
from asyncloader.system import in_forked_child, unless_exiting

T_co = TypeVar("T_co", covariant=True)


class _IteratorState:
    """What an iterator looks at for every item.

    It is an object of its own because a class with ``__getattr__`` is slow to look up its own
    attributes.
    """

    __slots__ = ("buffer", "is_busy", "is_running", "loop", "refusal", "thread")

    def __init__(self, buffer: ItemBuffer) -> None:
        self.buffer = buffer
        # Why the iterator yields nothing any more; then the buffer is shut.
        self.refusal: BaseException | None = None
        # Whether a thread or a task is getting the next item.
        self.is_busy = False
        # The loop of an async iterator, its is_running, and its thread: to ask these two is
        # faster than to ask which loop runs in this thread.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_running: Callable[[], bool] = _is_never_running
        self.thread = 0


def _is_never_running() -> bool:
    return False


class DataLoader2Iterator(Generic[T_co]):
    """What the sync and the async iterator of a loader share.

    ``limit``, ``pause``, ``resume`` and ``ack`` are plain methods. Other attributes are those of
    the graph's own iterator.

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

    #: The iterator's epoch, once it has begun.
    _epoch: Epoch | None
    _ends_with: type[Exception]

    def __init__(self, engine: Engine, buffer: ItemBuffer) -> None:
        self._engine = engine
        self._state = _IteratorState(buffer)
        self._epoch = None
        _alive.add(self)

    def limit(self, num_batches: int | None) -> None:
        """End iteration after ``num_batches`` more items without ending the epoch.

        ``resume`` lets as many pass again. The limit holds for this and later iterators of
        the loader, until ``limit(None)``.
        """
        self._state.buffer.limit(num_batches)
        if self._is_live():
            self._engine.lifecycle.hooks.limit(num_batches)

    def pause(self) -> None:
        """Yield nothing until ``resume``, and let no worker work."""
        self._state.buffer.pause()
        if self._is_live():
            self._engine.lifecycle.pause()

    def resume(self) -> None:
        """Continue after ``pause`` or a limit."""
        self._state.buffer.resume()
        if self._is_live():
            self._engine.lifecycle.resume()

    def ack(self, count: int = 1) -> None:
        """Acknowledge the ``count`` oldest items of this iterator, as ``loader.ack`` does.

        Once a state was loaded, the items that it had yielded come again, and this raises
        IteratorInvalidated. So it is the one to call where items of before may still be around, in
        a queue or in a trainer: ``loader.ack`` is about the items of the latest iterator.

        >>> from asyncloader import DataLoader2, IteratorInvalidated
        >>> from asyncloader.datapipes.iter import IterableWrapper
        >>> with DataLoader2(IterableWrapper(range(5)), acknowledge=True) as loader:
        ...     state = loader.state_dict()
        ...     former = iter(loader)
        ...     print(next(former))
        ...     loader.load_state_dict(state)
        ...     print(next(iter(loader)))
        ...     try:
        ...         former.ack()
        ...     except IteratorInvalidated:
        ...         print("it comes again")
        0
        0
        it comes again
        """
        self._engine.ack(count, self._state.buffer)

    def has_begun(self) -> bool:
        """Whether an item was asked for."""
        return self._epoch is not None or self._state.is_busy

    def invalidate(self, reason: BaseException) -> None:
        """Make every later next raise ``reason``."""
        if self._state.refusal is None:
            self._state.refusal = reason
            self._state.buffer.shut()

    def supersede(self, reason: BaseException, has_yielded: Callable[[int | None], bool]) -> None:
        """Make every later next raise ``reason``, or end if everything was yielded before.

        ``has_yielded`` says whether so many items are a whole epoch.
        """
        buffer = self._state.buffer
        is_at_end = buffer.is_over() or has_yielded(self._engine.position(buffer))
        self.invalidate(self._ends_with() if is_at_end else reason)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a loader's iterator cannot be copied or pickled; to resume its place in another"
            " loader, save loader.state_dict()"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            iterator = getattr(self.__dict__.get("_epoch"), "iterator", None)
            if hasattr(iterator, name):
                return getattr(iterator, name)
        raise AttributeError(
            f"neither {type(self).__name__} nor the graph's iterator has an attribute {name!r}"
        )

    @unless_exiting
    def __del__(self) -> None:
        epoch = self.__dict__.get("_epoch")
        if epoch is not None:
            epoch.abandon()

    def _is_live(self) -> bool:
        # The service may already work for a later iterator's epoch.
        return self._state.refusal is None

    def _forget_parent(self) -> None:
        """In a forked child: yield nothing more, and leave the parent's epoch alone."""
        self._epoch = None
        self._state.refusal = refusal = ForkedError(
            "this iterator belongs to the process that made it, not to its forked child;"
            " make a new DataLoader2 in the child"
        )
        # The lock of the parent's buffer may be held for ever here.
        self._state.buffer = ItemBuffer(acknowledges=True)
        self._state.buffer.outdate(refusal)


_alive: weakref.WeakSet[DataLoader2Iterator[Any]] = weakref.WeakSet()


@in_forked_child
def _forget_all() -> None:
    for iterator in list(_alive):
        iterator._forget_parent()


def _check_live(state: _IteratorState) -> None:
    if state.refusal is not None:
        raise state.refusal.with_traceback(None)


class SyncIterator(DataLoader2Iterator[T_co], Iterator[T_co]):
    """Iterates a loader with ``for``, in one thread at a time."""

    _epoch: DirectEpoch | SyncEpoch | None
    _ends_with = StopIteration

    def __iter__(self) -> SyncIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        for item in self._state.buffer.ready:
            return item  # type: ignore[no-any-return]  # an item
        try:
            return self._next(self._state)
        except StopIteration:
            raise
        except Exception as error:
            trim_tracebacks(error)
            raise

    def _next(self, state: _IteratorState) -> T_co:
        # Nothing is called here, so no other thread and no interrupt can come in between.
        state.is_busy, was_busy = True, state.is_busy
        if was_busy:
            raise ConcurrentIterationError(
                "another thread's next() on this iterator has not returned yet; let one thread"
                " iterate and pass the items to the others"
            )
        try:
            if state.refusal is not None:
                raise state.refusal.with_traceback(None)
            if self._epoch is None and state.buffer.is_closed():
                raise StopIteration
            epoch = self._epoch or self._begin(state)
            while True:
                try:
                    return epoch.next()  # type: ignore[no-any-return]  # an item
                except SettingsChanged:
                    epoch = self._continue(state)
        except BaseException:
            leave_if_exiting()
            if state.refusal is not None:
                raise state.refusal.with_traceback(None) from None
            raise
        finally:
            state.is_busy = False

    def _begin(self, state: _IteratorState) -> DirectEpoch | SyncEpoch:
        try:
            with self._engine.beginning:
                self._engine.prepare_sync()
                _check_live(state)
                epoch = self._engine.begin_sync(state.buffer)
        except concurrent.futures.CancelledError:
            # Another thread shut the loader down meanwhile.
            _check_live(state)
            raise
        self._epoch = epoch
        return epoch

    def _continue(self, state: _IteratorState) -> DirectEpoch | SyncEpoch:
        """Begin the rest of the epoch, with other settings."""
        with self._engine.beginning:
            _check_live(state)
            self._epoch = epoch = self._engine.continue_sync(state.buffer)
        return epoch


class AsyncIterator(DataLoader2Iterator[T_co]):
    """Iterates a loader with ``async for``, in one task at a time of one loop."""

    _epoch: AsyncEpoch | None
    _ends_with = StopAsyncIteration

    def __aiter__(self) -> AsyncIterator[T_co]:
        return self

    async def __anext__(self) -> T_co:
        # The usual case first and fast: this runs for every item.
        state = self._state
        if get_ident() == state.thread and state.is_running():
            for item in state.buffer.ready:
                return item  # type: ignore[no-any-return]  # an item
        try:
            return await self._next(state)
        except StopAsyncIteration:
            raise
        except Exception as error:
            trim_tracebacks(error)
            raise

    async def aclose(self) -> None:
        """End the epoch; every later ``anext`` raises LoaderClosed."""
        self.invalidate(LoaderClosed("this iterator was closed; take a new one from its loader"))
        if self._epoch is not None:
            await self._epoch.aclose()

    def _check_caller(self, state: _IteratorState) -> None:
        if state.refusal is not None:
            raise state.refusal.with_traceback(None)
        if state.is_busy:
            raise ConcurrentIterationError(
                "another task is waiting for this iterator's next item; let one task iterate"
                " and pass the items to the others"
            )
        loop = asyncio.get_running_loop()
        if state.loop is not None and state.loop is not loop:
            raise LoopMismatchError(
                f"this iterator belongs to the event loop {state.loop!r} and was used from"
                f" {loop!r}; take a new iterator with aiter(loader) there"
            )
        state.loop, state.is_running, state.thread = loop, loop.is_running, get_ident()

    async def _next(self, state: _IteratorState) -> T_co:
        self._check_caller(state)
        state.is_busy = True
        try:
            if self._epoch is None:
                if state.buffer.is_closed():
                    raise StopAsyncIteration
                await self._engine.end_epoch()
                _check_live(state)
                self._epoch = self._engine.begin_async(state.buffer)
            while True:
                try:
                    return await self._epoch.next()  # type: ignore[no-any-return]  # an item
                except SettingsChanged:
                    await self._engine.prepare_to_continue()
                    _check_live(state)
                    self._epoch = self._engine.continue_async(state.buffer)
        except (Exception, SystemExit):
            leave_if_exiting()
            if state.refusal is not None:
                raise state.refusal.with_traceback(None) from None
            raise
        finally:
            state.is_busy = False
