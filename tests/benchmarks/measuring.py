"""What the workloads have in common.

This file is about taking all items of a loader, again and again, by ``for`` and by
``async for``; of asyncloader and of others. Workers persist across epochs everywhere.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from tests.benchmarks.cost import Rate, cpu_seconds
from tests.benchmarks.job import Job

WORKERS = 2
EPOCHS = 5
#: What runs in threads of this process has one for each.
CORES = os.cpu_count() or 1

Take = Callable[[Any], int]


def one(_: Any) -> int:
    """Look at nothing: the item counts as one."""
    return 1


def peer_rate(
    open_: Callable[[Job], Iterable[Any]], job: Job, take: Take = one, epochs: int = EPOCHS
) -> float:
    """Return what is taken of a peer per second, after an epoch that is checked."""
    single_threaded()
    loader = open_(job)
    assert sum(map(take, loader)) == job.amount
    return sync_rate(loader, take, epochs, warm_up=0)


def our_rate(
    job: Job, mode: str, take: Take = one, epochs: int = EPOCHS, workers: int = WORKERS
) -> float:
    """Return what is taken of ours per second; ``mode`` is "sync", "async" or "uvloop"."""
    single_threaded()
    return ours(graph_of(job, workers), take, mode, epochs, workers)


def single_threaded() -> None:
    """Leave the cores to the workers, in every case alike."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def sync_rate(
    loader: Iterable[Any], take: Take = one, epochs: int = EPOCHS, warm_up: int = 1
) -> float:
    """Return what is taken per second of a middling epoch by ``for``, after some to warm up."""
    return _middle([_sync_epoch(loader, take) for _ in range(epochs + warm_up)][warm_up:])


def _sync_epoch(loader: Iterable[Any], take: Take) -> Rate:
    taken = 0
    used, began = cpu_seconds(), time.perf_counter()
    for item in loader:
        taken += take(item)
        # As a loop does that has no name for the last item when it asks for the next.
        del item
    return _rate(taken, began, used)


def _rate(taken: int, began: float, used: float) -> Rate:
    spent = time.perf_counter() - began
    return Rate(taken / spent, (cpu_seconds() - used) / taken)


def _middle(rates: list[Rate]) -> Rate:
    return Rate(median(rates), median(rate.cpu for rate in rates))


async def async_rate(loader: Any, take: Take = one, epochs: int = EPOCHS) -> float:
    """Return what is taken per second of a middling epoch by ``async for``."""
    return _middle([await _async_epoch(loader, take) for _ in range(epochs + 1)][1:])


async def _async_epoch(loader: Any, take: Take) -> Rate:
    taken = 0
    used, began = cpu_seconds(), time.perf_counter()
    async for item in loader:
        taken += take(item)
        del item
    return _rate(taken, began, used)


def ours(
    graph: Any, take: Take = one, mode: str = "async", epochs: int = EPOCHS, workers: int = WORKERS
) -> float:
    """Return the rate of a graph; ``mode`` is "sync", "async" or "uvloop"."""
    loader = our_loader(graph, workers)
    if mode == "sync":
        with loader:
            return sync_rate(loader, take, epochs)
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(_ours(loader, take, epochs))


async def _ours(loader: Any, take: Take, epochs: int) -> float:
    async with loader:
        return await async_rate(loader, take, epochs)


def graph_of(job: Job, workers: int = WORKERS) -> Any:
    """Return the job as a graph of ours, shared out where there are workers."""
    from asyncloader.datapipes.iter import IterableWrapper

    numbers = IterableWrapper(range(job.count))
    pipe = (numbers.sharding_filter() if workers else numbers).map(job.function)
    if not job.batch_size:
        return pipe
    batches = pipe.batch(job.batch_size)
    return batches if job.collate is list else batches.collate(job.collate)


def our_loader(graph: Any, workers: int) -> Any:
    """Return a loader of ours, with workers or, for none, in this process."""
    from asyncloader import DataLoader2

    return worker_loader(graph, workers) if workers else DataLoader2(graph)


def worker_loader(graph: Any, workers: int = WORKERS, method: str | None = None) -> Any:
    """Return a loader of ours, with the settings it has by default."""
    from asyncloader import DataLoader2, MultiProcessingReadingService

    return DataLoader2(graph, reading_service=MultiProcessingReadingService(workers, method))


def loop_factory(mode: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop: "uvloop"'s, or the standard library's."""
    if mode == "uvloop":
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.new_event_loop


def torch_loader(dataset: Any, **settings: Any) -> Any:
    """Return a DataLoader with persistent workers; ``settings`` overrule."""
    from torch.utils.data import DataLoader

    usual = {"num_workers": WORKERS, "persistent_workers": True, "batch_size": None}
    return DataLoader(dataset, **{**usual, **settings})
