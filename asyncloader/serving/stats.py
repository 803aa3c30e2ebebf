"""How a feed is doing.

This file is about ``FeedStats``, a picture of one moment, and ``Counts``, of which it is
taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Waiting times and batches are those of so many requests and batches, the latest.
_RECENT = 1024


@dataclass(frozen=True)
class FeedStats:
    """How a feed is doing at one moment."""

    #: Requests that wait to be worked on, now.
    queued: int
    #: Requests that are being worked on, now; also those that nobody wants any more.
    under_way: int
    answered: int
    #: Requests that were answered with an error.
    failed: int
    #: Requests whose time was up before there was an answer.
    expired: int
    #: Requests whose client went away before it had its answer.
    cancelled: int
    #: Requests that were refused, because too many were pending.
    refused: int
    #: Requests that were begun again, because the worker that had them died.
    retried: int
    #: How many seconds requests wait before they are worked on: mean, and the longest.
    mean_wait: float
    longest_wait: float
    #: How full batches are, from 0 to 1; 0 before the first.
    batch_fill: float


@dataclass
class Counts:
    """What happened so far."""

    answered: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    refused: int = 0
    retried: int = 0
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _fills: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def waited(self, seconds: float) -> None:
        """Note how long a request waited before it was worked on."""
        self._waits.append(seconds)

    def filled(self, fill: float) -> None:
        """Note how full a batch was."""
        self._fills.append(fill)

    def picture(self, queued: int, under_way: int) -> FeedStats:
        """Return the counts of this moment."""
        return FeedStats(
            queued=queued,
            under_way=under_way,
            answered=self.answered,
            failed=self.failed,
            expired=self.expired,
            cancelled=self.cancelled,
            refused=self.refused,
            retried=self.retried,
            mean_wait=_mean(self._waits),
            longest_wait=max(self._waits, default=0.0),
            batch_fill=_mean(self._fills),
        )


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0
