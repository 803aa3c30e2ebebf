"""The last minute of one loader.

This file is about ``History``: what was seen of a loader once a second, as the stats of the last
few seconds and as the points of plots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from asyncloader.loader.stats import LoaderStats

#: How far back the plots go, and the stats that the picture shows.
MINUTE_SECONDS = 60.0
RECENT_SECONDS = 10.0

#: In less of an epoch nothing can be told: the whole epoch is shown.
_LEAST_SECONDS = 1.0


class History:
    """What was seen of one loader in the last minute; for one thread."""

    def __init__(self) -> None:
        #: When it was looked at, the stats of that moment, and those of the time since the look
        #: before. The first look is at the whole epoch.
        self._looks: deque[tuple[float, LoaderStats, LoaderStats]] = deque()

    def add(self, time: float, stats: LoaderStats) -> None:
        """Note what is seen at a moment, and forget what is older than a minute."""
        change = stats
        if self._looks:
            _, before, _ = self._looks[-1]
            change = stats.since(before)
        self._looks.append((time, stats, change))
        while self._looks[0][0] < time - MINUTE_SECONDS:
            self._looks.popleft()

    def recent(self) -> LoaderStats:
        """Return the stats of the last ten seconds, or of the last epoch if that is over."""
        now, last, _ = self._looks[-1]
        first = next(stats for time, stats, _ in self._looks if time >= now - RECENT_SECONDS)
        recent = last.since(first)
        return recent if recent.seconds >= _LEAST_SECONDS else last

    def is_running(self) -> bool:
        """Whether an epoch ran at the last look."""
        _, _, last = self._looks[-1]
        return last.epochs > 0 and last.seconds > 0.0

    def points(self, of: Callable[[LoaderStats], float]) -> Iterator[tuple[float, float]]:
        """Yield how many seconds ago something was seen, and how much of it there was."""
        now, _, _ = self._looks[-1]
        for time, _, change in self._looks:
            yield now - time, of(change)
