"""Async functions, called for many items at once.

This file is about async_map, for functions that wait, and async_map_batches, as torchdata called
it. They keep a continuous window of calls under way: whenever one call ends the next begins, with
no barrier between.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import AbstractAsyncContextManager, nullcontext
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

from asyncloader.arguments import checked_auto, checked_count, checked_function, function_name
from asyncloader.datapipes.ahead import (
    AheadPass,
    CallsAhead,
    Concurrency,
    calls_in_order,
)
from asyncloader.datapipes.attempts import ErrorTypes
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import blame, is_async, watched_async
from asyncloader.datapipes.columns import change_async
from asyncloader.datapipes.recording import Joining
from asyncloader.datapipes.resources import Resource, SharedResource, kept, with_last
from asyncloader.datapipes.running.conveyor import RunningAhead
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    aclose_items,
    adropped,
    groups_of,
    items_of,
)
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.watch.under_way import UnderWay, of_task
from asyncloader.datapipes.tolerance import SKIPPED, Failure, OnError, failure_of
from asyncloader.runtime import Exit, begin_task, released, running_loop
from asyncloader.tuning import AUTO, Bounds

T = TypeVar("T")

#: Makes a coroutine of an item.
Call = Callable[[Any], Coroutine[Any, Any, T]]

#: The first concurrency where it is chosen, and those that may be.
_CHOICE = 16, Bounds(1, 256)

#: Besides the running calls, as many results may wait for an earlier one.
HELD_PER_CALL = 2


class CallWindow(RunningAhead, Generic[T]):
    """The running calls, and the results that were not taken yet.

    ``resource`` is what the calls share; it is closed after the last call. ``call_with``
    takes it and returns the function that is called for each item.
    """

    def __init__(
        self,
        running: AheadPass[T],
        resource: AbstractAsyncContextManager[Any],
        call_with: Callable[[Any], Call[T | Exit]],
        *,
        concurrency: int,
        ordered: bool,
        chosen: Concurrency | None = None,
    ) -> None:
        super().__init__(running.source)
        self._chosen = chosen
        self.concurrency = concurrency if chosen is None else chosen.number
        #: The running calls, with the positions of their items and when they began.
        self.under_way: dict[asyncio.Task[T | Exit], tuple[int, float]] = {}
        self.results = calls_in_order(ordered)
        #: Results that may raise when they are taken.
        self._failed: set[asyncio.Task[T | Exit]] = set()
        running.calls, running.room = self.under_way, self.concurrency
        self._running = running
        self._resource = resource
        self._call_with = call_with
        self._call: Call[T | Exit]
        # Each call would make a copy of its own, one object more to look at for a collection.
        self._context = contextvars.copy_context()

    async def work(self) -> None:
        async with self._resource as shared:
            self._call = self._call_with(shared)
            try:
                await self.read()
                await self.until(self._is_idle)
            finally:
                # Shielded: the resource may close slowly, even if the waiter is cancelled.
                self._may_cancel = False
                if running_loop() is not None and self.under_way:
                    # Before they end: to free thousands at once takes long.
                    self.drop()
                    await cancelled(self.under_way)

    def hold(self, item: Any) -> None:
        position = self._running.begin()
        self.reads.passed(self._running.read)
        call = self._call if self._chosen is None else functools.partial(self._timed, self._chosen)
        task = begin_task(self.loop, call(item), "asyncloader async_map")
        self.under_way[task] = position, perf_counter()
        self.results.begun(task)
        task.add_done_callback(self._finish, context=self._context)

    async def _timed(self, chosen: Concurrency, item: Any) -> T | Exit:
        begun = perf_counter()
        try:
            return await self._call(item)
        finally:
            chosen.worked(0, perf_counter() - begun)

    def has_room(self) -> bool:
        count, held = self.concurrency, len(self.results)
        return len(self.under_way) < count and held < HELD_PER_CALL * count

    def has_something(self) -> bool:
        return self.results.is_ready()

    def is_empty(self) -> bool:
        return not self.under_way and not self.results.is_ready()

    def group(self, most: int) -> list[T]:
        """Take the ready results, maybe none after skips; raise if the first is an error."""
        # Stop before an error: raising it would lose the results taken so far.
        most = 1 if self._failed else most
        group: list[T] = []
        while len(group) < most and self.has_something():
            task = self.results.take()
            if self._failed:
                self._failed.discard(task)
            result = self._running.finish(released(task.result()))
            if result is not SKIPPED:
                group.append(result)
        if self._chosen is not None and self._chosen.took(len(group)):
            self.concurrency = self._running.room = self._chosen.number
        self._reader.wake()
        return group

    async def has_next(self) -> bool:
        if self._chosen is not None:
            self._chosen.begin_wait()
        return await super().has_next()

    def drop(self) -> None:
        self.results.clear()
        self._failed.clear()

    def _finish(self, task: asyncio.Task[T | Exit]) -> None:
        del self.under_way[task]
        # The first error ends the iteration. Look at the others too, or asyncio would log
        # them as never retrieved.
        is_error = task.cancelled() or task.exception() or may_raise(task.result())
        if self._may_cancel:
            if is_error:
                self._failed.add(task)
            self.results.finished(task)
        self._reader.wake()
        self._consumer.wake()

    def _is_idle(self) -> bool:
        return not self.under_way


def may_raise(result: Any) -> bool:
    """Whether taking a result may raise."""
    return result.__class__ is Failure or result.__class__ is Exit


@functional_datapipe("async_map")
class AsyncMapper(CallsAhead[T]):
    """Yield ``await fn(item)`` for each item, with up to ``concurrency`` calls running at once.

    With ``concurrency="auto"`` there are as many as give the most results a second, at most
    256, or as few as the consumer needs.

    Results come in the source's order, or with ``ordered=False`` as they are
    ready. The calls run on the consumer's own loop; they are cancelled when the
    iteration ends early. An error comes in the place of its item.

    A call may take ``timeout`` seconds, and fails with a ``TimeoutError`` (an ``OSError``). One
    that fails with an error of ``retry_on`` is made again up to ``retries`` times, ``backoff``
    seconds later and then twice as much each time (at random up to a half less, 30 s at most).

    ``resource`` opens what the calls share, such as a client with its connections: a
    function or class that gives an async context manager. It is entered once for each
    pass, on the loop that runs the calls and, in workers, once in each. What it gives
    is passed to ``fn`` as its last argument, and it is left when the pass ends,
    whatever ends it. In a cache on disk that pass is the one over all of its entries.

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    With ``repeatable=False`` the function may give another result the next time: what became
    of each item is recorded from here on, so that a state resumes exactly.

    ``keep_results=True`` goes with it: a state has the results that are not settled, as plain
    data, so that the function is not called again for them. The pipe stays with the loader then.

    >>> import contextlib
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def double(number):
    ...     return 2 * number
    >>> list(IterableWrapper(range(3)).async_map(double))
    [0, 2, 4]
    >>> @contextlib.asynccontextmanager
    ... async def open_client():
    ...     yield {0: "zero", 1: "one"}
    >>> async def look_up(number, client):
    ...     return client[number]
    >>> numbers = IterableWrapper(range(3))
    >>> list(numbers.async_map(look_up, resource=open_client, on_error="skip"))
    ['zero', 'one']
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Awaitable[Any]],
        input_col: Any = None,
        output_col: Any = None,
        *,
        concurrency: int | Literal["auto"] = 64,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: Resource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> None:
        if not is_async(checked_function("fn", fn)):
            raise TypeError(
                "async_map needs a function written with `async def`, or a partial of one, got"
                f" {function_name(fn)}; use map for a plain function, or thread_map for many"
                " calls at once"
            )
        checked_auto("concurrency", concurrency, at_least=1)
        super().__init__(datapipe, fn, input_col, output_col, resource, concurrency, ordered)
        self.set_attempts(timeout, retries, retry_on, backoff)
        self.set_outcomes(on_error, max_errors, repeatable, keep_results)

    def is_async(self) -> bool:
        return True

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return AsyncMapPass(edge)

    def window(self, running: AheadPass[T]) -> CallWindow[T]:
        """Return the window of one pass, before it starts."""
        shared = nullcontext() if self.resource is None else SharedResource(self.resource, self)
        return CallWindow(
            running,
            kept(id(self), shared),
            self.call_with,
            concurrency=self.concurrency,
            ordered=self.ordered,
            chosen=Concurrency(self, *_CHOICE) if self.concurrency == AUTO else None,
        )

    def call_with(self, shared: Any) -> Call[Any]:
        """Return the function to call for each item, given the shared resource.

        It returns an Exit where the call would end the loop: a coroutine around it would be one
        object more for each call in flight.
        """
        fn = watched_async(self.fn, self)
        if self.resource is not None:
            fn = functools.partial(with_last, fn, shared)
        if self.input_col is not None:
            fn = functools.partial(change_async, fn, self._columns)
        apply = self._wrap(self._attempts.of(fn))
        return functools.partial(self._tried if self.tolerance.is_strict else self._let_fail, apply)

    async def _tried(self, apply: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        try:
            return await apply(item)
        except SystemExit as error:
            return Exit(error)
        except BaseException as error:
            # Without a loop this is no error: the coroutine is collected after its loop's end.
            if running_loop() is not None:
                blame(error, self)
            raise

    async def _let_fail(self, apply: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        try:
            return await apply(item)
        except SystemExit as error:
            return Exit(error)
        except BaseException as error:
            if running_loop() is None:
                raise
            return failure_of(error, item, self)


class AsyncMapPass(AheadPass[T]):
    """One pass over an AsyncMapper, to be read one by one or in lists of what is ready."""

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        #: The running calls, with the positions of their items and when they began.
        self.calls: dict[asyncio.Task[T | Exit], tuple[int, float]] = {}

    def under_way(self) -> Iterable[UnderWay]:
        name = stage_name(self.pipe)
        for task, (position, since) in list(self.calls.items()):
            yield of_task(task, name, item=position, since=since)

    def __aiter__(self) -> AsyncIterator[T]:
        return items_of(self._groups(most=1))

    def groups(self) -> AsyncGenerator[list[T], None]:
        """Yield the items in lists; ``cursor()`` is exact after each list."""
        return self._groups(most=GROUP_ITEMS)

    async def _groups(self, most: int) -> AsyncGenerator[list[T], None]:
        window: CallWindow[T] = self.pipe.window(self)
        window.start(repr(self.pipe))
        try:
            while window.has_something() or await window.has_next():
                group = window.group(most)
                if group:
                    yield group
                del group
        finally:
            await window.aclose()


@functional_datapipe("async_map_batches")
class BatchAsyncMapper(AsyncMapper[T]):
    """Yield ``await async_fn(item)`` for each item: torchdata's name for ``async_map``.

    Up to ``batch_size`` calls run at a time, and no more than
    ``max_concurrency``; none waits for the rest of a batch. ``flatten=False`` yields
    the results in lists of ``batch_size``. ``on_error``, ``max_errors`` and
    ``repeatable`` are those of ``async_map``, for single items: what is left out is made up for
    in its list.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def double(number):
    ...     return 2 * number
    >>> list(IterableWrapper(range(3)).async_map_batches(double, 2))
    [0, 2, 4]
    >>> list(IterableWrapper(range(3)).async_map_batches(double, 2, flatten=False))
    [[0, 2], [4]]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> None:
        self.async_fn = async_fn
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        self.max_concurrency = checked_count("max_concurrency", max_concurrency, at_least=1)
        self.flattens = flatten
        super().__init__(
            source_datapipe,
            async_fn,
            input_col,
            output_col,
            concurrency=min(batch_size, max_concurrency),
            on_error=on_error,
            max_errors=max_errors,
            repeatable=repeatable,
        )

    def in_section(self) -> Any:
        stage = super().in_section()
        return stage if self.flattens else Joining(stage)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        return super().carry(wrap) and self.flattens

    def __len__(self) -> int:
        count = super().__len__()
        return count if self.flattens else -(-count // self.batch_size)

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return AsyncMapPass(edge) if self.flattens else ListPass(edge)

    def yielded_at(self, state: Any) -> int:
        yielded = super().yielded_at(state)
        return yielded if self.flattens else yielded // self.batch_size


class ListPass(AsyncMapPass[Any]):
    """One pass over a BatchAsyncMapper that yields results in lists, of which one may be short."""

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        #: How many results to drop, because earlier lists already had them.
        self._unwanted = 0

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self._unwanted = super().resume_at(position * self.pipe.batch_size, cursor, cursors)
        return 0

    def groups(self) -> AsyncGenerator[list[Any], None]:
        return groups_of(aiter(self))

    async def __aiter__(self) -> AsyncIterator[Any]:
        batch: list[Any] = []
        results = adropped(super().__aiter__(), self._unwanted)
        try:
            async for result in results:
                batch.append(result)
                if len(batch) == self.pipe.batch_size:
                    yield batch
                    batch = []
            if batch:
                yield batch
        finally:
            await aclose_items(results)
