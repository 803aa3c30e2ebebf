"""The requests of a feed.

This file is about ``PendingRequests``: who waits for which answer, what waits to be worked
on, and what is still being worked on although nobody waits for it any more.

    accept ─▶ waiting ─ take ─▶ under way ─ settle ─▶ answered or failed
                 └── forget ──▶ gone │ forget ─▶ unwanted ─ settle ─▶ gone

And it is about what a loader yields for requests, ``FedItem`` and ``FedBatch``, by which
they are answered, and about ``FeedStats``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from time import monotonic
from typing import Any

from asyncloader.datapipes.envelope import Envelope, Key
from asyncloader.errors import LoaderError, Overloaded, WorkerDied, WorkerTimeout
from asyncloader.runtime import running_loop
from asyncloader.system import unless_exiting
from asyncloader.waiting import call_soon, do_nothing
from asyncloader.workers.remote_errors import unpack_error


@dataclass(eq=False, slots=True)
class Request:
    """One request: its item, until that is taken, and the future of its answer."""

    key: int
    item: Any
    answer: asyncio.Future[Any]
    accepted: float
    #: Whether it may be tried a second time.
    may_be_retried: bool

    def expire(self) -> None:
        """End the wait for an answer, unless there is one."""
        if not self.answer.done():
            self.answer.set_result(EXPIRED)

    def let_go(self) -> None:
        """Keep the item, which was taken, only if it may be needed for a second try."""
        if not self.may_be_retried:
            self.item = None


#: What a request that expired has in the place of an answer.
EXPIRED: Any = object()


#: What becomes of requests: fields of ``FeedStats``.
_COUNTED = ("answered", "failed", "expired", "cancelled", "refused", "retried")

#: Means are over so many of the latest requests and batches.
_RECENT = 1024


class PendingRequests:
    """The requests of one feed; every method is to be called on the feed's loop.

    Only ``wants`` may be called from any thread. ``on_news`` is called whenever requests end,
    and when one begins to wait, once there are ``enough``.
    """

    def __init__(self, max_pending: int, on_news: Callable[[], None]) -> None:
        self._max_pending = max_pending
        #: How many requests were answered, failed, expired … so far.
        self.counts = dict.fromkeys(_COUNTED, 0)
        #: How full the latest batches were, and how long the latest requests waited.
        self.fills: deque[float] = deque(maxlen=_RECENT)
        self._waits: deque[float] = deque(maxlen=_RECENT)
        #: How many requests have to wait before their reader looks at them.
        self.enough = 1
        #: Called when a batch is settled.
        self.batch_settled: Callable[[], object] = do_nothing
        self._on_news = on_news
        self._keys = itertools.count(1)
        #: Those that were given up are taken out, which is rare, or else they come first.
        self._waiting: deque[Request] = deque()
        self._under_way: dict[int, Request] = {}
        self._unwanted: set[int] = set()
        #: The batches that are being worked on, each by the first of its keys.
        self._batches: set[int] = set()

    def __len__(self) -> int:
        """How many requests are in memory."""
        return len(self._waiting) + len(self._under_way) + len(self._unwanted)

    @property
    def queued(self) -> int:
        """How many requests wait to be worked on."""
        return len(self._waiting)

    def accept(self, item: Any, loop: asyncio.AbstractEventLoop, idempotent: bool) -> Request:
        """Add a request, which waits to be worked on; Overloaded if there are too many."""
        # The body of __len__: this runs for every request.
        pending = len(self._waiting) + len(self._under_way) + len(self._unwanted)
        if pending >= self._max_pending:
            self.counts["refused"] += 1
            raise Overloaded(
                f"{pending} requests are pending, which is max_pending of this feed; try again"
                " later"
            )
        request = Request(next(self._keys), item, loop.create_future(), monotonic(), idempotent)
        self._waiting.append(request)
        # Not for those after them: their reader was told, or has looked when it set ``enough``.
        if len(self._waiting) == self.enough:
            self._on_news()
        return request

    def take(self, most: int) -> list[Request]:
        """Return the requests that have waited longest; from now on they are under way."""
        next_one = self._waiting.popleft
        taken = [next_one() for _ in range(min(most, len(self._waiting)))]
        now = monotonic()
        for request in taken:
            self._under_way[request.key] = request
            self._waits.append(now - request.accepted)
        return taken

    def waiting_since(self) -> float:
        """Return since when the oldest request has waited to be worked on, by ``monotonic``."""
        return self._waiting[0].accepted

    def begin_reading(self) -> None:
        """Note that another reader has come, who waits for no batch of the one before."""
        self._batches.clear()
        self.enough, self.batch_settled = 1, do_nothing

    def begin_batch(self, keys: tuple[int, ...], size: int) -> None:
        """Note that a batch of at most ``size`` requests is worked on until it is settled."""
        self.fills.append(len(keys) / size)
        self._batches.add(keys[0])

    def batches_under_way(self) -> int:
        """Return how many batches are being worked on."""
        return len(self._batches)

    def stats(self, *, is_ready: bool) -> FeedStats:
        """Return how the feed is doing at this moment."""
        return FeedStats(
            queued=len(self._waiting),
            under_way=len(self._under_way) + len(self._unwanted),
            **self.counts,
            mean_wait=_mean(self._waits),
            longest_wait=max(self._waits, default=0.0),
            batch_fill=_mean(self.fills),
            is_ready=is_ready,
        )

    def longest(self) -> float:
        """Return for how many seconds the oldest request has waited for its answer; in any thread.

        0.0 where there is none.
        """
        oldest = (next(iter(each), None) for each in (self._waiting, self._under_way.values()))
        return max((monotonic() - each.accepted for each in oldest if each), default=0.0)

    def has_retryable(self) -> bool:
        """Whether a request that is under way may have to be tried again."""
        return any(request.may_be_retried for request in self._under_way.values())

    def wants(self, key: Key) -> bool:
        """Whether somebody waits for the request with this key, or for one of these keys."""
        if isinstance(key, int):
            return key in self._under_way
        return any(map(self.wants, key))

    def sift(self, envelope: Envelope) -> bool:
        """Whether an envelope is to be worked on; settle it if it failed or is unwanted."""
        keys = (envelope.key,) if isinstance(envelope.key, int) else envelope.key
        error = envelope.error
        if error is not None:
            self.fail(keys, unpack_error(error) if isinstance(error, bytes) else error)
            return False
        if self.wants(envelope.key):
            return True
        self._unwanted.difference_update(keys)
        self._end(keys)
        return False

    def forget(self, request: Request) -> None:
        """Note that nobody waits for this answer any more."""
        if self._under_way.pop(request.key, None) is not None:
            self._unwanted.add(request.key)
        else:
            # It may have been settled at the same moment.
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)
        request.item = None
        with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
            # Nobody will read an error that came at the same moment.
            request.answer.exception()
        self._on_news()

    def answer(self, keys: tuple[int, ...], outputs: Iterable[Any]) -> None:
        """Settle requests, each with its own answer."""
        under_way = self._under_way
        for key, output in zip(keys, outputs, strict=True):
            # The body of _settled: this runs for every request.
            request = under_way.pop(key, None)
            if request is None:
                self._unwanted.discard(key)
            elif not request.answer.done():
                request.answer.set_result(output)
        # After the answers, so that those who ask again at once are in the next batch.
        self._end(keys)

    def fail(self, keys: tuple[int, ...], error: BaseException) -> None:
        """Settle requests with an error; after a worker's death, retry those that may be."""
        for key in keys:
            if not (isinstance(error, WorkerDied | WorkerTimeout) and self._retry(key)):
                self._refuse(self._settled(key), error)
        self._end(keys)

    def fail_under_way(self, error: BaseException) -> None:
        """Settle all requests under way with an error: their work is lost."""
        requests = [*self._under_way.values()]
        self._under_way.clear()
        self._unwanted.clear()
        self._batches.clear()
        for request in requests:
            self._refuse(request, error)
        self._on_news()

    def fail_all(self, error: BaseException) -> None:
        """Settle all requests with an error."""
        requests = [*self._waiting]
        self._waiting.clear()
        for request in requests:
            self._refuse(request, error)
        self.fail_under_way(error)

    def drop_all(self) -> None:
        """Forget all requests: those who waited are gone with their loop."""
        self._waiting.clear()
        self._under_way.clear()
        self._unwanted.clear()
        self._batches.clear()

    def _end(self, keys: tuple[int, ...]) -> None:
        """Tell those who wait that these requests are settled."""
        self._batches.discard(keys[0])
        self.batch_settled()
        self._on_news()

    def _retry(self, key: int) -> bool:
        request = self._under_way.get(key)
        if request is None or not request.may_be_retried:
            return False
        del self._under_way[key]
        request.may_be_retried = False
        # It has waited longest, so it comes first.
        self._waiting.appendleft(request)
        self.counts["retried"] += 1
        return True

    def _settled(self, key: int) -> Request | None:
        request = self._under_way.pop(key, None)
        if request is None:
            self._unwanted.discard(key)
        return request

    def _refuse(self, request: Request | None, error: BaseException) -> None:
        if request is not None and not request.answer.done():
            request.answer.set_exception(error)


class Unanswered:
    """What a graph made of requests, and the means to answer them once."""

    def __init__(
        self,
        data: Any,
        keys: tuple[int, ...],
        pending: PendingRequests,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        #: What the graph made of the requests.
        self.data = data
        self._keys = keys
        self._pending = pending
        self._loop = loop
        self._is_answered = False

    def fail(self, error: BaseException) -> None:
        """Answer every request of this item with an error."""
        if not isinstance(error, BaseException):
            raise TypeError(f"fail takes an exception, got {type(error).__name__}")
        self._settle(self._pending.fail, self._keys, _as_failure(error))

    def answer(self) -> None:
        """Reply with ``data``; fail if that is not one output per request."""
        raise NotImplementedError

    def _answer(self, outputs: list[Any]) -> None:
        self._settle(self._pending.answer, self._keys, outputs)

    def _settle(self, function: Callable[..., None], *args: Any) -> None:
        if self._is_answered:
            raise RuntimeError("this was answered already; call reply or fail only once")
        self._is_answered = True
        if running_loop() is self._loop:
            function(*args)
        else:
            call_soon(self._loop, function, *args)

    @unless_exiting
    def __del__(self) -> None:
        # Nobody is left to answer.
        if not self._is_answered:
            forgotten = LoaderError(
                f"a {type(self).__name__} was dropped without an answer: call its reply or its"
                " fail, unless the loader ended before it was yielded"
            )
            # This may run in the garbage collector, in any thread, even inside ``_pending``.
            call_soon(self._loop, self._pending.fail, self._keys, forgotten)


class FedItem(Unanswered):
    """What the graph made of one request: ``data``, to be answered by ``reply`` or ``fail``."""

    def reply(self, output: Any) -> None:
        """Answer the request."""
        self._answer([output])

    def answer(self) -> None:
        self.reply(self.data)


class FedBatch(Unanswered):
    """What the graph made of a batch of requests: ``data``, to be answered all together."""

    def __len__(self) -> int:
        """How many requests the batch is made of."""
        return len(self._keys)

    def reply(self, outputs: Iterable[Any]) -> None:
        """Answer each request with its own output, in the order of the batch."""
        is_series = isinstance(outputs, Iterable) or hasattr(outputs, "__getitem__")
        if not is_series or isinstance(outputs, Mapping | Set | str | bytes):
            raise TypeError(
                f"reply takes a list with one output for each of the {len(self)} requests, in"
                f" their order, got a {type(outputs).__name__}"
            )
        listed = list(outputs)
        if len(listed) != len(self):
            raise ValueError(
                f"reply takes one output for each of the {len(self)} requests, got {len(listed)}"
            )
        self._answer(listed)

    def answer(self) -> None:
        try:
            self.reply(self.data)
        except (TypeError, ValueError) as error:
            self.fail(LoaderError(f"the graph does not yield one answer per request: {error}"))


def unanswered(
    envelope: Envelope, pending: PendingRequests, loop: asyncio.AbstractEventLoop
) -> FedItem | FedBatch:
    """Return what a loader yields for an envelope."""
    if isinstance(envelope.key, int):
        return FedItem(envelope.item, (envelope.key,), pending, loop)
    return FedBatch(envelope.item, envelope.key, pending, loop)


def _as_failure(error: BaseException) -> Exception:
    """Return an error that can safely be raised in the task that asked."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"the request was failed with {type(error).__name__}")
    failure.__cause__ = error
    return failure


@dataclass(frozen=True)
class FeedStats:
    """How a feed is doing at one moment.

    >>> import asyncio
    >>> from asyncloader import DataLoader2, Feed
    >>> async def main():
    ...     feed = Feed()
    ...     async with DataLoader2(feed.map(str.upper)) as loader:
    ...         async with feed.serve(loader):
    ...             await feed.ask("yes")
    ...             return feed.stats()
    >>> stats = asyncio.run(main())
    >>> stats.answered, stats.failed, stats.queued
    (1, 0, 0)
    """

    #: Requests that wait to be worked on, now.
    queued: int
    #: Requests that are being worked on, now; also those that nobody wants any more.
    under_way: int
    #: Requests that were answered.
    answered: int
    #: Requests that were answered with an error.
    failed: int
    #: Requests whose time was up before there was an answer.
    expired: int
    #: Requests whose client went away before it had its answer.
    cancelled: int
    #: Requests that were refused, because too many were pending.
    refused: int
    #: Requests that were tried again, because the worker that had them died.
    retried: int
    #: How many seconds the latest requests waited before they were worked on: the mean.
    mean_wait: float
    #: The longest of those waits.
    longest_wait: float
    #: How full batches are, from 0 to 1; 0 before the first.
    batch_fill: float
    #: Whether the feed takes requests and a loader reads it, for a health check: False before
    #: that, after ``close``, and when an error has ended the loader's epoch.
    is_ready: bool


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0
