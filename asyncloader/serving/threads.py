"""thread_map below a feed.

This file is about ``ThreadStage``: it stays on the feed's loop, hands on each result when it
is ready, and does not begin the work of a request that was given up. A thread_map reads its
source in a thread of its own and knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any

from asyncloader.datapipes.calls.async_mapping import AsyncMapPass, AsyncMapper
from asyncloader.datapipes.calls.thread_mapping import ThreadMapper
from asyncloader.datapipes.going_on.iterating import groups_of
from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.datapipes.pipe.columns import ColumnFunction
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.datapipes.running.home import ended_threads
from asyncloader.runtime import in_thread, start_thread
from asyncloader.serving.carrying import Wants, carried

Jobs = SimpleQueue[tuple[Future[Any], Any] | None]


class ThreadStage(AsyncMapper[Envelope]):
    """Call a thread_map's function on what is in the envelopes, in as many threads."""

    def __init__(self, pipe: ThreadMapper[Any], wants: Wants) -> None:
        apply = ColumnFunction.of(pipe.fn, pipe.input_col, pipe.output_col)
        count = pipe.concurrency or os.cpu_count() or 1
        self.threads = InThreads(carried(apply, pipe, wants))
        super().__init__(pipe.source, self.threads, concurrency=count, ordered=pipe.ordered)
        # The pipe stands nowhere any more, but is named where its function fails.
        pipe.source = ()

    def new_pass(self, run: Run[Any]) -> Pass[Any]:
        return ThreadStagePass(run)


class ThreadStagePass(AsyncMapPass[Envelope]):
    """One pass over a ThreadStage, which has threads while it is iterated."""

    def groups(self) -> AsyncGenerator[list[Envelope], None]:
        return groups_of(aiter(self))

    async def __aiter__(self) -> AsyncIterator[Envelope]:
        pipe: ThreadStage = self.pipe
        pipe.threads.start(pipe.concurrency)
        try:
            async with aclosing(super().__aiter__()) as results:  # type: ignore[type-var]
                async for result in results:
                    yield result
                    del result
        finally:
            await pipe.threads.aclose()


class InThreads:
    """A plain function as an async one, which runs it in daemon threads."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._jobs: Jobs | None = None
        self._threads: list[threading.Thread] = []

    async def __call__(self, item: Any) -> Any:
        assert self._jobs is not None
        future: Future[Any] = Future()
        self._jobs.put((future, item))
        del item
        return await asyncio.wrap_future(future)

    def start(self, count: int) -> None:
        """Start the threads, for one pass."""
        jobs: Jobs = SimpleQueue()
        self._jobs = jobs
        self._threads = [_started(self._function, jobs, number) for number in range(count)]

    async def aclose(self) -> None:
        """End the threads after the calls in progress, within two seconds."""
        assert self._jobs is not None
        for _ in self._threads:
            self._jobs.put(None)
        await in_thread(ended_threads, self._threads)

    def __reduce__(self) -> tuple[Any, ...]:
        return InThreads, (self._function,)


def _started(function: Callable[[Any], Any], jobs: Jobs, number: int) -> threading.Thread:
    run = contextvars.copy_context().run
    thread = threading.Thread(
        target=run,
        args=(_work, function, jobs),
        name=f"asyncloader thread_map {number}",
        daemon=True,
    )
    start_thread(thread)
    return thread


def _work(function: Callable[[Any], Any], jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        future, item = job
        del job
        # One that was cancelled is not begun.
        if future.set_running_or_notify_cancel():
            _run(future, function, item)
        del future, item


def _run(future: Future[Any], function: Callable[[Any], Any], item: Any) -> None:
    try:
        result = function(item)
    except BaseException as error:  # noqa: BLE001 - whoever awaits raises it
        future.set_exception(error)
    else:
        future.set_result(result)
