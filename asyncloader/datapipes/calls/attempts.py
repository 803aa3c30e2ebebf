"""Calls that have a time limit and may be made again.

This file is about ``Attempts``: how long one call may take, which errors are
worth another call, and how long to wait before it.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncloader.datapipes.pipe.arguments import checked_count, checked_seconds
from asyncloader.safe_error_text import note

T = TypeVar("T")

#: No wait before another call is longer.
MOST_SECONDS = 30.0

#: A source of its own: waiting must not change what the user's generators draw.
_jitter = random.SystemRandom()

ErrorTypes = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Attempts:
    """At most ``1 + retries`` calls of ``timeout`` seconds each.

    The wait before another call is ``backoff`` seconds, twice as long each time up to
    30 s, shortened at random by up to a half, so that many do not come back at once.
    An error may ask for a longer one by its attribute ``retry_after``.
    """

    timeout: float | None = None
    retries: int = 0
    retry_on: ErrorTypes = OSError
    backoff: float = 0.1

    def __post_init__(self) -> None:
        if self.timeout is not None:
            checked_seconds("timeout", self.timeout)
        checked_count("retries", self.retries, at_least=0)
        checked_seconds("backoff", self.backoff)
        _check_error_types(self.retry_on)

    def of(self, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
        """Return ``function`` with limits and retries; itself where there are none."""
        once = function if self.timeout is None else functools.partial(self._called, function)
        return functools.partial(self._called_again, once) if self.retries else once

    async def _called_again(self, once: Callable[[Any], Awaitable[T]], item: Any) -> T:
        for number in range(self.retries):
            try:
                return await once(item)
            except self.retry_on as error:
                seconds = self._seconds_before_next(number, error)
            await asyncio.sleep(seconds)
        try:
            return await once(item)
        except self.retry_on as error:
            note(error, f"it was tried {self.retries + 1} times")
            raise

    async def _called(self, function: Callable[[Any], Awaitable[T]], item: Any) -> T:
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await function(item)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(
                    f"the call took longer than timeout={self.timeout:g} s"
                ) from None
            raise

    def _seconds_before_next(self, number: int, error: Exception) -> float:
        asked_for = getattr(error, "retry_after", None) or 0.0
        doubled = self.backoff * 2.0 ** min(number, 64)
        return min(max(asked_for, doubled * _jitter.uniform(0.5, 1.0)), MOST_SECONDS)


def _check_error_types(value: Any) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(
                f"retry_on must be an exception class or a tuple of them, got {value!r}"
            )
