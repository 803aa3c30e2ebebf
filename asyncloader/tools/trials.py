"""How many workers are best, tried out.

This file is about ``Trial``, what came of running a graph in some number of workers for a
while, and ``verdict``, which number to take. Rates scatter. Each trial measures several,
and two trials whose ranges overlap do not say which is better.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from asyncloader.adapters.sharding_policy import ShardingPolicy
from asyncloader.errors import LoaderError
from asyncloader.graph.cut import cut_graph
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.services.multi_processing import MultiProcessingReadingService

#: Into how many stretches a trial is cut, each of which gives a rate.
STRETCHES = 5
#: How much longer than its measuring a trial may take to start and fill what it holds ready.
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Trial:
    """The rates of a graph in some number of workers, in items a second."""

    workers: int
    #: Empty if there was no item for each stretch.
    rates: Sequence[float]
    #: From starting the workers to the first item; None if none came.
    first_item_seconds: float | None

    @property
    def rate(self) -> float:
        """The rate in the middle, 0 without any."""
        return median(self.rates) if self.rates else 0.0

    def overlaps(self, other: Trial) -> bool:
        """Whether the two cannot be told apart."""
        if not self.rates or not other.rates:
            return False
        return max(self.rates) >= min(other.rates) and max(other.rates) >= min(self.rates)


class ExaminationError(LoaderError):
    """A graph cannot be examined, or failed; the cause is its own error."""


def counts_up_to(cores: int) -> list[int]:
    """Return the numbers of workers to try: all up to 4, then ever fewer of them."""
    steps = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    return sorted({count for count in steps if count < cores} | {cores})


def what_is_tried(datapipe: Any) -> tuple[list[ShardingPolicy], str]:
    """Return the adapters that a graph needs to be divided among workers, and why."""
    parts = cut_graph(datapipe).parts
    if not parts:
        return [], "no part of this graph can be copied into workers, so they change nothing"
    if all(part.is_sharded for part in parts):
        return [], ""
    return [ShardingPolicy()], (
        "nothing shards this graph: it was tried as ShardingPolicy() divides it, which you"
        " would have to do as well (see sharding_filter)"
    )


async def tried(
    datapipe: Any, adapters: Iterable[ShardingPolicy], workers: int, seconds: float
) -> Trial:
    """Run a graph in so many workers, again and again, for so long; raise what it raises."""
    watch = Stretches(seconds / STRETCHES)
    service = MultiProcessingReadingService(workers)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(seconds + PATIENCE_SECONDS) as limit:
            async with DataLoader2(datapipe, adapters, service) as loader:
                await _watch(loader, watch)
    except TimeoutError:
        if not limit.expired():
            raise
    first = None if watch.began is None else watch.began - began
    return Trial(workers, watch.rates, first)


async def _watch(loader: DataLoader2[Any], watch: Stretches) -> None:
    while True:
        items = aiter(loader)
        try:
            async for _ in items:
                if watch.note():
                    return
        finally:
            await items.aclose()
        if watch.began is None:
            raise ExaminationError("the graph yields no items")


class Stretches:
    """Counts items into stretches of time; the first one, in which all is filled, is not kept."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began: float | None = None
        self.rates: list[float] = []
        self._since = self._ends = 0.0
        self._items = 0
        self._is_filled = False

    def note(self) -> bool:
        """Count an item that came now; return whether there are stretches enough."""
        now = time.perf_counter()
        if self.began is None:
            self.began = now
            self._begin(now)
            return False
        self._items += 1
        if now < self._ends:
            return False
        if self._is_filled:
            self.rates.append(self._items / (now - self._since))
        self._is_filled = True
        self._begin(now)
        return len(self.rates) == STRETCHES

    def _begin(self, now: float) -> None:
        self._since, self._ends, self._items = now, now + self.seconds, 0


def verdict(trials: Sequence[Trial]) -> str:
    """Say which number of workers to take: the fewest that no other is surely better than."""
    measured = [trial for trial in trials if trial.rates]
    if not measured:
        return "not resolved: no trial saw enough items; give it more --seconds"
    best = max(measured, key=lambda trial: trial.rate)
    alike = sorted(_alike(best, measured), key=lambda trial: trial.workers)
    if len(alike) == 1:
        return f"best here: {_counted(best.workers)}, {as_rate(best.rate)} items/s"
    *others, last = (str(trial.workers) for trial in alike)
    numbers = f"{', '.join(others)} and {last}"
    return (
        f"not resolved between {numbers} workers, whose ranges overlap: {alike[0].workers}"
        " takes the least; more --seconds may tell them apart"
    )


def as_rate(rate: float) -> str:
    """Return a rate for a reader: no more digits than were measured."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _alike(best: Trial, trials: Iterable[Trial]) -> Iterator[Trial]:
    return (trial for trial in trials if trial is best or trial.overlaps(best))


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
