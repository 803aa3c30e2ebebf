"""W7: milliseconds of an epoch of 100 items, with two workers that stay.

grain and torchdata's nodes are not here: their workers end with an epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import graph_of, loop_factory, worker_loader
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

JOB = Job(100)
EPOCHS = sized(50, 5)


def sync_epoch() -> float:
    with worker_loader(graph_of(JOB)) as loader:
        return _milliseconds(loader)


def peer_epoch(open_: Callable[[Job], Any]) -> float:
    return _milliseconds(open_(JOB))


def _milliseconds(loader: Iterable[Any]) -> float:
    spent = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        assert len(list(loader)) == JOB.count
        spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


def async_epoch(mode: str) -> float:
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(_async_milliseconds())


async def _async_milliseconds() -> float:
    spent = []
    async with worker_loader(graph_of(JOB)) as loader:
        for _ in range(EPOCHS):
            began = time.perf_counter()
            assert len([item async for item in loader]) == JOB.count
            spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


ASYNC = "asyncloader, async for"
STAY = [peer for peer in PROCESSES if not peer.name.startswith(("grain", "torchdata nodes"))]
COMPARISONS = [
    Comparison(
        "W7: an epoch of 100 items from 2 workers that stay",
        "ms",
        [
            Case(ASYNC, async_epoch, args=("async",)),
            Case("asyncloader, uvloop", async_epoch, ("uvloop",), ("uvloop",)),
            Case("asyncloader, for", sync_epoch),
            *cases(STAY, peer_epoch),
        ],
        against=[TORCH],
        targets=[Target(ASYNC, 0.5, at_most=True), Target(ASYNC, 0.1, TORCH, at_most=True)],
        less_is_better=True,
    )
]
