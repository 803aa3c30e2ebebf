"""W11: what an item costs as there are more of them, more workers and more epochs.

All of it should be flat: a cost that grows with the size of an epoch is one that a table
of a single size does not show.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

from tests.benchmarks import w4
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, graph_of, our_loader, our_rate, peer_rate
from tests.benchmarks.peers import torch_loaders
from tests.benchmarks.peers.catalogue import TORCH
from tests.benchmarks.sizes import sized

BATCH_SIZE = 64
COUNTS = [1_000, 10_000, 100_000, 1_000_000]
SHORT_EPOCH = Job(1_000)
EPOCHS = sized(1_000, 20)
#: How many of the epochs, at either end, one looks at.
SOME = sized(100, 5)
#: Workers that are more than there are cores do not help; they should not hurt either.
MANY = [1, 2, 4, 8]
SMALL = Job(sized(102_400, 1_024), batch_size=BATCH_SIZE)


def our_cost(count: int, workers: int) -> float:
    """Return the nanoseconds of an item."""
    return 1e9 / our_rate(job(count), "sync", len, epochs_of(count), workers)


def torch_cost(count: int) -> float:
    return 1e9 / peer_rate(torch_loaders.processes, job(count), len, epochs_of(count))


def job(count: int) -> Job:
    # A multiple of what two workers batch, so that no batch is smaller than the others.
    together = WORKERS * BATCH_SIZE
    count = sized(count, min(count, 10_000))
    return Job(-(-count // together) * together, batch_size=BATCH_SIZE)


def epochs_of(count: int) -> int:
    """Return more epochs of short ones, so that every case looks at some time."""
    return sized(max(3, 100_000 // count), 2)


def our_workers(workers: int) -> float:
    return our_rate(SMALL, "sync", len, workers=workers)


def torch_workers(workers: int) -> float:
    def opened(job: Job) -> Any:
        return torch_loaders.processes(job, workers)

    return peer_rate(opened, SMALL, len, epochs=2)


def our_images(workers: int) -> float:
    return w4.workers("sync", workers)


def torch_images(workers: int) -> float:
    def opened(job: Job) -> Any:
        return torch_loaders.processes(job, workers)

    return w4.peer(opened)


def our_epoch(which: str, workers: int) -> float:
    """Return the milliseconds of the first epochs, or of the last of a thousand."""
    with our_loader(graph_of(SHORT_EPOCH, workers), workers) as loader:
        return _epoch(loader, which)


def torch_epoch(which: str) -> float:
    return _epoch(torch_loaders.processes(SHORT_EPOCH), which)


def _epoch(loader: Iterable[Any], which: str) -> float:
    before = 1 if which == "first" else EPOCHS - SOME
    for _ in range(before):
        _milliseconds(loader)
    return median([_milliseconds(loader) for _ in range(SOME)])


def _milliseconds(loader: Iterable[Any]) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return 1000 * (time.perf_counter() - began)


def size(name: str, count: int) -> str:
    return f"{name}, {count:,} items"


def growing(title: str, name: str, cases: list[Case]) -> Comparison:
    first, last = size(name, COUNTS[0]), size(name, COUNTS[-1])
    return Comparison(
        f"W11: what an item costs as an epoch grows, {title}",
        "ns",
        cases,
        against=[first],
        targets=[Target(last, 1.1, size(name, COUNTS[-2]), at_most=True)],
        less_is_better=True,
    )


def workers(name: str, count: int) -> str:
    return f"{name}, {count} worker{'s' if count > 1 else ''}"


OURS = "asyncloader"
COMPARISONS = [
    growing(
        "in-process",
        OURS,
        [Case(size(OURS, count), our_cost, args=(count, 0)) for count in COUNTS],
    ),
    growing(
        "2 workers",
        OURS,
        [
            *[Case(size(OURS, count), our_cost, args=(count, WORKERS)) for count in COUNTS],
            *[Case(size(TORCH, count), torch_cost, ("torch",), (count,)) for count in COUNTS],
        ],
    ),
    Comparison(
        "W11: images of W4 with 1 worker and with 2",
        "images/s",
        [
            *[Case(workers(OURS, count), our_images, args=(count,)) for count in (1, 2)],
            *[Case(workers(TORCH, count), torch_images, ("torch",), (count,)) for count in (1, 2)],
        ],
        against=[workers(OURS, 1), workers(TORCH, 1)],
        targets=[Target(workers(OURS, 2), 1.85, workers(OURS, 1))],
    ),
    Comparison(
        "W11: integers in batches of 64, as there are more workers than cores",
        "items/s",
        [
            *[Case(workers(OURS, count), our_workers, args=(count,)) for count in MANY],
            *[Case(workers(TORCH, count), torch_workers, ("torch",), (count,)) for count in MANY],
        ],
        against=[workers(OURS, 2), workers(TORCH, 2)],
    ),
    Comparison(
        f"W11: an epoch of 1,000 items, among the first and the last of {EPOCHS:,}, 2 workers",
        "ms",
        [
            *[Case(f"{OURS}, {which}", our_epoch, args=(which, 2)) for which in ("first", "last")],
            *[
                Case(f"{OURS}, in-process, {which}", our_epoch, args=(which, 0))
                for which in ("first", "last")
            ],
            Case(f"{TORCH}, first", torch_epoch, ("torch",), ("first",)),
        ],
        against=[f"{OURS}, first", f"{OURS}, in-process, first", f"{TORCH}, first"],
        targets=[Target(f"{OURS}, last", 1.1, f"{OURS}, first", at_most=True)],
        less_is_better=True,
    ),
]
