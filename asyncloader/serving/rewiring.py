"""A graph made to carry requests.

This file is about ``rewired``: every pipe below a feed is made to work on envelopes, or
refused by name where a request would not get an answer of its own.

    Feed ─ map ─ batch ─ collate    becomes    Feed ─ map* ─ RequestBatcher ─ collate* ─ Results

An envelope has a request's key and its item, or the error that took the item's place and
that reaches this request only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from itertools import dropwhile
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.ahead import CallsAhead
from asyncloader.datapipes.async_calls import AsyncMapper
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.batching import ADAPTIVE, Batcher, TimedBatches
from asyncloader.datapipes.call import blame, is_async, unawaited, watched_plain
from asyncloader.datapipes.envelope import Envelope, Key
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.cursors import aclose_items, close_items, take_number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.thread_calls import JobThreads, ThreadMapper
from asyncloader.errors import LoaderError
from asyncloader.graph.edit import replaced
from asyncloader.graph.refusals import Purpose, first_refusal
from asyncloader.graph.walk import breadth_first
from asyncloader.runtime import call_into, in_thread
from asyncloader.serving.company import Company, ForSeconds, WhileBusy
from asyncloader.serving.requests import FedBatch, FedItem, PendingRequests, unanswered
from asyncloader.worker_info import this_worker
from asyncloader.workers.remote_errors import pack_error

BeingRead = Callable[[], contextlib.AbstractContextManager[None]]


def rewired(end: Any, feed: Any, pending: PendingRequests, being_read: BeingRead) -> Any:
    """Change the pipes of a graph and return its end; LoaderError for one that cannot be used."""
    refusal = first_refusal(end, Purpose.REQUESTS)
    if refusal is not None:
        raise LoaderError(str(refusal))
    wants = Wants(pending.wants)
    pipes = [pipe for pipe in reversed(breadth_first(end)) if pipe is not feed]
    at_a_time = max(map(_calls_at_a_time, _after_batch(pipes)), default=1)
    for pipe in pipes:
        stage = _stage_for(pipe, feed, pending, wants, at_a_time)
        if stage is not pipe:
            # Stats and errors name the pipe that the user wrote.
            take_number_of(stage, pipe)
            stage.known_as = stage_name(pipe)
            end = replaced(end, pipe, stage)
    return Results(end, pending, being_read)


def _after_batch(pipes: list[Any]) -> list[Any]:
    """Return the pipes that work on batches."""
    return [*dropwhile(lambda pipe: not isinstance(pipe, Batcher), pipes)]


def _calls_at_a_time(pipe: Any) -> int:
    """Return how many batches a pipe works on at the same time; 1 where that is not known."""
    count = pipe.concurrency if isinstance(pipe, CallsAhead) else 1
    return count if isinstance(count, int) else 1


def _stage_for(pipe: Any, feed: Any, pending: PendingRequests, wants: Wants, at_a_time: int) -> Any:
    """Return what takes a pipe's place; it may be the pipe itself, changed."""
    if isinstance(pipe, Batcher):
        return RequestBatcher(pipe, feed, pending, at_a_time)
    if isinstance(pipe, ThreadMapper):
        return _thread_stage(pipe, wants)
    if pipe.carry(functools.partial(on_envelopes, pipe=pipe, wants=wants)):
        return pipe
    return OneByOne(pipe, wants)


class Results(IterDataPipe[FedItem | FedBatch]):
    """Yield what the graph made of the requests; settle those that failed or are unwanted.

    It holds ``being_read()`` from the first item asked for to the end.
    """

    def __init__(self, source: Any, pending: PendingRequests, being_read: BeingRead) -> None:
        self.source = source
        self.pending = pending
        self.being_read = being_read

    def is_replicable(self) -> bool:
        return False

    def is_async(self) -> bool:
        return True

    def new_pass(self, edge: Edge[Any]) -> RequestPass:
        return RequestPass(edge)

    async def made_of(self, source: Edge[Any]) -> AsyncGenerator[FedItem | FedBatch, None]:
        """Yield what is to be answered."""
        loop = asyncio.get_running_loop()
        with self.being_read():
            async with contextlib.aclosing(sifted(source, self.pending)) as envelopes:
                async for envelope in envelopes:
                    yield unanswered(envelope, self.pending, loop)
                    del envelope


class RequestBatcher(IterDataPipe[Envelope]):
    """Put requests together in batches; those that failed are settled at once."""

    def __init__(
        self, written: Batcher[Any], feed: Any, pending: PendingRequests, at_a_time: int
    ) -> None:
        self.source = written.source
        self.batch_size = written.batch_size
        self.wrapper_class = written.wrapper_class
        # Where nothing is in between, requests come right from the feed. A method: the feed itself
        # would be another source.
        self.batches_of_feed = feed.batches if written.source is feed else None
        self.pending = pending
        self.company: Company = (
            WhileBusy(pending.batches_under_way, at_a_time)
            if written.max_wait in (None, ADAPTIVE)
            else ForSeconds(written.max_wait)
        )

    def is_replicable(self) -> bool:
        return False

    def is_async(self) -> bool:
        return True

    def new_pass(self, edge: Edge[Any]) -> RequestPass:
        return RequestPass(edge)

    async def made_of(self, source: Edge[Any]) -> AsyncGenerator[Envelope, None]:
        """Yield the batches."""
        batches = (
            self._gathered(source)
            if self.batches_of_feed is None
            else self.batches_of_feed(self.batch_size, self.company)
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                assert isinstance(batch.key, tuple), "a batch has the keys of its requests"
                self.pending.begin_batch(batch.key, self.batch_size)
                yield self._wrapped(batch)
                # Keep no item alive while waiting for more.
                del batch

    async def _gathered(self, source: Edge[Any]) -> AsyncGenerator[Envelope, None]:
        """Yield batches of what comes from the pipes before this one."""
        pending = self.pending
        ahead = GatheredBatches(sifted(source, pending), self.batch_size, self.company)
        pending.batch_settled = ahead.look
        async with ahead.running(repr(self)), contextlib.aclosing(ahead.batches()) as batches:
            async for batch in batches:
                # Some may have been given up while they waited for others.
                wanted = [envelope for envelope in batch if pending.sift(envelope)]
                if wanted:
                    keys = tuple([envelope.key for envelope in wanted])
                    yield Envelope(keys, [envelope.item for envelope in wanted])
                # Keep no item alive while waiting for more.
                del batch, wanted

    def _wrapped(self, batch: Envelope) -> Envelope:
        if self.wrapper_class is list:
            return batch
        try:
            return batch.with_item(self.wrapper_class(batch.item))
        except BaseException as error:  # noqa: BLE001 - user code ran; its requests get the error
            return batch.failed(failure_in(self, error))


class GatheredBatches(TimedBatches):
    """The requests of the next batch, which came through other pipes."""

    def __init__(self, source: Any, size: int, company: Company) -> None:
        super().__init__(source, size, 0.0)
        self._company = company

    async def until_closed(self) -> None:
        await self._company.gathered(self)

    def count(self) -> int:
        return len(self._items)

    def since(self) -> float:
        return self._items[0][1]

    async def until(self, ready: Callable[[], bool]) -> None:
        await self.until_held(lambda: self.is_closed() or ready())

    def look(self) -> None:
        self.wake_consumer()


class RequestPass(Pass[Any]):
    """One pass over what is made of requests. It has no place: requests do not come again."""

    has_place = False

    def __aiter__(self) -> AsyncIterator[Any]:
        made: AsyncIterator[Any] = self.pipe.made_of(self.source)
        return made


async def sifted(source: Edge[Any], pending: PendingRequests) -> AsyncGenerator[Envelope, None]:
    """Yield the envelopes to be worked on; settle those that failed or are unwanted."""
    envelopes = aiter(source.abegin())
    try:
        async for envelope in envelopes:
            if pending.sift(envelope):
                yield envelope
            del envelope
    finally:
        await aclose_items(envelopes)


class OneByOne(OneToOne, IterDataPipe[Envelope]):
    """Run a user's own one-to-one pipe on what is in the envelopes, one after the other.

    After an error the pipe is iterated from the start.
    """

    is_stand_in = True

    def __init__(self, pipe: Any, wants: Wants) -> None:
        self.source = pipe.source
        self.pipe = pipe
        self.source_item = pipe.source = OneItem(stage_name(pipe))
        self._wants = wants

    def run(self, source: Edge[Any], state: None) -> Iterator[Envelope]:
        envelopes = iter(source)
        results = iter(self.pipe)
        try:
            for envelope in envelopes:
                if self._wants(envelope):
                    envelope = self._passed_on(results, envelope)
                    if envelope.error is not None:
                        close_items(results)
                        results = iter(self.pipe)
                yield envelope
                del envelope
        finally:
            close_items(results)
            close_items(envelopes)

    def _passed_on(self, results: Iterator[Any], envelope: Envelope) -> Envelope:
        self.source_item.items = [envelope.item]
        try:
            result = next(results)
            self.source_item.check_is_empty()
        except StopIteration:
            early = LoaderError(
                f"{stage_name(self.pipe)} ended before its source did, so the request has no answer"
            )
            return envelope.failed(failure_in(self.pipe, early))
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(self.pipe, error))
        return envelope.with_item(result)


class OneItem(IterDataPipe[Any]):
    """The source of a user's pipe: it yields one item for each request."""

    edges = ()
    is_stand_in = True

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.items: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        while self.items:
            yield self.items.pop()
        raise self._not_one_to_one("asked for a second item before it yielded the first")

    def check_is_empty(self) -> None:
        """Raise LoaderError if the pipe yielded something without having read the item."""
        if self.items:
            raise self._not_one_to_one("yielded a second item before it asked for one")

    def _not_one_to_one(self, what_it_did: str) -> LoaderError:
        return LoaderError(
            f"{self.reader} {what_it_did}: it is not one to one, so requests would not get"
            " answers of their own"
        )


def _thread_stage(pipe: ThreadMapper[Any], wants: Wants) -> AsyncMapper[Envelope]:
    """Return thread_map after a feed: it calls its function on the items in envelopes, in threads.

    It stays on the feed's loop, passes each result on when it is ready, and does not begin
    the work of a request that was given up. A plain thread_map reads its source in a thread
    of its own and knows nothing of requests.
    """
    pipe.carry(functools.partial(on_envelopes, pipe=pipe, wants=wants))
    # Requests come when they come, so there is nothing to measure.
    count = pipe.concurrency if isinstance(pipe.concurrency, int) else os.cpu_count() or 1
    stage: AsyncMapper[Envelope] = AsyncMapper(
        pipe.source,
        _called_in_thread,
        concurrency=count,
        ordered=pipe.ordered,
        resource=functools.partial(_threads, pipe, count),
    )
    # The pipe is out of the graph, but errors still name it.
    pipe.source = ()
    return stage


async def _called_in_thread(item: Any, threads: JobThreads) -> Any:
    job = AwaitedJob(item)
    threads.put(job)
    del item
    return await asyncio.wrap_future(job.future)


@contextlib.asynccontextmanager
async def _threads(pipe: ThreadMapper[Any], count: int) -> AsyncIterator[JobThreads]:
    """Give so many threads that call a pipe's function.

    They end after the calls in progress, within two seconds.
    """
    with watched_plain(pipe.fn, pipe) as fn:
        threads = pipe.threads(fn)
        try:
            for _ in range(count):
                threads.start()
            yield threads
        finally:
            await in_thread(threads.close)


class AwaitedJob:
    """A call whose result is awaited on a loop."""

    def __init__(self, item: Any) -> None:
        self.future: Future[Any] = Future()
        self._item = item

    def run(self, call: Callable[[Any], Any]) -> None:
        """Make the call, unless its future was cancelled."""
        item, self._item = self._item, None
        if self.future.set_running_or_notify_cancel():
            call_into(self.future, call, item)


class Wants:
    """Says whether a request is still wanted; in a worker, which cannot know, always yes."""

    def __init__(self, is_wanted: Callable[[Key], bool]) -> None:
        self._is_wanted = is_wanted
        # A forked worker has this object, and knows nothing of requests that came since.
        self._owner = os.getpid()

    def __call__(self, envelope: Envelope) -> bool:
        if envelope.error is not None:
            return False
        return os.getpid() != self._owner or self._is_wanted(envelope.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Wants, (_any_key,)


def _any_key(key: Key) -> bool:
    return True


def on_envelopes(apply: Callable[[Any], Any], pipe: Any, wants: Wants) -> Callable[[Any], Any]:
    """Return a function that applies a pipe's function to the items in envelopes.

    An envelope with an error, or one that nobody waits for, passes unchanged.
    """

    def applied(envelope: Envelope) -> Envelope:
        if not wants(envelope):
            return envelope
        try:
            result = apply(envelope.item)
            if result.__class__ is CoroutineType:
                raise unawaited(pipe, result)
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(pipe, error))
        return envelope.with_item(result)

    async def applied_async(envelope: Envelope) -> Envelope:
        if not wants(envelope):
            return envelope
        try:
            result = await apply(envelope.item)
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(pipe, error))
        return envelope.with_item(result)

    return applied_async if is_async(apply) else applied


def failure_in(pipe: Any, error: BaseException) -> BaseException | bytes:
    """Return an error as it travels in an envelope; raise one that is no Exception.

    To be called where the error is caught.
    """
    try:
        blame(error, pipe)
    except RuntimeError as translated:
        error = translated
    if not isinstance(error, Exception):
        raise error
    info = this_worker()
    if info is None:
        return error
    return pack_error(error, f"in worker {info.worker_id} of {info.num_workers}")
