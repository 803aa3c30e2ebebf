"""Who is called the bottleneck, for every way in which an epoch can be held up."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader.loader.stats import LoaderStats, StageStats
from asyncloader.workers.worker_stats import WorkerStats


def stage(name: str, share: float, where: str = "loader", **facts: Any) -> StageStats:
    settled = {
        "items": None,
        "rate": None,
        "errors": 0,
        "held": 0,
        "room": 0,
        "holds_calls": False,
        "is_source": False,
    }
    return StageStats(name=name, where=where, seconds=10 * share, share=share, **settled | facts)


def worker(working: float, handing: float = 0.0, **facts: Any) -> WorkerStats:
    return WorkerStats(working=working, handing=handing, waiting=10 - working, **facts)


def verdict(waited: float, *stages: StageStats, workers: tuple[WorkerStats, ...] = ()) -> str:
    return LoaderStats(1, 100, 0, 10.0, waited, stages, workers).verdict()


DECODE = stage("map(decode)", 0.81, "workers")
SOURCE = stage("IterableWrapper()", 0.1, "workers", is_source=True)
DEALT = stage("FromDispatcher()", 0.7, "workers")
DEALER = WorkerStats(is_dispatcher=True, working=10.0)

CASES = {
    "a stage in the workers": (
        verdict(6.2, SOURCE, DECODE, workers=(worker(9),)),
        "the consumer waits 62 % of the time; 81 % of a worker's time is in map(decode): add"
        " workers or thread_map",
    ),
    "the consumer": (
        verdict(0.5, SOURCE, DECODE, workers=(worker(1),)),
        "the consumer is the bottleneck: it waits for items 5 % of the time, and a faster loader"
        " would not help",
    ),
    "a stage in the loader's process": (
        verdict(9.0, stage("map(decode)", 0.5)),
        "the consumer waits 90 % of the time; 50 % of the loader's time is in map(decode): use"
        " workers (MultiProcessingReadingService), or thread_map if it releases the GIL",
    ),
    "the source": (
        verdict(9.0, stage("open_files('rb')", 0.7, is_source=True)),
        "the consumer waits 90 % of the time; waiting for the source: 70 % of the loader's time is"
        " in open_files('rb')",
    ),
    "calls under way": (
        verdict(9.0, stage("async_map(fetch)", 0, held=8, room=8, holds_calls=True)),
        "the consumer waits 90 % of the time; async_map(fetch) has 8 of 8 calls under way: raise"
        " its concurrency",
    ),
    "threads": (
        verdict(9.0, stage("thread_map(decode)", 0.9, "workers"), workers=(worker(10),)),
        "the consumer waits 90 % of the time; 90 % of a worker's time is in thread_map(decode):"
        " raise its concurrency, or add workers",
    ),
    "a buffer that is full is not busy": (
        verdict(9.0, stage("map(decode)", 0.5), stage("prefetch(8)", 0, held=8, room=8)),
        "the consumer waits 90 % of the time; 50 % of the loader's time is in map(decode): use"
        " workers (MultiProcessingReadingService), or thread_map if it releases the GIL",
    ),
    "workers without credit": (
        verdict(9.0, DECODE, workers=(worker(2),)),
        "the consumer waits 90 % of the time; the workers wait for credit 80 % of theirs, their"
        " prefetch is full: look between them and the consumer, in what runs on its event loop",
    ),
    "a stage behind the workers": (
        verdict(9.0, DECODE, stage("pin_memory()", 0.9), workers=(worker(2),)),
        "the consumer waits 90 % of the time; the workers wait for credit 80 % of theirs, their"
        " prefetch is full; 90 % of the loader's time is in pin_memory(): do it in the workers if"
        " it can be copied there",
    ),
    "sending": (
        verdict(9.0, DECODE, workers=(worker(10, handing=6.0),)),
        "the consumer waits 90 % of the time; 60 % of a worker's time goes into sending what it"
        " made: send less, or give a larger prefetch_bytes if it waits for shared memory",
    ),
    "the dispatching process": (
        verdict(9.0, DEALT, stage("map(parse)", 0.8, "dispatcher"), workers=(worker(10), DEALER)),
        "the consumer waits 90 % of the time; the workers wait 70 % of theirs for what they are"
        " dealt; 80 % of the dispatching process's time is in map(parse): do it after the dealing,"
        " in the workers, if it need not run once only",
    ),
    "nothing seen": (
        verdict(9.0),
        "the consumer waits 90 % of the time; the pipes were not seen at work yet",
    ),
    "too short": (
        LoaderStats(1, 3, 0, 0.1, 0.1).verdict(),
        "too short to tell: the epoch has run for 0.10 s",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_what_holds_the_epoch_up(case):
    said, expected = CASES[case]
    assert said == expected
