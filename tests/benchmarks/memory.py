"""How much memory a loader and its two workers gain while epochs go by, in MiB.

What is counted is what the kernel says of all processes together (shared pages divided
among those who share them), at the end of an early epoch and of a late one. For two seconds
before the early one the consumer dawdles: what is done once when workers have started, and
what runs ahead of a consumer that is late, is not what a loader gains with every epoch.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import graph_of, single_threaded, worker_loader
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized
from tests.benchmarks.w3 import Ones
from tests.leaks import descendants

KIB, MIB = 1 << 10, 1 << 20
EARLY, LATE = sized(20, 2), sized(200, 4)
SETTLING_SECONDS = sized(2.0, 0.0)
TENSORS = Job(sized(200, 20), Ones(256 * KIB), nbytes=256 * KIB)
BATCHES = Job(sized(6_400, 640), batch_size=64)
#: A process that sleeps may vary by as much.
LEAST = 0.01


def our_gain(job: Job) -> float:
    with worker_loader(graph_of(job)) as loader:
        return gain(loader)


def peer_gain(open_: Callable[[Job], Any], job: Job) -> float:
    single_threaded()
    return gain(open_(job))


def gain(loader: Iterable[Any]) -> float:
    """Return how much more there is after the late epoch, at least a trifle."""
    _settle(loader)
    _epochs(loader, EARLY)
    early = total()
    _epochs(loader, LATE - EARLY)
    return max((total() - early) / MIB, LEAST)


def _settle(loader: Iterable[Any]) -> None:
    end = time.monotonic() + SETTLING_SECONDS
    while time.monotonic() < end:
        for number, item in enumerate(loader):
            del item
            if number in (0, 10):
                time.sleep(SETTLING_SECONDS / 10)


def _epochs(loader: Iterable[Any], count: int) -> None:
    for _ in range(count):
        for item in loader:
            del item


def total() -> int:
    """Return the bytes of this process and those that come from it."""
    gc.collect()
    return sum(map(_bytes_of, [os.getpid(), *descendants()]))


def _bytes_of(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = [line.split() for line in file]
    return next(1024 * int(words[1]) for words in sizes if words[0] == "Pss:")


def comparison(title: str, job: Job) -> Comparison:
    return Comparison(
        f"memory gained from epoch {EARLY} to {LATE}, {title} from 2 workers",
        "MiB",
        [
            Case("asyncloader, for", our_gain, args=(job,)),
            *cases(PROCESSES, peer_gain, job),
        ],
        against=[TORCH],
        targets=[Target("asyncloader, for", 1, at_most=True)],
        less_is_better=True,
    )


COMPARISONS = [
    comparison("tensors of 256 KiB", TENSORS),
    comparison("batches of 64 integers", BATCHES),
]
