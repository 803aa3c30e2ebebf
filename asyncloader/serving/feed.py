"""Where requests enter a graph.

This file is about ``Feed``: a source whose items are asked for, with one answer to each. At
most one loader reads a feed at a time, which ``Readership`` knows; a ``Server`` is a reader
that answers in the background.

    ask(item) ─▶ Feed ─ map ─ batch ─▶ loader ─▶ batch.reply(outputs) ─▶ ask returns
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, Protocol, Self

import asyncloader.datapipes.iter  # noqa: F401  # a feed has the fluent methods of all pipes
from asyncloader.arguments import checked_count, checked_limit
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.envelope import Envelope
from asyncloader.datapipes.running.exchange import Nobody, Waiter
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.tracebacks import trim_tracebacks
from asyncloader.errors import LoaderClosed, LoaderError, LoopMismatchError
from asyncloader.runtime import begin_task, thread_of_loop
from asyncloader.serving.company import Company
from asyncloader.serving.deadlines import Deadlines
from asyncloader.serving.requests import EXPIRED, FeedStats, PendingRequests, Request
from asyncloader.serving.rewiring import rewired
from asyncloader.waiting import LoopWaiter

DRAIN_SECONDS = 30.0

#: How long a drain waits for a loader to read the feed.
READER_SECONDS = 30.0


class Feed(IterDataPipe[Any]):
    """The source of a graph that answers requests: ``await feed.ask(item)``.

    At most ``max_pending`` requests can wait for an answer at one time. Build a graph on the
    feed (map, async_map, thread_map, collate, batch, your own one-to-one pipes) and give it to a
    DataLoader2 that is iterated with ``async for``: each item then has ``data`` and ``reply``.
    If the graph itself makes the answers, let ``feed.serve(loader)`` do that.

    An error in a pipe is the answer to the request it belongs to, and to no other. The feed
    stays in the loader's process; each request goes to the least busy worker process.

    >>> import asyncio
    >>> from asyncloader import DataLoader2
    >>> async def main():
    ...     feed = Feed(max_pending=100)
    ...     async with feed.serve(DataLoader2(feed.map(lambda number: number * number))):
    ...         return await asyncio.gather(*[feed.ask(number) for number in range(4)])
    >>> asyncio.run(main())
    [0, 1, 4, 9]
    """

    edges = ()

    def __init__(self, max_pending: int = 1024) -> None:
        self.max_pending = checked_count("max_pending", max_pending, at_least=1)
        self._pending = PendingRequests(self.max_pending, self._on_news)
        self._deadlines = Deadlines()
        self._readership = Readership(self._pending, self._on_news)
        self._reader: Waiter = Nobody()
        self._drains: set[LoopWaiter] = set()
        self._is_closed = False

    async def ask(
        self, item: Any, timeout: float | None = None, *, idempotent: bool = False
    ) -> Any:
        """Send one request through the graph, and return its answer.

        Raises ``Overloaded`` at once if too many requests are pending, ``TimeoutError``
        after ``timeout`` seconds, ``LoaderClosed`` when the feed is closed, and what a pipe
        raised for this item. A client that goes away cancels this: work that was not begun
        is dropped. If the worker that has the request dies, an ``idempotent`` request is
        tried once more; any other fails with ``WorkerDied``.
        """
        if timeout is not None:
            timeout = checked_limit("timeout", timeout)
            timeout = None if timeout == math.inf else timeout
        loop = self._readership.check_loop()
        if self._is_closed:
            raise LoaderClosed("the feed is closed and takes no more requests")
        if self._readership.failure is not None:
            raise _unread(self._readership.failure)
        request = self._pending.accept(item, loop, idempotent)
        # Held by the request alone, which drops it when it is not needed any more.
        del item
        equals = None if timeout is None else self._deadlines.of(loop, timeout)
        if equals is not None:
            equals.add(request.key, request)
        # Only here outcomes are counted, as each caller sees them.
        counts = self._pending.counts
        try:
            answer = await request.answer
        except asyncio.CancelledError:
            counts["cancelled"] += 1
            self._pending.forget(request)
            raise
        except Exception as error:
            counts["failed"] += 1
            trim_tracebacks(error)
            raise
        finally:
            if equals is not None:
                del equals.waiting[request.key]
        if answer is EXPIRED:
            counts["expired"] += 1
            self._pending.forget(request)
            raise TimeoutError(f"there was no answer within {timeout:g} s")
        counts["answered"] += 1
        return answer

    def serve(self, loader: Loader, *, drain_timeout: float | None = DRAIN_SECONDS) -> Server:
        """Answer requests with what the graph of ``loader`` makes of them, in the background.

        Use it with ``async with``, which starts the loader. Leaving it refuses new requests,
        finishes those that were accepted (those without an answer after ``drain_timeout``
        seconds fail), and shuts the loader down.
        """
        checked_limit("drain_timeout", drain_timeout)
        return Server(self, self._readership, loader, drain_timeout)

    def close(self) -> None:
        """Refuse new requests; iteration ends after the last request that was accepted."""
        self._is_closed = True
        self._on_news()

    async def drain(self, timeout: float | None = None) -> None:
        """Close, and wait until every request that was accepted has its answer.

        After ``timeout`` seconds the rest fail with LoaderClosed. They also fail if nobody
        has iterated a loader of this feed for 30 s, so that no answer can come; then this
        raises a LoaderError.
        """
        timeout = checked_limit("timeout", timeout)
        self._readership.check_loop()
        self.close()
        waiter = LoopWaiter(asyncio.get_running_loop())
        self._drains.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await self._drained(waiter)
        except TimeoutError:
            self.fail_all(LoaderClosed(f"the feed was closed, with no answer in {timeout:g} s"))
        finally:
            self._drains.discard(waiter)

    async def _drained(self, waiter: LoopWaiter) -> None:
        while len(self._pending):
            await waiter.until(lambda: not (len(self._pending) and self._readership.is_read()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READER_SECONDS):
                    await waiter.until(lambda: not len(self._pending) or self._readership.is_read())
            if len(self._pending) and not self._readership.is_read():
                raise self._unread(len(self._pending))

    def _unread(self, count: int) -> LoaderError:
        nobody = f"nobody has iterated a loader of this feed for {READER_SECONDS:g} s"
        self.fail_all(LoaderClosed(f"the feed was closed, and {nobody}"))
        return LoaderError(
            f"{count} requests were left without an answer: {nobody}; drain a feed while"
            " `async for batch in loader` runs, or use `async with feed.serve(loader)`"
        )

    def fail_all(self, error: Exception) -> None:
        """Answer every request that is pending with an error."""
        self._pending.fail_all(error)

    def stats(self) -> FeedStats:
        """Return how the feed is doing; to be called at any moment."""
        readership = self._readership
        is_ready = not self._is_closed and readership.is_read() and readership.failure is None
        return self._pending.stats(is_ready=is_ready)

    def requested_for(self) -> float:
        return self._pending.longest()

    def is_replicable(self) -> bool:
        return False

    def lives_with_loader(self) -> bool:
        return True

    def rewired(self, graph: Any) -> Any:
        return rewired(graph, self, self._pending, self._readership.held)

    def __copy__(self) -> Feed:
        # The copied graph of a loader has the feed itself: requests and answers meet here.
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Feed:
        return self

    def __getstate__(self) -> Any:
        raise TypeError("a Feed belongs to its process and cannot be pickled")

    async def __aiter__(self) -> AsyncIterator[Envelope]:
        check_can_be_asked()
        reading = self._readership.reading
        self._reader = waiter = LoopWaiter(asyncio.get_running_loop())
        while True:
            await waiter.until(self._has_something)
            # If this loader is being closed, the waiting requests are for the next one.
            if not self._pending.queued or not self._readership.is_held_by(reading):
                return
            (request,) = self._pending.take(1)
            envelope = Envelope(request.key, request.item)
            request.let_go()
            # Keep neither the request nor its later answer alive while waiting.
            del request
            yield envelope
            del envelope

    async def batches(self, size: int, company: Company) -> AsyncGenerator[Envelope, None]:
        """Yield the requests in batches, for a reader that has nothing before its batches.

        A request is taken only when its batch is closed: until then it can be given up, or wait
        for the next loader.
        """
        reading, pending = self._readership.reading, self._pending
        self._reader = waiter = LoopWaiter(asyncio.get_running_loop())
        batch = NextBatch(pending, size, waiter, lambda: self._is_closed)
        while True:
            pending.enough = 1
            await waiter.until(self._has_something)
            if not pending.queued:
                return
            # A reader that is woken for each request takes longer than all the rest.
            pending.enough = size
            await company.gathered(batch)
            # If this loader is being closed, the waiting requests are for the next one.
            if not self._readership.is_held_by(reading):
                return
            # All may have been given up meanwhile.
            if pending.queued:
                yield batched(pending.take(size))

    def _has_something(self) -> bool:
        if self._pending.queued:
            return True
        return self._is_closed and not self._pending.has_retryable()

    def _on_news(self) -> None:
        self._reader.wake()
        for drain in self._drains:
            drain.wake()


def batched(requests: list[Request]) -> Envelope:
    """Return the envelope of several requests, which are taken."""
    keys = tuple([request.key for request in requests])
    items = [request.item for request in requests]
    for request in requests:
        # The body of let_go: this runs for every request.
        if not request.may_be_retried:
            request.item = None
    return Envelope(keys, items)


def check_can_be_asked() -> None:
    """Raise LoopMismatchError on a loop of our own: nobody can ask there, so nothing would come."""
    if thread_of_loop(asyncio.get_running_loop()) is not None:
        raise LoopMismatchError(
            "a plain `for` over a graph with a Feed runs on an event loop of its own, where nobody"
            " can ask: use `async for`, or `async with feed.serve(loader)`, on the loop that asks"
        )


class NextBatch:
    """The waiting requests of a feed, which the next batch is made of."""

    def __init__(
        self,
        pending: PendingRequests,
        size: int,
        waiter: LoopWaiter,
        is_feed_closed: Callable[[], bool],
    ) -> None:
        self._pending = pending
        self._size = size
        self._waiter = waiter
        self._is_feed_closed = is_feed_closed

    def count(self) -> int:
        return self._pending.queued

    def is_closed(self) -> bool:
        # All may have been given up: then there is nothing to close.
        queued = self._pending.queued
        return not 0 < queued < self._size or self._is_feed_closed()

    def since(self) -> float:
        return self._pending.waiting_since()

    async def until(self, ready: Callable[[], bool]) -> None:
        await self._waiter.until(lambda: self.is_closed() or ready())

    def look(self) -> None:
        self._waiter.wake()


class Readership:
    """The loop of a feed, which loader reads it there, and why the last one stopped.

    ``on_news`` is called when reading begins or ends.
    """

    def __init__(self, pending: PendingRequests, on_news: Callable[[], None]) -> None:
        self._pending = pending
        self._on_news = on_news
        self._loop: asyncio.AbstractEventLoop | None = None
        # Says whether that loop runs; False before there is one.
        self._is_running: Callable[[], bool] = bool
        self._thread = 0
        #: A token of the present reader; None while nobody reads.
        self.reading: object | None = None
        self._is_served = False
        #: What ended the last reading, until the next begins.
        self.failure: BaseException | None = None

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop; LoopMismatchError if the feed is in use on another one."""
        # To ask these two is faster than to ask which loop runs in this thread.
        if threading.get_ident() == self._thread and self._is_running():
            assert self._loop is not None
            return self._loop
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return loop
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif self.is_read() or len(self._pending):
            raise LoopMismatchError(
                f"this feed is in use on the event loop {self._loop!r}, and was used from another"
                f" one, {loop!r} in {threading.current_thread().name}; ask on the loop that"
                " iterates its loader"
            )
        self._loop, self._is_running, self._thread = loop, loop.is_running, threading.get_ident()
        return loop

    def is_read(self) -> bool:
        """Whether a loader reads the feed, or is about to."""
        return self._is_served or self.reading is not None

    def is_held_by(self, reading: object | None) -> bool:
        """Whether the reader with this token still reads."""
        return reading is not None and self.reading is reading

    def take(self) -> None:
        """Reserve the feed for a server; LoaderError if it has a reader already."""
        self.check_loop()
        self._check_is_free(is_taken=self.is_read())
        self._is_served, self.failure = True, None
        self._on_news()

    def give_up(self, reason: BaseException) -> None:
        """Fail all pending requests, and refuse new ones until the feed is read again."""
        self._is_served = False
        # The first failure is the cause of the later ones.
        self.failure = self.failure or reason
        self._pending.fail_all(reason if isinstance(reason, Exception) else _unread(reason))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Read the feed for the block. If it ends early, requests under way fail.

        Waiting requests keep waiting for the next reader, unless an error ended this one.
        """
        check_can_be_asked()
        self.check_loop()
        self._check_is_free(is_taken=self.reading is not None)
        self.reading = reading = object()
        self.failure = None
        self._pending.begin_reading()
        self._on_news()
        try:
            yield
        except BaseException as reason:
            if self.reading is reading:
                self._abandon(reason)
            raise
        finally:
            if self.reading is reading:
                self.reading = None
                self._on_news()

    def _check_is_free(self, *, is_taken: bool) -> None:
        if is_taken:
            raise LoaderError(
                "this feed is being read already by another loader; give each loader a feed of"
                " its own"
            )

    def _abandon(self, reason: BaseException) -> None:
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif isinstance(reason, asyncio.CancelledError | GeneratorExit):
            closed = LoaderClosed("the request was being worked on when its loader was closed")
            self._pending.fail_under_way(closed)
        else:
            self.give_up(reason)

    def _forget_all(self) -> None:
        # Those who waited for answers ended with their loop.
        self._pending.drop_all()
        self.reading, self._is_served = None, False


def _unread(reason: BaseException) -> LoaderClosed:
    error = LoaderClosed(f"the feed is no longer read, after {reason!r}")
    error.__cause__ = reason
    return error


class Loader(Protocol):
    """What a server needs of a DataLoader2, which this part may not import."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


class Server:
    """Answers a feed's requests while the block runs; at its end all of them have an answer."""

    def __init__(
        self, feed: Feed, readership: Readership, loader: Loader, drain_timeout: float | None
    ) -> None:
        self._feed = feed
        self._readership = readership
        self._loader = loader
        self._drain_timeout = drain_timeout
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._readership.take()
        try:
            await self._loader.start()
        except BaseException as error:
            self._readership.give_up(LoaderClosed(f"the loader could not be started: {error!r}"))
            raise
        work = self._answer()
        self._task = begin_task(asyncio.get_running_loop(), work, "asyncloader serving")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._feed.drain(self._drain_timeout)
        finally:
            await self._close()
        # Raise what kept the loader from answering. Closing it is no failure.
        failure = self._readership.failure
        if failure is not None and not isinstance(failure, LoaderClosed):
            raise failure

    async def _close(self) -> None:
        assert self._task is not None
        try:
            await self._loader.aclose()
        finally:
            await cancelled([self._task])

    async def _answer(self) -> None:
        reason: Exception = LoaderClosed(
            "the loader of this feed yields no more items; it was closed or paused, or reached its"
            " limit"
        )
        try:
            async for unanswered in self._loader:
                unanswered.answer()
                del unanswered
        except Exception as error:  # noqa: BLE001 - user code ran; whoever leaves raises it
            reason = error
        finally:
            # Nobody may keep waiting for an answer that cannot come.
            self._readership.give_up(reason)
