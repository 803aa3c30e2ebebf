"""How a loader is doing.

This file is about ``LoaderStats``, a picture of one moment: what was handed out, who
waited for whom, and where the time went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.edges import edges_of
from asyncloader.datapipes.watch.tallies import UNCOUNTED, Tally, tallies_of
from asyncloader.graph.walk import breadth_first
from asyncloader.loader import metrics, table, verdict
from asyncloader.loader.timing import Timing
from asyncloader.workers.worker_stats import WorkerStats

#: Where a pipe may run.
LOADER, WORKERS, DISPATCHER = "loader", "workers", "dispatcher"


@dataclass(frozen=True)
class StageStats:
    """What one pipe of the graph has come to in the present epoch, in all processes together."""

    #: What the pipe is called: ``map(decode)``.
    name: str
    #: "loader", "workers" or "dispatcher": where it runs.
    where: str
    #: How many items it yielded, or None where it does not count them.
    items: int | None
    #: Items a second, or None.
    rate: float | None
    #: How many items its function failed on, where that is tolerated.
    errors: int
    #: How many seconds threads spent in it: in its function, or waiting for what it does.
    seconds: float
    #: That as a part of the time that those who run it have had, from 0 to 1.
    share: float
    #: How many items it holds or has under way, and how many it may; 0 where it has no bound.
    held: int
    room: int
    #: Whether those are calls under way, so that it is busy when it is full.
    holds_calls: bool
    #: Whether it reads from no other pipe.
    is_source: bool


@dataclass(frozen=True, repr=False)
class LoaderStats:
    """How a loader is doing: in the present epoch, or in the last one where that is over.

    Printed, it is a table. Time in the pipes is looked at a few times a tenth of a second, so
    of an epoch that was shorter nothing is known.
    """

    #: Epochs that were begun.
    epochs: int
    #: Items that were handed out.
    items: int
    #: Processes that died and were replaced, since the loader was started.
    restarts: int = 0
    #: For how long the epoch has run, and for how much of that the consumer waited for items.
    seconds: float = 0.0
    waited: float = 0.0
    #: The pipes, from the source on.
    stages: tuple[StageStats, ...] = ()
    #: The worker processes, the dispatching one among them.
    workers: tuple[WorkerStats, ...] = ()

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        """Items that functions failed on, where that is tolerated."""
        return sum(stage.errors for stage in self.stages)

    def verdict(self) -> str:
        """Return who is the bottleneck, and what to do about it, in one sentence."""
        return verdict.verdict(self)

    def as_metrics(self) -> Iterator[metrics.Metric]:
        """Yield ``(name, labels, value)`` for each number, named as Prometheus would have it.

        >>> [metric for metric in LoaderStats(epochs=2, items=7).as_metrics()][1]
        Metric(name='asyncloader_items_total', labels={}, value=7)
        """
        return metrics.metrics_of(self)

    def __repr__(self) -> str:
        return table.table(self)


def stats_of(
    datapipe: Any,
    timing: Timing,
    workers: Sequence[WorkerStats],
    *,
    epochs: int,
    items: int,
    restarts: int,
) -> LoaderStats:
    """Return how the loader of a graph is doing."""
    seconds = timing.seconds() if epochs else 0.0
    end = timing.watching.pipes[:1]
    tallies = tallies_of(timing.watching, {id(pipe): items for pipe in end})
    names = Names(datapipe, seconds)
    stages = names.stages(tallies, LOADER, seconds)
    for where, those in _by_place(workers):
        total = sum(worker.working + worker.waiting for worker in those)
        stages += names.stages(_merged(worker.pipes for worker in those), where, total)
    stages.sort(key=names.order)
    return LoaderStats(
        epochs=epochs,
        items=items,
        restarts=restarts,
        seconds=seconds,
        waited=timing.waited(),
        stages=tuple(stages),
        workers=tuple(workers),
    )


class Names:
    """What the pipes of a loader's graph are called, by their numbers."""

    def __init__(self, datapipe: Any, seconds: float) -> None:
        self._seconds = seconds
        pipes = [] if datapipe is None else breadth_first(datapipe)
        self._names = [stage_name(pipe) for pipe in pipes]
        self._sources = [not edges_of(pipe) for pipe in pipes]
        self._numbers: dict[int, int] = {}

    def stages(self, tallies: Iterable[Tally], where: str, total: float) -> list[StageStats]:
        """Return what pipes have come to that run there, where there were so many seconds."""
        return [self._stage(tally, where, total) for tally in tallies]

    def order(self, stage: StageStats) -> int:
        """Return where a stage comes, the source first and what a service added last."""
        return -self._numbers.get(id(stage), -1)

    def _stage(self, tally: Tally, where: str, total: float) -> StageStats:
        number = tally.pipe
        items = None if tally.items == UNCOUNTED else tally.items
        stage = StageStats(
            name=number if isinstance(number, str) else self._names[number],
            where=where,
            items=items,
            rate=items / self._seconds if items is not None and self._seconds else None,
            errors=tally.errors,
            seconds=tally.seconds,
            share=min(1.0, tally.seconds / total) if total else 0.0,
            held=tally.held,
            room=tally.room,
            holds_calls=tally.holds_calls,
            is_source=isinstance(number, int) and self._sources[number],
        )
        if isinstance(number, int):
            self._numbers[id(stage)] = number
        return stage


def _by_place(workers: Sequence[WorkerStats]) -> Iterator[tuple[str, list[WorkerStats]]]:
    for where in (WORKERS, DISPATCHER):
        yield where, [each for each in workers if each.is_dispatcher == (where == DISPATCHER)]


def _merged(tallies: Iterable[Sequence[Tally]]) -> list[Tally]:
    """Return the sums of what the same pipes have come to in several processes."""
    merged: dict[int | str, Tally] = {}
    for tally in (each for one in tallies for each in one):
        before = merged.get(tally.pipe)
        merged[tally.pipe] = tally if before is None else _sum(before, tally)
    return list(merged.values())


def _sum(one: Tally, other: Tally) -> Tally:
    is_counted = UNCOUNTED not in (one.items, other.items)
    return Tally(
        one.pipe,
        one.items + other.items if is_counted else UNCOUNTED,
        one.errors + other.errors,
        one.seconds + other.seconds,
        one.held + other.held,
        one.room + other.room,
        one.holds_calls,
    )
