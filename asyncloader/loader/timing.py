"""How an epoch's time is spent.

This file is about ``Timing``: how long an epoch has run, and for how much of that its
consumer waited for items. Waits are timed group by group; a consumer in whose own thread
the pipes run is looked at instead.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from asyncloader.datapipes.watch.watching import Watched, Watching


class Timing:
    """The time of one epoch, which begins now."""

    def __init__(self) -> None:
        self.watching = Watching()
        self._begun = perf_counter()
        self._ended = 0.0
        self._waited = 0.0
        self._waiting_since = 0.0
        self._direct: Watched | None = None

    def watch_consumer(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Take the consumer's waits to be the time in which its thread works for the pipes.

        To be called on the loop.
        """
        self.watching.add(watched, loop)
        self._direct = watched

    def wait(self) -> None:
        """Note that the consumer begins to wait."""
        self._waiting_since = perf_counter()

    def go_on(self) -> None:
        """Note that the consumer has what it waited for."""
        self._waited += perf_counter() - self._waiting_since
        self._waiting_since = 0.0

    def end(self) -> None:
        """Note that the epoch is over."""
        if not self._ended:
            self._ended = perf_counter()
            if self._direct is not None:
                self._direct.end()

    def seconds(self) -> float:
        """Return for how many seconds the epoch has run."""
        return self._now() - self._begun

    def waited(self) -> float:
        """Return for how many of them the consumer waited."""
        if self._direct is not None:
            return self._direct.working()
        since = self._waiting_since
        return self._waited + (max(0.0, self._now() - since) if since else 0.0)

    def _now(self) -> float:
        return self._ended or perf_counter()
