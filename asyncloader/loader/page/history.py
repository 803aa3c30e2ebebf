"""The last minute of one loader.

This file is about ``History``: what was seen of a loader once a second, as the stats of the last
few seconds and as the points of plots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from asyncloader.loader.stats import LoaderStats

#: How far back the plots go, and the stats that the picture shows.
MINUTE_SECONDS = 60.0
RECENT_SECONDS = 10.0

#: In less of an epoch nothing can be told: the whole epoch is shown.
_LEAST_SECONDS = 1.0


class Look(NamedTuple):
    """What was seen at one moment."""

    time: float
    stats: LoaderStats
    #: The stats of the time since the look before; those of the whole epoch for the first one.
    change: LoaderStats


class History:
    """What was seen of one loader in the last minute; for one thread."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, time: float, stats: LoaderStats) -> None:
        """Note what is seen at a moment, and forget what is older than a minute."""
        before = self._looks[-1] if self._looks else None
        change = stats if before is None else stats.since(before.stats)
        self._looks.append(Look(time, stats, change))
        while self._looks[0].time < time - MINUTE_SECONDS:
            self._looks.popleft()

    def recent(self) -> LoaderStats:
        """Return the stats of the last ten seconds, or of the last epoch if that is over."""
        last = self._looks[-1]
        first = next(look for look in self._looks if look.time >= last.time - RECENT_SECONDS)
        recent = last.stats.since(first.stats)
        return recent if recent.seconds >= _LEAST_SECONDS else last.stats

    def is_running(self) -> bool:
        """Whether an epoch ran at the last look."""
        last = self._looks[-1].change
        return last.epochs > 0 and last.seconds > 0.0

    def points(self, of: Callable[[LoaderStats], float]) -> Iterator[tuple[float, float]]:
        """Yield how many seconds ago something was seen, and how much of it there was."""
        now = self._looks[-1].time
        for look in self._looks:
            yield now - look.time, of(look.change)
