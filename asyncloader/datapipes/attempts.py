"""How long one call of a user's function may take, and when it is made again.

This file is about ``Attempts``, for functions that are awaited and for those that run in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncloader.arguments import checked_count, checked_seconds
from asyncloader.datapipes.running.watch.under_way import counting_attempts
from asyncloader.safe_error_text import note, repr_of

T = TypeVar("T")

logger = logging.getLogger("asyncloader")

#: The longest wait before a retry.
MOST_SECONDS = 30.0

#: Its own generator: retries must not change what the user's code draws.
_jitter = random.SystemRandom()

ErrorTypes = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Attempts:
    """At most ``1 + retries`` calls of ``timeout`` seconds each.

    The wait before a retry is ``backoff`` seconds and doubles each time, up to 30 s. It is
    shortened at random by up to a half, so that many calls do not retry at the same moment.
    An error may ask for a longer wait by its attribute ``retry_after``.
    """

    timeout: float | None = None
    retries: int = 0
    retry_on: ErrorTypes = OSError
    backoff: float = 0.1
    #: What is called, for the log.
    name: str = "a call"

    def __post_init__(self) -> None:
        if self.timeout is not None:
            checked_seconds("timeout", self.timeout)
        checked_count("retries", self.retries, at_least=0)
        checked_seconds("backoff", self.backoff)
        _check_error_types(self.retry_on)

    def of(self, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
        """Return ``function`` with its timeout and retries; the same function if there are none."""
        once = function if self.timeout is None else functools.partial(self._called, function)
        return functools.partial(self._called_again, once) if self.retries else once

    def of_plain(
        self, once: Callable[[Any], T], wait: Callable[[float], object]
    ) -> Callable[[Any], T]:
        """Return a plain function with its retries, which waits before each by ``wait(seconds)``.

        ``once`` ends in time by itself, with ``too_long()``: nobody can end a call of another
        thread.
        """
        return functools.partial(self._made_again, once, wait) if self.retries else once

    def too_long(self) -> TimeoutError:
        """Return the error of a call that took longer than its timeout."""
        return TimeoutError(f"the call took longer than timeout={self.timeout:g} s")

    @counting_attempts
    async def _called_again(self, once: Callable[[Any], Awaitable[T]], item: Any) -> T:
        tried = 0
        while True:
            try:
                return await once(item)
            except self.retry_on as error:
                tried += 1
                seconds = self._seconds_before_next(tried, error)
                if seconds is None:
                    raise
            await asyncio.sleep(seconds)

    @counting_attempts
    def _made_again(
        self, once: Callable[[Any], T], wait: Callable[[float], object], item: Any
    ) -> T:
        tried = 0
        while True:
            try:
                return once(item)
            except self.retry_on as error:
                tried += 1
                seconds = self._seconds_before_next(tried, error)
                if seconds is None:
                    raise
            wait(seconds)

    async def _called(self, function: Callable[[Any], Awaitable[T]], item: Any) -> T:
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await function(item)
        except TimeoutError:
            if limit.expired():
                raise self.too_long() from None
            raise

    def _seconds_before_next(self, tried: int, error: Exception) -> float | None:
        """Return how long to wait before the next call; None if there is none."""
        if tried > self.retries:
            note(error, f"it was tried {tried} times")
            return None
        asked_for = getattr(error, "retry_after", None) or 0.0
        doubled = self.backoff * 2.0 ** min(tried - 1, 64)
        seconds: float = min(max(asked_for, doubled * _jitter.uniform(0.5, 1.0)), MOST_SECONDS)
        logger.info(
            "%s is called again in %.2g s, retry %d of %d: %s",
            *(self.name, seconds, tried, self.retries, repr_of(error)),
        )
        return seconds


def _check_error_types(value: Any) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(
                f"retry_on must be an exception class or a tuple of them, got {value!r}"
            )
