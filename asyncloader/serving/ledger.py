"""The requests that were accepted and are not settled.

This file is about ``Ledger``: who waits for which answer, what waits to be worked on,
and what is still under way although nobody waits for it any more.

    accept ─▶ waiting ─ take ─▶ under way ─ settle ─▶ answered or failed
                 └── forget ──▶ gone │ forget ─▶ unwanted ─ settle ─▶ gone
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.items.envelope import Envelope, Key
from asyncloader.errors import WorkerDied, WorkerTimeout
from asyncloader.serving.stats import Counts
from asyncloader.workers.remote_errors import unpack_error


@dataclass(eq=False, slots=True)
class Request:
    """One request: its item until that is taken, and where the answer goes."""

    key: int
    item: Any
    answer: asyncio.Future[Any]
    accepted: float
    is_idempotent: bool
    was_retried: bool = False

    def may_be_retried(self) -> bool:
        """Whether it may be begun a second time."""
        return self.is_idempotent and not self.was_retried

    def is_settled(self) -> bool:
        """Whether there is an answer, or an error for one."""
        return self.answer.done() and not self.answer.cancelled()

    def taken(self) -> Any:
        """Return the item, which is kept only where it may be wanted once more."""
        item = self.item
        if not self.may_be_retried():
            self.item = None
        return item


class Ledger:
    """All that is known of the requests of one feed; every method belongs to its loop.

    ``wants`` alone may be called from any thread. ``on_news`` is called whenever a request
    begins to wait or comes to its end.
    """

    def __init__(self, counts: Counts, on_news: Callable[[], None]) -> None:
        #: What happened so far.
        self.counts = counts
        self._on_news = on_news
        self._keys = itertools.count(1)
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._under_way: dict[int, Request] = {}
        self._unwanted: set[int] = set()

    def __len__(self) -> int:
        """How many requests hold on to memory."""
        return len(self._waiting) + len(self._under_way) + len(self._unwanted)

    @property
    def queued(self) -> int:
        """How many requests wait to be worked on."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """How many requests are being worked on, those that nobody wants included."""
        return len(self._under_way) + len(self._unwanted)

    def accept(self, item: Any, loop: asyncio.AbstractEventLoop, *, idempotent: bool) -> Request:
        """Let a request wait to be worked on."""
        future = loop.create_future()
        request = Request(next(self._keys), item, future, loop.time(), idempotent)
        self._waiting[request.key] = request
        self._on_news()
        return request

    def take(self, now: float) -> Request:
        """Return the request that has waited longest, which is under way then."""
        key, request = self._waiting.popitem(last=False)
        self._under_way[key] = request
        self.counts.waited(now - request.accepted)
        return request

    def has_retryable(self) -> bool:
        """Whether a request that is under way may have to be begun again."""
        return any(request.may_be_retried() for request in self._under_way.values())

    def wants(self, key: Key) -> bool:
        """Whether somebody waits for what is under way with this key."""
        if isinstance(key, int):
            return key in self._under_way
        return any(map(self.wants, key))

    def sift(self, envelope: Envelope) -> bool:
        """Whether an envelope is to go on; what failed or is not wanted is settled."""
        keys = (envelope.key,) if isinstance(envelope.key, int) else envelope.key
        error = envelope.error
        if error is not None:
            self.fail(keys, unpack_error(error) if isinstance(error, bytes) else error)
            return False
        if self.wants(envelope.key):
            return True
        self._unwanted.difference_update(keys)
        self._on_news()
        return False

    def forget(self, request: Request) -> None:
        """Note that nobody waits for an answer any more, if anybody did."""
        self._waiting.pop(request.key, None)
        if self._under_way.pop(request.key, None) is not None:
            self._unwanted.add(request.key)
        request.item = None
        with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
            # An error that came in the same moment is nobody's any more.
            request.answer.exception()
        self._on_news()

    def answer(self, keys: Iterable[int], outputs: Iterable[Any]) -> None:
        """Settle requests, each with its own answer."""
        for key, output in zip(keys, outputs, strict=True):
            request = self._settled(key)
            if request is not None and not request.answer.done():
                request.answer.set_result(output)
        self._on_news()

    def fail(self, keys: Iterable[int], error: BaseException) -> None:
        """Settle requests with an error, or let them wait again where they may be retried."""
        for key in keys:
            if not (isinstance(error, WorkerDied | WorkerTimeout) and self._retry(key)):
                self._refuse(self._settled(key), error)
        self._on_news()

    def fail_under_way(self, error: BaseException) -> None:
        """Settle the requests that are being worked on with an error, as all of them are lost."""
        requests = [*self._under_way.values()]
        self._under_way.clear()
        self._unwanted.clear()
        for request in requests:
            self._refuse(request, error)
        self._on_news()

    def fail_all(self, error: BaseException) -> None:
        """Settle all requests with an error."""
        requests = [*self._waiting.values()]
        self._waiting.clear()
        for request in requests:
            self._refuse(request, error)
        self.fail_under_way(error)

    def drop_all(self) -> None:
        """Forget all requests: whoever waited for them is gone with the loop they were on."""
        self._waiting.clear()
        self._under_way.clear()
        self._unwanted.clear()

    def _retry(self, key: int) -> bool:
        request = self._under_way.get(key)
        if request is None or not request.may_be_retried():
            return False
        del self._under_way[key]
        request.was_retried = True
        # It has waited longest: it goes before all that wait.
        self._waiting[key] = request
        self._waiting.move_to_end(key, last=False)
        self.counts.retried += 1
        return True

    def _settled(self, key: int) -> Request | None:
        self._unwanted.discard(key)
        return self._under_way.pop(key, None)

    def _refuse(self, request: Request | None, error: BaseException) -> None:
        if request is not None and not request.answer.done():
            request.answer.set_exception(error)
