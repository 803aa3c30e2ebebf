"""W13: the work of W2, W3 and W4 in two actors of a Ray cluster, beside Ray Data in two tasks and
beside our worker processes; and how soon actors are there, also in place of one that was killed.
The cluster is one of this machine, with two CPUs. The limits are actors of which each call makes
some of the items, as arrays, and returns them; and actors that do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import (
    WORKERS,
    Take,
    async_rate,
    graph_of,
    one,
    our_rate,
    peer_rate,
    single_threaded,
    sync_rate,
)
from tests.benchmarks.peers import ray_data
from tests.benchmarks.sizes import sized
from tests.benchmarks.w3 import MIB, Ones, nbytes_of
from tests.benchmarks.w4 import collated, decode

EPOCHS = 2
STORE = 1 << 30
NEEDS, RAY_DATA_NEEDS = ("ray",), ("ray", "pandas", "pyarrow")

FOR, ASYNC, PROCESSES = "asyncloader, for", "asyncloader, async for", "asyncloader, processes"
RAY_DATA, BARE, LIMIT = "Ray Data", "limit: bare actors", "limit: empty actors"
#: So many calls of each bare actor are on their way.
AHEAD = 4


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Have a cluster of this machine, and be its driver."""
    import ray

    settings = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=WORKERS, object_store_memory=STORE, **settings)
    try:
        yield
    finally:
        ray.shutdown()


# Rates ----------------------------------------------------------------------------------


def in_actors(job: Job, mode: str, take: Take, unit: float) -> float:
    single_threaded()
    with cluster():
        return _rate(loader_of(graph_of(job)), mode, take) / unit


def _rate(loader: Any, mode: str, take: Take) -> float:
    if mode == "sync":
        with loader:
            return sync_rate(loader, take, EPOCHS)
    return asyncio.run(_async_rate(loader, take))


async def _async_rate(loader: Any, take: Take) -> float:
    async with loader:
        return await async_rate(loader, take, EPOCHS)


def in_processes(job: Job, take: Take, unit: float) -> float:
    return our_rate(job, "async", take, EPOCHS) / unit


def by_ray_data(open_: Callable[[Job], Iterable[Any]], job: Job, take: Take, unit: float) -> float:
    with cluster():
        return peer_rate(open_, job, take, EPOCHS) / unit


def by_bare_actors(job: Job, take: Take, unit: float, group: int) -> float:
    with cluster():
        return peer_rate(lambda job: BareActors(job, group), job, take, EPOCHS) / unit


class BareActors:
    """The items of a job, of which each call of an actor makes a group."""

    def __init__(self, job: Job, group: int) -> None:
        import ray

        make, needs = job.calls()
        self._needs, self._group = list(needs), group
        self._actors = [ray.remote(num_cpus=1)(Maker).remote(make) for _ in range(WORKERS)]

    def __iter__(self) -> Iterator[Any]:
        import ray

        starts = range(0, len(self._needs), self._group)
        groups = [self._needs[start : start + self._group] for start in starts]
        calls = (
            actor.make.remote(each)
            for each, actor in zip(groups, cycle(self._actors), strict=False)
        )
        begun = deque(islice(calls, AHEAD * WORKERS))
        while begun:
            yield from ray.get(begun.popleft())
            begun.extend(islice(calls, 1))


class Maker:
    """What a bare actor is."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        single_threaded()
        self._make = make

    def make(self, needs: list[Any]) -> list[Any]:
        made = [self._make(each) for each in needs]
        # Ray copies arrays less often than tensors.
        return [each.numpy() if hasattr(each, "numpy") else each for each in made]


def loader_of(graph: Any) -> Any:
    """Return a loader with actors, with the settings it has by default."""
    from asyncloader import DataLoader2, RayReadingService

    return DataLoader2(graph, reading_service=RayReadingService(WORKERS))


# Starting -------------------------------------------------------------------------------

FEW = Job(sized(100, 20))
MANY = Job(sized(2_000, 400))


def first_item() -> float:
    """Return the seconds from a second loader to its first item."""
    import asyncloader.datapipes.iter  # noqa: F401  - before the clock starts

    with cluster():
        return second(lambda: asyncio.run(_first_item()))


async def _first_item() -> float:
    began = time.perf_counter()
    async with loader_of(graph_of(FEW)) as loader:
        await anext(aiter(loader))
        return time.perf_counter() - began


def first_row() -> float:
    """Return the seconds from a second dataset to its first row."""
    with cluster():
        return second(_first_row)


def _first_row() -> float:
    began = time.perf_counter()
    items = iter(ray_data.rows(FEW))
    next(items)
    spent = time.perf_counter() - began
    for _ in items:  # so that it ends in good order
        pass
    return spent


def empty_actors() -> float:
    """Return the seconds until actors that do nothing have answered, the second time."""
    with cluster():
        return second(_empty_actors)


def _empty_actors() -> float:
    import ray

    began = time.perf_counter()
    started = [ray.remote(num_cpus=1)(Empty).remote() for _ in range(WORKERS)]
    ray.get([actor.answer.remote() for actor in started])
    spent = time.perf_counter() - began
    for actor in started:
        ray.kill(actor)
    return spent


class Empty:
    """What the limit is."""

    def answer(self) -> None:
        pass


def second(measure: Callable[[], float]) -> float:
    """Return what is measured once the cluster has done it before."""
    measure()
    return measure()


def slow(number: int) -> int:
    time.sleep(0.002)
    return number


def longest_wait() -> float:
    """Return the longest that an item was waited for in an epoch that loses an actor."""
    with cluster(), loader_of(graph_of(Job(MANY.count, slow))) as loader:
        items, waits = iter(loader), []
        for number in range(MANY.count):
            began = time.perf_counter()
            assert next(items) == number
            waits.append(time.perf_counter() - began)
            if number == MANY.count // 4:
                os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
        assert loader.stats().restarts == 1
        return max(waits)


# What is compared -----------------------------------------------------------------------


def rates(
    title: str,
    unit: str,
    job: Job,
    take: Take,
    open_: Callable[[Job], Iterable[Any]],
    times: float,
    *,
    group: int = 1,
    of_processes: float = 0,
) -> Comparison:
    scale = 1e9 if unit == "GB/s" else 1.0
    compared = [
        Case(ASYNC, in_actors, NEEDS, (job, "async", take, scale)),
        Case(FOR, in_actors, NEEDS, (job, "sync", take, scale)),
        Case(PROCESSES, in_processes, NEEDS, (job, take, scale)),
        Case(RAY_DATA, by_ray_data, RAY_DATA_NEEDS, (open_, job, take, scale)),
        Case(BARE, by_bare_actors, NEEDS, (job, take, scale, group)),
    ]
    targets = [Target(ASYNC, times, RAY_DATA)]
    if of_processes:
        targets.append(Target(ASYNC, of_processes, PROCESSES))
    return Comparison(title, unit, compared, against=[RAY_DATA, PROCESSES, BARE], targets=targets)


COMPARISONS = [
    rates(
        "W13a: integers one by one from 2 actors",
        "items/s",
        Job(sized(102_400, 1_024)),
        one,
        ray_data.rows,
        40,
        group=1_024,
    ),
    rates(
        "W13b: integers from 2 actors, in batches of 64 made there",
        "items/s",
        Job(sized(1_024_000, 10_240), batch_size=64),
        len,
        ray_data.batches,
        15,
        group=64,
    ),
    rates(
        "W13c: tensors of 4 MiB from 2 actors, counted",
        "GB/s",
        Job(sized(300, 20), Ones(4 * MIB), nbytes=4 * MIB),
        nbytes_of,
        ray_data.tensors,
        1.2,
    ),
    rates(
        "W13d: JPEG images decoded to tensors by 2 actors, in batches of 32",
        "images/s",
        Job(sized(2_048, 128), decode, 32, collated),
        len,
        ray_data.tensors,
        1.2,
        of_processes=0.8,
    ),
    Comparison(
        "W13e: from a loader to its first item, with 2 actors of a warm cluster",
        "s",
        [
            Case(ASYNC, first_item, NEEDS),
            Case(RAY_DATA, first_row, RAY_DATA_NEEDS),
            Case(LIMIT, empty_actors, NEEDS),
        ],
        against=[LIMIT, RAY_DATA],
        targets=[Target(ASYNC, 1.5, LIMIT, at_most=True)],
        less_is_better=True,
    ),
    Comparison(
        "W13f: the longest wait for an item where one of 2 actors is killed",
        "s",
        [Case(FOR, longest_wait, NEEDS), Case(LIMIT, empty_actors, NEEDS)],
        against=[LIMIT],
        less_is_better=True,
    ),
]
