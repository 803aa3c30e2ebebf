"""What the loader of a feed hands out.

This file is about ``FedItem`` and ``FedBatch``: what the graph made of one request, or of a
batch of them, and the means to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.errors import LoaderError
from asyncloader.runtime import running_loop
from asyncloader.serving.ledger import Ledger
from asyncloader.waiting import call_soon


class Unanswered:
    """What a graph made of requests, and the means to answer them, once."""

    def __init__(
        self, data: Any, keys: tuple[int, ...], ledger: Ledger, loop: asyncio.AbstractEventLoop
    ) -> None:
        #: What the graph made of the requests.
        self.data = data
        self._keys = keys
        self._ledger = ledger
        self._loop = loop
        self._is_answered = False

    def fail(self, error: BaseException) -> None:
        """Answer every request in it with an error."""
        if not isinstance(error, BaseException):
            raise TypeError(f"a request fails with an exception, got {type(error).__name__}")
        self._settle(self._ledger.fail, self._keys, _as_failure(error))

    def answer(self) -> None:
        """Reply with what the graph made; or fail where that is not one output per request."""
        raise NotImplementedError

    def _answer(self, outputs: list[Any]) -> None:
        self._settle(self._ledger.answer, self._keys, outputs)

    def _settle(self, function: Callable[..., None], *args: Any) -> None:
        if self._is_answered:
            raise RuntimeError("this was answered already; reply or fail once")
        self._is_answered = True
        if running_loop() is self._loop:
            function(*args)
        else:
            call_soon(self._loop, function, *args)

    def __del__(self) -> None:
        # Nobody is left who could answer.
        if not self._is_answered:
            forgotten = LoaderError(
                f"a {type(self).__name__} was dropped without an answer: call its reply or fail,"
                " unless its loader ended before it was handed out"
            )
            # This may run inside the garbage collector, in any thread and in the ledger itself.
            call_soon(self._loop, self._ledger.fail, self._keys, forgotten)


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
        """Answer each request with its own output; they are in the order of the batch."""
        if isinstance(outputs, Mapping | Set | str | bytes):
            raise TypeError(
                f"reply takes one output for each of {len(self)} requests, in their order, got"
                f" a {type(outputs).__name__}"
            )
        listed = list(outputs)
        if len(listed) != len(self):
            raise ValueError(f"a batch of {len(self)} requests takes as many, got {len(listed)}")
        self._answer(listed)

    def answer(self) -> None:
        try:
            self.reply(self.data)
        except (TypeError, ValueError) as error:
            self.fail(LoaderError(f"the graph does not end in one answer per request: {error}"))


def unanswered(
    envelope: Envelope, ledger: Ledger, loop: asyncio.AbstractEventLoop
) -> FedItem | FedBatch:
    """Return what a loader hands out for an envelope."""
    if isinstance(envelope.key, int):
        return FedItem(envelope.item, (envelope.key,), ledger, loop)
    return FedBatch(envelope.item, envelope.key, ledger, loop)


def _as_failure(error: BaseException) -> Exception:
    """Return an error that harms nobody who is given it for an answer."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"the request was failed with {type(error).__name__}")
    failure.__cause__ = error
    return failure
