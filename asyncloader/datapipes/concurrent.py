"""Many calls of a user's function at once.

This file is about async_map, for functions that wait, and thread_map, for
functions that compute without holding the GIL. Both keep a continuous window of
calls under way: whenever one ends the next begins, with no barrier between.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from queue import SimpleQueue
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.datapipes.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.columns import ColumnFunction
from asyncloader.datapipes.function import blame, is_async, unawaited
from asyncloader.datapipes.home import cancelled, ended_threads, present_waiter
from asyncloader.datapipes.iterating import aclose_items, close_items
from asyncloader.datapipes.naming import function_name
from asyncloader.datapipes.reading import abegin, begin
from asyncloader.runtime import LoopWaiter, ThreadWaiter, begin_task, running_loop

T = TypeVar("T")

#: Results that wait for an earlier one may be as many again as the calls under way.
HELD_PER_CALL = 2


@functional_datapipe("async_map")
class AsyncMapper(IterDataPipe[T]):
    """Yield ``await fn(item)`` for each item, with up to ``concurrency`` calls under way.

    Results come in the source's order, or with ``ordered=False`` as they are
    ready. The calls run on the consumer's own loop; they are cancelled when the
    iteration ends early. An error comes in the place of its item.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def double(number):
    ...     return 2 * number
    >>> list(IterableWrapper(range(3)).async_map(double))
    [0, 2, 4]
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
    ) -> None:
        if not is_async(checked_function("fn", fn)):
            raise TypeError(
                f"async_map needs an async function, got {function_name(fn)}; use map for a"
                " plain function, or thread_map for many calls at once"
            )
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.concurrency = checked_count("concurrency", concurrency, at_least=1)
        self.ordered = ordered
        self._apply = ColumnFunction.of(fn, input_col, output_col)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        self._apply = wrap(self._apply)
        return True

    def __len__(self) -> int:
        return len(self.source)

    async def __aiter__(self) -> AsyncIterator[T]:
        window: Window[T] = Window(self._call, self.concurrency, self.ordered)
        loop = asyncio.get_running_loop()
        reader = begin_task(loop, window.read(self.source), f"asyncloader {self!r}")
        try:
            while await window.has_next():
                yield window.next()
        finally:
            await cancelled([reader, *window.under_way])

    async def _call(self, item: Any) -> Any:
        try:
            return await self._apply(item)
        except BaseException as error:
            # Without a loop it is no error: the coroutine is collected after its loop's end.
            if running_loop() is not None:
                blame(error, self)
            raise


class Window(Iterator[T]):
    """The calls under way, and the results that wait to be taken."""

    def __init__(
        self, call: Callable[[Any], Coroutine[Any, Any, T]], concurrency: int, ordered: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        self.concurrency = concurrency
        self.ordered = ordered
        self.under_way: set[asyncio.Task[T]] = set()
        self.results: deque[asyncio.Task[T]] = deque()
        self._call = call
        self._loop = loop
        self._ended = False
        self._error: BaseException | None = None
        self._reader = LoopWaiter(loop)
        self._consumer = LoopWaiter(loop)

    async def read(self, source: Iterable[Any]) -> None:
        """Begin a call for every item of the source, as room allows."""
        items = aiter(abegin(source))
        try:
            async for item in items:
                self._begin(item)
                del item
                await self._reader.until(self._has_room)
        except Exception as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self._error = error
        finally:
            await aclose_items(items)
            self._ended = True
            self._consumer.wake()

    async def has_next(self) -> bool:
        """Wait for a result; False at the end, and the source's error in its place."""
        await self._consumer.until(self._is_ready)
        if not self.results and self._error is not None:
            raise self._error
        return bool(self.results)

    def __next__(self) -> T:
        task = self.results.popleft()
        self._reader.wake()
        return task.result()

    next = __next__

    def _begin(self, item: Any) -> None:
        task = begin_task(self._loop, self._call(item), "asyncloader async_map")
        self.under_way.add(task)
        if self.ordered:
            self.results.append(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[T]) -> None:
        self.under_way.discard(task)
        if not task.cancelled():
            # One error ends the iteration. Nobody asks for those of later items, and
            # asyncio would report them as forgotten.
            task.exception()
        if not self.ordered:
            self.results.append(task)
        self._reader.wake()
        self._consumer.wake()

    def _has_room(self) -> bool:
        held = len(self.results)
        return len(self.under_way) < self.concurrency and held < HELD_PER_CALL * self.concurrency

    def _is_ready(self) -> bool:
        if self.results:
            return self.results[0].done()
        return self._ended and not self.under_way


@functional_datapipe("thread_map")
class ThreadMapper(IterDataPipe[T]):
    """Yield ``fn(item)`` for each item, with the calls spread over threads.

    For functions that release the GIL (decoders, codecs, file reads). There are
    ``concurrency`` threads, by default one for each core. Results come in the
    source's order, or with ``ordered=False`` as they are ready.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).thread_map(str))
    ['0', '1', '2']
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
    ) -> None:
        if is_async(checked_function("fn", fn)):
            raise TypeError(
                f"thread_map needs a plain function, got the async {function_name(fn)};"
                " use async_map"
            )
        if concurrency is not None:
            checked_count("concurrency", concurrency, at_least=1)
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.concurrency = concurrency
        self.ordered = ordered
        self._apply = ColumnFunction.of(fn, input_col, output_col)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[T]:
        count = self.concurrency or os.cpu_count() or 1
        crew = Crew(self._call, count, self.ordered)
        iterator = begin(self.source)
        try:
            for item in iterator:
                crew.begin(item)
                del item
                yield from crew.ready()
            while crew.held:
                yield crew.next()
        finally:
            crew.close()
            close_items(iterator)

    def _call(self, item: Any) -> Any:
        try:
            result = self._apply(item)
        except BaseException as error:
            blame(error, self)
            raise
        if result.__class__ is CoroutineType:
            raise unawaited(self)
        return result


class Job:
    """One call: its item, then its result or error."""

    __slots__ = ("done", "error", "item", "result")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    def run(self, call: Callable[[Any], Any]) -> None:
        try:
            self.result = call(self.item)
        except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self.error = error
        self.item = None
        self.done = True


class Crew(Iterator[Any]):
    """Threads that run jobs, and the jobs that were begun and not yet taken."""

    def __init__(self, call: Callable[[Any], Any], count: int, ordered: bool) -> None:
        self._call = call
        self._ordered = ordered
        self._room = HELD_PER_CALL * count
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._waiter: ThreadWaiter = present_waiter()
        self._done: deque[Job] = deque()
        self.held: deque[Job] = deque()
        self._threads = [self._start_thread(number) for number in range(count)]

    def begin(self, item: Any) -> None:
        """Hand a job to the threads."""
        job = Job(item)
        self.held.append(job)
        self._jobs.put(job)

    def ready(self) -> Iterator[Any]:
        """Yield the results that are there, and wait for some while there is no room."""
        while len(self.held) >= self._room or self._is_done():
            yield self.next()

    def __next__(self) -> Any:
        job = self._next_in_order() if self._ordered else self._next_done()
        if job.error is not None:
            raise job.error
        return job.result

    next = __next__

    def close(self) -> None:
        """Let the threads end after the jobs in progress."""
        with contextlib.suppress(Exception):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        ended_threads(self._threads)

    def _is_done(self) -> bool:
        if self._ordered:
            return bool(self.held) and self.held[0].done
        return bool(self._done)

    def _next_in_order(self) -> Job:
        job = self.held[0]
        if not job.done:
            self._waiter.until(lambda: job.done)
        return self.held.popleft()

    def _next_done(self) -> Job:
        self._waiter.until(lambda: bool(self._done))
        self.held.pop()  # which one does not matter: it only counts them
        return self._done.popleft()

    def _start_thread(self, number: int) -> threading.Thread:
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=run, args=(self._work,), name=f"asyncloader thread_map {number}", daemon=True
        )
        thread.start()
        return thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run(self._call)
            if not self._ordered:
                self._done.append(job)
            del job
            self._waiter.wake()
