"""Who is the bottleneck.

This file is about ``verdict``: what a loader's stats come to, in one sentence, and what to
do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncloader.loader.table import NOT_BEGUN, percent

if TYPE_CHECKING:
    from asyncloader.loader.stats import LoaderStats, StageStats
    from asyncloader.workers.worker_stats import WorkerStats

#: Before that, too little was seen.
_EARLY_SECONDS = 0.5
#: A consumer that waits no more than this part of the time is not held up.
_LITTLE = 0.1
#: What takes more than this part of the time is to blame for it.
_MUCH = 0.4


def verdict(stats: LoaderStats) -> str:
    """Return who is the bottleneck in the present epoch, and what to do about it."""
    if not stats.epochs:
        return NOT_BEGUN
    if stats.seconds < _EARLY_SECONDS:
        return f"too short to tell: the epoch has run for {stats.seconds:.2f} s"
    share = stats.waited / stats.seconds
    if share <= _LITTLE:
        return (
            f"the consumer is the bottleneck: it waits for items {percent(share)} of the time,"
            " and a faster loader would not help"
        )
    return f"the consumer waits {percent(share)} of the time; {_cause(stats)}"


def _cause(stats: LoaderStats) -> str:
    workers = [worker for worker in stats.workers if not worker.is_dispatcher]
    if not workers:
        return _busiest(_stages(stats, "loader"), "the loader's", _LEAVE_LOADER)
    waiting, handing = _share(workers, "waiting"), _share(workers, "handing")
    if waiting > _MUCH:
        return _behind_workers(stats, waiting)
    stages = _stages(stats, "workers")
    dealt = max((stage.share for stage in stages if _is_dealt(stage)), default=0.0)
    if dealt > _MUCH:
        why = _busiest(_stages(stats, "dispatcher"), "the dispatching process's", _LEAVE_DISPATCHER)
        return f"the workers wait {percent(dealt)} of theirs for what they are dealt; {why}"
    if handing > _MUCH:
        return (
            f"{percent(handing)} of a worker's time goes into sending what it made: send less,"
            " or give a larger prefetch_bytes if it waits for shared memory"
        )
    return _busiest(stages, "a worker's", "add workers or thread_map")


_LEAVE_LOADER = "use workers (MultiProcessingReadingService), or thread_map if it releases the GIL"
_LEAVE_DISPATCHER = "do it after the dealing, in the workers, if it need not run once only"
_LEAVE_LOADERS_PART = "do it in the workers if it can be copied there"


def _behind_workers(stats: LoaderStats, waiting: float) -> str:
    idle = f"the workers wait for credit {percent(waiting)} of theirs, their prefetch is full"
    stages = _stages(stats, "loader")
    if max((stage.share for stage in stages), default=0.0) > _MUCH:
        why = _busiest(stages, "the loader's", _LEAVE_LOADERS_PART)
        return f"{idle}; {why}"
    return f"{idle}: look between them and the consumer, in what runs on its event loop"


def _busiest(stages: Sequence[StageStats], whose: str, advice: str) -> str:
    """Return which of the stages takes the time, and what to do about it."""
    seen = [stage for stage in stages if stage.seconds or _is_full(stage)]
    if not seen:
        return "the pipes were not seen at work yet"
    stage = max(seen, key=lambda each: (each.share > _MUCH, _is_full(each), each.seconds))
    time = f"{percent(stage.share)} of {whose} time is in {stage.name}"
    if _is_full(stage):
        full = f"{stage.name} has {stage.held} of {stage.room} calls under way"
        return f"{full}: raise its concurrency"
    if stage.holds_calls or stage.name.startswith("thread"):
        return f"{time}: raise its concurrency, or add workers"
    return f"waiting for the source: {time}" if stage.is_source else f"{time}: {advice}"


def _stages(stats: LoaderStats, where: str) -> list[StageStats]:
    return [stage for stage in stats.stages if stage.where == where]


def _is_full(stage: StageStats) -> bool:
    return stage.holds_calls and stage.held >= stage.room > 0


def _is_dealt(stage: StageStats) -> bool:
    return stage.name.startswith("FromDispatcher")


def _share(workers: Sequence[WorkerStats], field: str) -> float:
    total = sum(worker.working + worker.waiting for worker in workers)
    return sum(getattr(worker, field) for worker in workers) / total if total else 0.0
