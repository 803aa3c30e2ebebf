"""Where requests enter a graph.

This file is about ``Feed``: a source whose items are asked for, one answer to each.

    ask(item) ─▶ Feed ─ map ─ batch ─▶ loader ─▶ batch.reply(outputs) ─▶ ask returns
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import asyncloader.datapipes.iter  # noqa: F401  # a feed has the fluent methods of all pipes
from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.datapipes.pipe.arguments import checked_count, checked_limit
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.kinds import lives_with_loader
from asyncloader.datapipes.running.exchange import Nobody, Waiter
from asyncloader.errors import LoaderClosed, LoaderError, Overloaded
from asyncloader.graph.walk import breadth_first
from asyncloader.serving.ledger import Ledger, Request
from asyncloader.serving.readership import Readership
from asyncloader.serving.rewiring import rewired
from asyncloader.serving.server import Loader, Server
from asyncloader.serving.stats import Counts, FeedStats
from asyncloader.waiting import LoopWaiter

T = TypeVar("T")

DRAIN_SECONDS = 30.0

#: How long what is to be drained may wait for somebody to read it.
READER_SECONDS = 30.0


class Feed(IterDataPipe[Any]):
    """The source of a graph that answers requests: ``await feed.ask(item)``.

    At most ``max_pending`` requests are accepted and not yet answered. Build a graph on the
    feed (map, async_map, thread_map, collate, ``batch(n, max_wait=seconds)``, your own
    one-to-one pipes) and give it to a DataLoader2 that is iterated with ``async for``:
    each item then has ``data`` and ``reply``. Or let ``feed.serve(loader)`` do that, where
    the graph itself ends in the answers.

    An error in a pipe is the answer to the request it belongs to, and to no other. The
    feed stays with the loader; requests go to the least busy worker process.

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
        self._counts = Counts()
        self._ledger = Ledger(self._counts, self._on_news)
        self._readership = Readership(self._ledger, self._on_news)
        self._reader: Waiter = Nobody()
        self._drains: set[LoopWaiter] = set()
        self._is_closed = False

    async def ask(
        self, item: Any, timeout: float | None = None, *, idempotent: bool = False
    ) -> Any:
        """Hand one request to the graph, and return the answer to it.

        Raises ``Overloaded`` at once where too many requests are pending, ``TimeoutError``
        after ``timeout`` seconds, ``LoaderClosed`` when the feed is closed, and what a pipe
        raised for this item. Cancelling it is how a client goes away: what was not begun
        is dropped. A request that is ``idempotent`` is begun once more if the worker that
        has it dies; others fail with ``WorkerDied``.
        """
        timeout = checked_limit("timeout", timeout)
        request = self._accepted(item, idempotent)
        # It is held only as long as it is wanted.
        del item
        try:
            # Both may come in one tick: whether there is an answer is what counts.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(timeout):
                    await request.answer
            return self._outcome(request, timeout)
        except asyncio.CancelledError:
            self._counts.cancelled += 1
            raise
        finally:
            self._ledger.forget(request)

    def serve(self, loader: Loader, *, drain_timeout: float | None = DRAIN_SECONDS) -> Server:
        """Answer requests with what the graph of ``loader`` makes of them, in the background.

        To be entered with ``async with``, which starts the loader. Leaving it refuses new
        requests, finishes those that were accepted (those still open after
        ``drain_timeout`` seconds fail), and shuts the loader down.
        """
        checked_limit("drain_timeout", drain_timeout)
        return Server(self, self._readership, loader, drain_timeout)

    def close(self) -> None:
        """Refuse new requests; iteration ends when those that were accepted are through."""
        self._is_closed = True
        self._on_news()

    async def drain(self, timeout: float | None = None) -> None:
        """Close, and wait until every request that was accepted has its answer.

        After ``timeout`` seconds those that are left fail with LoaderClosed. They fail too
        where nobody has iterated a loader of this feed for 30 s, so that no answer would
        come; then a LoaderError says so here.
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
        while len(self._ledger):
            await waiter.until(lambda: not (len(self._ledger) and self._readership.is_read()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READER_SECONDS):
                    await waiter.until(lambda: not len(self._ledger) or self._readership.is_read())
            if len(self._ledger) and not self._readership.is_read():
                raise self._unread(len(self._ledger))

    def _unread(self, count: int) -> LoaderError:
        nobody = f"nobody has iterated a loader of this feed for {READER_SECONDS:g} s"
        self.fail_all(LoaderClosed(f"the feed was closed, and {nobody}"))
        return LoaderError(
            f"{count} requests were left without an answer: {nobody}; drain a feed while"
            " `async for batch in loader` is running, or leave `async with feed.serve(loader)`"
        )

    def fail_all(self, error: Exception) -> None:
        """Answer every request that is pending with an error."""
        self._ledger.fail_all(error)

    def stats(self) -> FeedStats:
        """Return how the feed is doing; to be called at any moment."""
        return self._counts.picture(self._ledger.queued, self._ledger.under_way)

    def is_replicable(self) -> bool:
        return False

    def lives_with_loader(self) -> bool:
        return True

    def rewired(self, graph: Any) -> Any:
        others = [pipe for pipe in breadth_first(graph) if lives_with_loader(pipe)]
        if len(others) > 1:
            raise LoaderError(f"a graph has one source that lives with the loader, got {others}")
        return rewired(graph, self, self._ledger, self._readership.held)

    def __copy__(self) -> Feed:
        # Who asks and who answers meet here: a loader's graph has the feed itself.
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Feed:
        return self

    def __getstate__(self) -> Any:
        raise TypeError("a Feed belongs to its process and cannot be pickled")

    async def __aiter__(self) -> AsyncIterator[Envelope]:
        loop = asyncio.get_running_loop()
        reading = self._readership.reading
        self._reader = waiter = LoopWaiter(loop)
        while True:
            await waiter.until(self._has_something)
            # One whose loader is being closed must not take what waits for the next.
            if not self._ledger.queued or not self._readership.is_held_by(reading):
                return
            request = self._ledger.take(loop.time())
            envelope = Envelope(request.key, request.taken())
            # It has the answer in the end, which is not kept here until somebody asks again.
            del request
            yield envelope
            del envelope

    def _accepted(self, item: Any, idempotent: bool) -> Request:
        self._readership.check_loop()
        if self._is_closed:
            raise LoaderClosed("the feed is closed and takes no more requests")
        self._readership.check_read()
        if len(self._ledger) >= self.max_pending:
            self._counts.refused += 1
            raise Overloaded(
                f"{self.max_pending} requests are pending, as many as this feed accepts; try"
                " again later"
            )
        loop = asyncio.get_running_loop()
        return self._ledger.accept(item, loop, idempotent=idempotent)

    def _outcome(self, request: Request, timeout: float | None) -> Any:
        """Return or raise what the caller sees, which is counted here and nowhere else."""
        if not request.is_settled():
            self._counts.expired += 1
            raise TimeoutError(f"there was no answer within {timeout:g} s")
        if request.answer.exception() is None:
            self._counts.answered += 1
        else:
            self._counts.failed += 1
        return request.answer.result()

    def _has_something(self) -> bool:
        if self._ledger.queued:
            return True
        return self._is_closed and not self._ledger.has_retryable()

    def _on_news(self) -> None:
        self._reader.wake()
        for drain in self._drains:
            drain.wake()
