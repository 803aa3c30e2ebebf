"""Who reads a feed.

This file is about ``Readership``: at most one loader reads a feed at a time, on the loop on
which it is asked, and nobody waits for a reader that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from asyncloader.errors import LoaderClosed, LoaderError, LoopMismatchError
from asyncloader.serving.ledger import Ledger


class Readership:
    """The loop of a feed, whoever reads it there, and why nobody does any more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Stands for the one who reads, while somebody does.
        self._reader: object | None = None
        self._is_served = False
        #: What ended the last reading, until the next.
        self._failure: Exception | None = None

    def check_loop(self) -> None:
        """Raise LoopMismatchError for another loop than the one where the feed is in use."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif self._is_served or self._reader is not None or len(self._ledger):
            raise LoopMismatchError(
                f"this feed is used on {self._loop!r} and was used from {loop!r}; ask on the loop"
                " that iterates its loader"
            )
        self._loop = loop

    def check_read(self) -> None:
        """Raise LoaderClosed where the last reading failed."""
        if self._failure is not None:
            raise LoaderClosed(
                f"the feed is no longer read, after {self._failure!r}"
            ) from self._failure

    def take(self) -> None:
        """Keep the feed for a server; LoaderError where somebody has it already."""
        self.check_loop()
        self._check_is_free(is_taken=self._is_served or self._reader is not None)
        self._is_served, self._failure = True, None

    def give_up(self, reason: Exception) -> None:
        """Fail all that is pending, and refuse what comes, until the feed is read again."""
        self._is_served = False
        self._failure = reason
        self._ledger.fail_all(reason)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one who reads; at an early end, what was being worked on fails.

        What waits may wait for another reader, unless it was an error that ended this one.
        """
        self.check_loop()
        self._check_is_free(is_taken=self._reader is not None)
        self._reader = reader = object()
        self._failure = None
        try:
            yield
        except BaseException as reason:
            if self._reader is reader:
                self._abandon(reason)
            raise
        finally:
            if self._reader is reader:
                self._reader = None

    def _check_is_free(self, *, is_taken: bool) -> None:
        if is_taken:
            raise LoaderError("this feed is being read already; give each loader its own")

    def _abandon(self, reason: BaseException) -> None:
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif isinstance(reason, Exception):
            self.give_up(reason)
        else:
            closed = LoaderClosed("the request was being worked on when its loader was closed")
            self._ledger.fail_under_way(closed)

    def _forget_all(self) -> None:
        # Whoever waited for it ended with the loop.
        self._ledger.drop_all()
        self._reader, self._is_served = None, False
