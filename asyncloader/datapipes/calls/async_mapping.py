"""Async functions, called for many items at once.

This file is about async_map, for functions that wait, and async_map_batches, as
torchdata called it. They keep a continuous window of calls under way.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from typing import Any, TypeVar

from asyncloader.datapipes.calls.ahead_pass import AheadPass
from asyncloader.datapipes.calls.attempts import Attempts, ErrorTypes
from asyncloader.datapipes.calls.keeper import kept
from asyncloader.datapipes.calls.shared_resource import Resource, SharedResource
from asyncloader.datapipes.calls.window import Call, Window
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, adropped
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.going_on.handing_out import first_cursor, form_ahead
from asyncloader.datapipes.going_on.iterating import aclose_items, groups_of
from asyncloader.datapipes.naming import function_name
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.columns import AsyncColumnFunction, checked_columns
from asyncloader.datapipes.pipe.debugging import watched_async
from asyncloader.datapipes.pipe.function import blame, is_async, itself
from asyncloader.datapipes.pipe.run import Pass, Run, RunTree
from asyncloader.datapipes.pipe.tolerance import OnError, Tolerance, failure_of
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.runtime import running_loop

T = TypeVar("T")


@functional_datapipe("async_map")
class AsyncMapper(IterDataPipe[T]):
    """Yield ``await fn(item)`` for each item, with up to ``concurrency`` calls under way.

    Results come in the source's order, or with ``ordered=False`` as they are
    ready. The calls run on the consumer's own loop; they are cancelled when the
    iteration ends early. An error comes in the place of its item.

    A call may take ``timeout`` seconds. One that raises an error of ``retry_on``, or
    takes too long, is made again up to ``retries`` times, ``backoff`` seconds later
    and then twice as much each time (at random up to a half less, 30 s at most).

    ``resource`` opens what the calls share, such as a client with its connections: a
    function or class that gives an async context manager. It is entered once for each
    pass, on the loop that runs the calls and, in workers, once in each. What it gives
    is handed to ``fn`` as its last argument, and it is left when the pass ends,
    whatever ends it. In a cache on disk that pass is the one over all of its entries.

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

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
        concurrency: int = 64,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: Resource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        if not is_async(checked_function("fn", fn)):
            raise TypeError(
                "async_map needs a function written with `async def`, or a partial of one, got"
                f" {function_name(fn)}; use map for a plain function, or thread_map for many"
                " calls at once"
            )
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.concurrency = checked_count("concurrency", concurrency, at_least=1)
        self.ordered = ordered
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on
        self.backoff = backoff
        self.resource = None if resource is None else checked_function("resource", resource)
        self.on_error = on_error
        self.max_errors = max_errors
        more = 0 if resource is None else 1
        self._columns = checked_columns(fn, input_col, output_col, more=more)
        self._wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = itself
        self._attempts = Attempts(timeout, retries, retry_on, backoff)
        self.tolerance = Tolerance(on_error, max_errors)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        self._wrap = wrap
        return self.tolerance.is_strict

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> Pass[Any]:
        return AsyncMapPass(run)

    def first_cursor(self, tree: RunTree) -> Cursor:
        return first_cursor(tree.course_of(self))

    def cursor_form(self) -> Form:
        return form_ahead(self)

    def has_no_order(self) -> bool:
        return not self.ordered

    def window(self, running: AheadPass[T]) -> Window[T]:
        """Return the calls of one pass, which are not begun yet."""
        shared = nullcontext() if self.resource is None else SharedResource(self.resource, self)
        return Window(
            running,
            kept(id(self), shared),
            self.call_with,
            concurrency=self.concurrency,
            ordered=self.ordered,
        )

    def call_with(self, shared: Any) -> Call[Any]:
        """Return what is called for each item, given what the calls share."""
        fn = watched_async(self.fn, self)
        if self.resource is not None:
            fn = functools.partial(_with_last, fn, shared)
        if self.input_col is not None:
            fn = AsyncColumnFunction(fn, self._columns)
        apply = self._attempts.of(fn)
        if self._wrap is not itself:
            return self._wrap(apply)
        return functools.partial(self._tried if self.tolerance.is_strict else self._let_fail, apply)

    async def _tried(self, apply: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        try:
            return await apply(item)
        except BaseException as error:
            # Without a loop it is no error: the coroutine is collected after its loop's end.
            if running_loop() is not None:
                blame(error, self)
            raise

    async def _let_fail(self, apply: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        try:
            return await apply(item)
        except BaseException as error:
            if running_loop() is None:
                raise
            return failure_of(error, item, self)


class AsyncMapPass(AheadPass[T]):
    """One pass over an AsyncMapper, to be read one by one or in lists of what is ready."""

    async def __aiter__(self) -> AsyncIterator[T]:
        async with aclosing(self._groups(most=1)) as groups:
            async for group in groups:
                # What was just handed out is not kept alive here while the next is awaited.
                yield group.pop()

    def groups(self) -> AsyncGenerator[list[T], None]:
        """Yield the items in lists; where the pass stands is known after each of them."""
        return self._groups(most=GROUP_ITEMS)

    async def _groups(self, most: int) -> AsyncGenerator[list[T], None]:
        window: Window[T] = self.pipe.window(self)
        window.start(repr(self.pipe))
        try:
            while window.has_something() or await window.has_next():
                group = window.group(most)
                if group:
                    yield group
                del group
        finally:
            await window.aclose()


def _with_last(function: Callable[..., Awaitable[T]], shared: Any, *args: Any) -> Awaitable[T]:
    return function(*args, shared)


@functional_datapipe("async_map_batches")
class BatchAsyncMapper(AsyncMapper[T]):
    """Yield ``await async_fn(item)`` for each item: torchdata's name for ``async_map``.

    Up to ``batch_size`` calls are under way at a time, and no more than
    ``max_concurrency``; none waits for the rest of a batch. ``flatten=False`` yields
    the results in lists of ``batch_size``. ``on_error`` and ``max_errors`` are those of
    ``async_map``, for single items: what is left out is made up for in its list.

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
        )

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        return super().carry(wrap) and self.flattens

    def __len__(self) -> int:
        count = super().__len__()
        return count if self.flattens else -(-count // self.batch_size)

    def new_pass(self, run: Run[Any]) -> Pass[Any]:
        return AsyncMapPass(run) if self.flattens else ListPass(run)

    def yielded_at(self, cursor: Cursor) -> int:
        yielded = super().yielded_at(cursor)
        return yielded if self.flattens else yielded // self.batch_size


class ListPass(AsyncMapPass[Any]):
    """One pass over a BatchAsyncMapper that yields results in lists, of which one may be short."""

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        #: How many results are left out, which were yielded in lists before.
        self._unwanted = 0

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self._unwanted = super().go_on(position * self.pipe.batch_size, cursor, cursors)
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
