"""The pipes of a graph that answers requests.

This file is about what stands, while such a graph runs, in the place of batch, of a user's
own pipes, and at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

from asyncloader.datapipes.going_on.iterating import aclose_items, close_items
from asyncloader.datapipes.groups.timed_batching import timed_batches
from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.errors import LoaderError
from asyncloader.serving.carrying import Wants, failure_in
from asyncloader.serving.ledger import Ledger


class RequestBatcher(IterDataPipe[Envelope]):
    """Put requests together in batches; what failed is settled and waits for no company."""

    def __init__(
        self,
        source: Any,
        batch_size: int,
        max_wait: float,
        wrapper_class: Callable[[list[Any]], Any],
        ledger: Ledger,
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self.max_wait = max_wait
        self.wrapper_class = wrapper_class
        self.ledger = ledger

    def is_replicable(self) -> bool:
        return False

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> RequestBatchPass:
        return RequestBatchPass(run)

    def together(self, batch: list[Envelope]) -> Envelope:
        """Return one envelope for all that is in several."""
        whole = Envelope(tuple(envelope.key for envelope in batch))  # type: ignore[misc]  # ints
        items = [envelope.item for envelope in batch]
        try:
            return whole.with_item(self.wrapper_class(items))
        except BaseException as error:  # noqa: BLE001 - user code ran; its requests get the error
            return whole.failed(failure_in(self, error))


class RequestBatchPass(Pass[Envelope]):
    """One pass over a RequestBatcher. It has no place: what was asked does not come again."""

    async def __aiter__(self) -> AsyncIterator[Envelope]:
        pipe: RequestBatcher = self.pipe
        envelopes = sifted(self.source, pipe.ledger)
        batches = timed_batches(envelopes, pipe.batch_size, pipe.max_wait)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                # Some may have been given up while they waited for company.
                wanted = [envelope for envelope in batch if pipe.ledger.sift(envelope)]
                if wanted:
                    pipe.ledger.counts.filled(len(wanted) / pipe.batch_size)
                    yield pipe.together(wanted)
                # Nothing of them is kept here while others are waited for.
                del batch, wanted


async def sifted(source: Run[Any], ledger: Ledger) -> AsyncGenerator[Envelope, None]:
    """Yield the envelopes that are to go on; what failed or is not wanted is settled."""
    envelopes = aiter(source.abegin())
    try:
        async for envelope in envelopes:
            if ledger.sift(envelope):
                yield envelope
            del envelope
    finally:
        await aclose_items(envelopes)


class Lockstep(OneToOne, IterDataPipe[Envelope]):
    """Run a user's own one-to-one pipe on what is in the envelopes, one after the other.

    After an error the pipe is iterated afresh.
    """

    is_stand_in = True

    def __init__(self, pipe: Any, wants: Wants) -> None:
        self.source = pipe.source
        self.pipe = pipe
        self.hand = pipe.source = Hand(stage_name(pipe))
        self._wants = wants

    def results(self, source: Run[Any]) -> Iterator[Envelope]:
        envelopes = source.begin()
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
        self.hand.items = [envelope.item]
        try:
            result = next(results)
            self.hand.check_is_empty()
        except StopIteration:
            early = LoaderError(f"{stage_name(self.pipe)} ended before its source did")
            return envelope.failed(failure_in(self.pipe, early))
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(self.pipe, error))
        return envelope.with_item(result)


class Hand(IterDataPipe[Any]):
    """Yield the one item at hand, whenever it is asked for."""

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
        """Raise LoaderError where what was yielded last was not made of the item at hand."""
        if self.items:
            raise self._not_one_to_one("yielded a second item before it asked for one")

    def _not_one_to_one(self, what_it_did: str) -> LoaderError:
        return LoaderError(
            f"{self.reader} {what_it_did}: it is not one to one, and its requests would not get"
            " answers of their own"
        )
