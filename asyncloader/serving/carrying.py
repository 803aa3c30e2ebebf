"""Functions of items, made functions of envelopes.

This file is about ``Carried``: it applies a pipe's function to what is in an envelope, and
puts an error where the item was, so that it reaches its own request and nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.items.envelope import Envelope, Key
from asyncloader.datapipes.pipe.function import blame, is_async, unawaited
from asyncloader.worker_info import this_worker
from asyncloader.workers.remote_errors import pack_error


class Wants:
    """Says whether somebody waits for what has a key; in a worker, where nobody knows, yes."""

    def __init__(self, is_wanted: Callable[[Key], bool]) -> None:
        self._is_wanted = is_wanted

    def __call__(self, envelope: Envelope) -> bool:
        return envelope.error is None and self._is_wanted(envelope.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Wants, (anything,)


def anything(key: Key) -> bool:
    """Want every request."""
    return True


def carried(apply: Callable[[Any], Any], pipe: Any, wants: Wants) -> Carried:
    """Return the function of envelopes for a pipe's function of items."""
    return (AsyncCarried if is_async(apply) else Carried)(apply, pipe, wants)


class Carried:
    """A pipe's function, applied to what is in envelopes.

    An envelope that holds an error, or that nobody waits for, passes as it is.
    """

    def __init__(self, apply: Callable[[Any], Any], pipe: Any, wants: Wants) -> None:
        self._apply = apply
        self._pipe = pipe
        self._wants = wants

    def __call__(self, envelope: Envelope) -> Any:
        if not self._wants(envelope):
            return envelope
        try:
            result = self._apply(envelope.item)
            if result.__class__ is CoroutineType:
                raise unawaited(self._pipe, result)
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(self._pipe, error))
        return envelope.with_item(result)


class AsyncCarried(Carried):
    """A pipe's async function, applied to what is in envelopes."""

    async def __call__(self, envelope: Envelope) -> Any:
        if not self._wants(envelope):
            return envelope
        try:
            result = await self._apply(envelope.item)
        except BaseException as error:  # noqa: BLE001 - user code ran; its request gets the error
            return envelope.failed(failure_in(self._pipe, error))
        return envelope.with_item(result)


def failure_in(pipe: Any, error: BaseException) -> BaseException | bytes:
    """Return the error as it travels in an envelope; raise one that ends more than an item.

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
