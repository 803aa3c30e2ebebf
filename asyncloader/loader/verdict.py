"""Who is the bottleneck.

This file is about ``verdict``: what a loader's stats come to, in one sentence, and what to
do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from asyncloader.loader.table import percent

if TYPE_CHECKING:
    from asyncloader.loader.stats import LoaderStats, StageStats
    from asyncloader.workers.account import WorkerStats

#: Before that, too little was seen.
_EARLY_SECONDS = 0.5
#: A consumer that waits no more than this is not held up.
_LITTLE = 0.1
#: What takes more than this part of the time is to blame for it.
_MUCH = 0.4


def verdict(stats: LoaderStats) -> str:
    """Return who is the bottleneck in the present epoch, and what to do about it."""
    if not stats.epochs or stats.seconds < _EARLY_SECONDS:
        return f"too early to tell: the epoch has run for {stats.seconds:.2f} s"
    share = stats.waited / stats.seconds
    if share <= _LITTLE:
        return (
            f"the consumer is the bottleneck: it waits for items {percent(share)} of the time,"
            " so a faster loader would not help"
        )
    return f"the consumer waits {percent(share)} of the time; {_blame(stats)}"


def _blame(stats: LoaderStats) -> str:
    workers = [worker for worker in stats.workers if not worker.is_dispatcher]
    if workers:
        return _blame_in_workers(stats, workers)
    return _blame_among(_stages(stats, "loader"), "the loader's", _IN_PROCESS)


def _blame_in_workers(stats: LoaderStats, workers: Sequence[WorkerStats]) -> str:
    stages = _stages(stats, "workers")
    waiting, handing = _share(workers, "waiting"), _share(workers, "handing")
    if waiting > _MUCH:
        return _blame_behind_workers(stats, waiting)
    dealt = max((stage.share for stage in stages if _is_dealt(stage)), default=0.0)
    if dealt > _MUCH:
        dispatching = _stages(stats, "dispatcher")
        why = _blame_among(dispatching, "the dispatching process's", "move it behind the dealing")
        return f"the workers wait {percent(dealt)} of theirs for what they are dealt; {why}"
    if handing > _MUCH:
        return (
            f"{percent(handing)} of a worker's time goes into sending what it made: send less"
            " for each item, or wait less for memory with a larger prefetch_bytes"
        )
    return _blame_among(stages, "a worker's", "add workers or thread_map")


def _blame_behind_workers(stats: LoaderStats, waiting: float) -> str:
    idle = f"the workers wait {percent(waiting)} of theirs, their prefetch is full"
    stages = [stage for stage in _stages(stats, "loader") if stage.seconds]
    if stages and _busiest(stages).share > _MUCH:
        return f"{idle}; {_blame_among(stages, 'the loader' + chr(39) + 's', _MOVE_UP)}"
    return f"{idle}: what is between them and the consumer holds it up"


_IN_PROCESS = (
    "move it to workers (MultiProcessingReadingService), or use thread_map if it releases the GIL"
)
_MOVE_UP = "do it in the workers if it can be copied there"


def _blame_among(stages: Sequence[StageStats], whose: str, advice: str) -> str:
    if not stages:
        return "nothing is known of the pipes"
    busiest, fullest = _busiest(stages), max(stages, key=_fullness)
    if _fullness(fullest) > 1 - _LITTLE and fullest.name != busiest.name:
        busiest = fullest if busiest.share < _MUCH else busiest
    if not busiest.seconds and _fullness(busiest) <= 1 - _LITTLE:
        return "nothing was seen of the pipes yet"
    if busiest.room and _fullness(busiest) > 1 - _LITTLE:
        return (
            f"{busiest.name} has {busiest.held} of {busiest.room} calls under way: raise its"
            " concurrency"
        )
    time = f"{percent(busiest.share)} of {whose} time is in {busiest.name}"
    if busiest.is_source:
        return f"it is the source that is waited for: {time}"
    return f"{time}: {advice}"


def _stages(stats: LoaderStats, where: str) -> list[StageStats]:
    return [stage for stage in stats.stages if stage.where == where]


def _busiest(stages: Iterable[StageStats]) -> StageStats:
    return max(stages, key=lambda stage: stage.seconds)


def _fullness(stage: StageStats) -> float:
    return stage.held / stage.room if stage.room else 0.0


def _is_dealt(stage: StageStats) -> bool:
    return stage.name.startswith("FromDispatcher")


def _share(workers: Sequence[WorkerStats], field: str) -> float:
    total = sum(worker.working + worker.waiting for worker in workers)
    return sum(getattr(worker, field) for worker in workers) / total if total else 0.0
