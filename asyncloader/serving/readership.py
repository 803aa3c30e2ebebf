"""Who reads a feed.

This file is about ``Readership``: at most one loader reads a feed at a time, on the loop on
which it is asked, and nobody waits for a reader that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from asyncloader.errors import LoaderClosed, LoaderError, LoopMismatchError
from asyncloader.serving.ledger import Ledger


class Readership:
    """The loop of a feed, whoever reads it there, and why nobody does any more.

    ``on_news`` is called when somebody begins to read or has ended.
    """

    def __init__(self, ledger: Ledger, on_news: Callable[[], None]) -> None:
        self._ledger = ledger
        self._on_news = on_news
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Stands for the one who reads, while somebody does.
        self.reading: object | None = None
        self._is_served = False
        #: What ended the last reading, until the next.
        self.failure: BaseException | None = None

    def check_loop(self) -> None:
        """Raise LoopMismatchError for another loop than the one where the feed is in use."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif self.is_read() or len(self._ledger):
            raise LoopMismatchError(
                f"this feed is in use on {self._loop!r}, and was used from another, {loop!r} in"
                f" {threading.current_thread().name}; ask on the loop that iterates its loader"
            )
        self._loop = loop

    def check_read(self) -> None:
        """Raise LoaderClosed where the last reading failed."""
        if self.failure is not None:
            raise _unread(self.failure)

    def is_read(self) -> bool:
        """Whether somebody reads the feed, or is about to."""
        return self._is_served or self.reading is not None

    def is_held_by(self, reading: object | None) -> bool:
        """Whether the one who read the feed at some moment still does."""
        return reading is not None and self.reading is reading

    def take(self) -> None:
        """Keep the feed for a server; LoaderError where somebody has it already."""
        self.check_loop()
        self._check_is_free(is_taken=self.is_read())
        self._is_served, self.failure = True, None
        self._on_news()

    def give_up(self, reason: BaseException) -> None:
        """Fail all that is pending, and refuse what comes, until the feed is read again."""
        self._is_served = False
        # What came first is the reason of all that follows from it.
        self.failure = self.failure or reason
        self._ledger.fail_all(reason if isinstance(reason, Exception) else _unread(reason))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one who reads; at an early end, what was being worked on fails.

        What waits may wait for another reader, unless it was an error that ended this one.
        """
        self.check_loop()
        self._check_is_free(is_taken=self.reading is not None)
        self.reading = reading = object()
        self.failure = None
        self._on_news()
        try:
            yield
        except BaseException as reason:
            if self.reading is reading:
                self._abandon(reason)
            raise
        finally:
            if self.reading is reading:
                self.reading = None
                self._on_news()

    def _check_is_free(self, *, is_taken: bool) -> None:
        if is_taken:
            raise LoaderError("this feed is being read already; give each loader its own")

    def _abandon(self, reason: BaseException) -> None:
        if self._loop is None or self._loop.is_closed():
            self._forget_all()
        elif isinstance(reason, asyncio.CancelledError | GeneratorExit):
            closed = LoaderClosed("the request was being worked on when its loader was closed")
            self._ledger.fail_under_way(closed)
        else:
            self.give_up(reason)

    def _forget_all(self) -> None:
        # Whoever waited for it ended with the loop.
        self._ledger.drop_all()
        self.reading, self._is_served = None, False


def _unread(reason: BaseException) -> LoaderClosed:
    error = LoaderClosed(f"the feed is no longer read, after {reason!r}")
    error.__cause__ = reason
    return error
