"""Seconds of CPU that the loader's own process uses for a gigabyte from two workers.

It is the core that the training loop runs on; what the workers use is not in it. The
consumer looks at no byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import graph_of, loop_factory, single_threaded, worker_loader
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.w3 import SIZES, Ones


def ours(job: Job, mode: str) -> float:
    import torch  # noqa: F401  - as in the peers' processes

    single_threaded()
    loader = worker_loader(graph_of(job))
    if mode == "sync":
        with loader:
            return used_by(loader, job)
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(used_by_async(loader, job))


def theirs(open_: Callable[[Job], Any], job: Job) -> float:
    import torch  # noqa: F401

    single_threaded()
    return used_by(open_(job), job)


def used_by(loader: Iterable[Any], job: Job) -> float:
    """Return the CPU seconds of this process for a gigabyte, after an epoch to warm up."""
    _take_all(loader)
    began = time.process_time()
    _take_all(loader)
    return (time.process_time() - began) / (job.amount / 1e9)


def _take_all(loader: Iterable[Any]) -> None:
    for item in loader:
        del item


async def used_by_async(loader: Any, job: Job) -> float:
    async with loader:
        await _take_all_async(loader)
        began = time.process_time()
        await _take_all_async(loader)
        return (time.process_time() - began) / (job.amount / 1e9)


async def _take_all_async(loader: Any) -> None:
    async for item in loader:
        del item


def comparison(size: str) -> Comparison:
    nbytes, items, peers_items = SIZES[size]
    job = Job(items, Ones(nbytes), nbytes=nbytes)
    return Comparison(
        f"CPU of the loader's process, tensors of {size} from 2 workers",
        "s/GB",
        [
            Case("asyncloader, async for", ours, args=(job, "async")),
            Case("asyncloader, uvloop", ours, ("uvloop",), (job, "uvloop")),
            Case("asyncloader, for", ours, args=(job, "sync")),
            *cases(PROCESSES, theirs, replace(job, count=peers_items)),
        ],
        against=[TORCH],
        less_is_better=True,
    )


COMPARISONS = [comparison(size) for size in SIZES]
