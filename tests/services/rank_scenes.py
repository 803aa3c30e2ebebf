"""What is played on every rank for ``tests/services/test_distributed.py``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    IterDataPipe,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.adapters import FullSync
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import LoaderError
from tests.leaks import leaves_nothing
from tests.processes.ranks import scene

COUNT = 24
TIMEOUT = 30.0


def rank() -> int:
    return dist.get_rank()


def shuffled() -> Any:
    return IterableWrapper(range(COUNT)).shuffle().sharding_filter()


def on_this_rank(*counts: int) -> Any:
    """A source with another number of items on each rank, which nothing shards."""
    return IterableWrapper(range(counts[rank()])).sharding_filter(3)


def loader_of(graph: Any, workers: int = 0, timeout: float = TIMEOUT) -> DataLoader2[Any]:
    service: ReadingServiceInterface = DistributedReadingService(timeout)
    if workers:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers))
    return DataLoader2(graph, reading_service=service)


def double(item: int) -> int:
    return 2 * item


async def collected(loader: Any) -> tuple[list[Any], str]:
    """Return the items up to the end or an error, and the error in words."""
    items: list[Any] = []
    try:
        async for item in loader:
            items.append(item)  # noqa: PERF401 - those before an error count
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return items, f"{type(error).__name__}: {error}"
    return items, ""


# Shares and seeds -----------------------------------------------------------------------


async def _seeded(workers: int) -> Any:
    async with loader_of(shuffled(), workers) as loader:
        loader.seed(5)
        return [[item async for item in loader] for _ in range(2)], len(loader)


@scene
async def shares_of_a_seed() -> Any:
    return await _seeded(0)


@scene
async def shares_of_a_seed_with_workers() -> Any:
    return await _seeded(2)


@scene
def shares_by_for() -> Any:
    with loader_of(shuffled()) as loader:
        loader.seed(5)
        by_for = list(loader)
        loader.seed(5)
        by_async = asyncio.run(collected(loader))[0]
        loader.seed(5)
        return by_for, by_async, list(loader)


@scene
async def unseeded() -> Any:
    torch.manual_seed(rank())
    random.seed(rank())
    before = random.getstate()
    async with loader_of(shuffled()) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    assert random.getstate() == before
    # Two seeds were drawn, as by any loader, and nothing else.
    drawn = torch.empty((), dtype=torch.int64).random_().item()
    torch.manual_seed(rank())
    torch.empty(2, dtype=torch.int64).random_()
    assert torch.empty((), dtype=torch.int64).random_().item() == drawn
    return epochs


@scene
async def seeded_on_rank_0() -> Any:
    async with loader_of(shuffled()) as loader:
        if rank() == 0:
            loader.seed(5)
        return await collected(loader)


@scene
async def seeded_differently() -> Any:
    async with loader_of(shuffled()) as loader:
        loader.seed(1 if rank() == 1 else 0)
        began = time.monotonic()
        failed = await collected(loader)
        assert time.monotonic() - began < TIMEOUT / 2
        loader.seed(2)
        return failed, await collected(loader)


def draw(_: Any) -> tuple[int, float]:
    return os.getpid(), random.random()


@scene
async def randomness_of_workers() -> Any:
    async with loader_of(shuffled().map(draw), 2) as loader:
        loader.seed(5)
        return [item async for item in loader]


@scene
async def shares_resumed_in_the_middle() -> Any:
    begun = []
    async with loader_of(shuffled().map(double).fullsync(TIMEOUT)) as loader:
        loader.seed(5)
        async for item in loader:
            begun.append(item)
            if len(begun) == 3:
                break
        state = loader.state_dict()
    async with loader_of(shuffled().map(double).fullsync(TIMEOUT)) as loader:
        loader.load_state_dict(state)
        return begun, *[(await collected(loader))[0] for _ in range(2)]


@scene
async def shares_of_torch_pipes() -> Any:
    graph = torch_iter.IterableWrapper(range(COUNT)).shuffle().sharding_filter()
    async with loader_of(graph) as loader:
        return [item async for item in loader]


@scene
async def shares_by_forked_workers() -> Any:
    service = SequentialReadingService(
        DistributedReadingService(TIMEOUT), MultiProcessingReadingService(2, "fork")
    )
    async with DataLoader2(shuffled(), reading_service=service) as loader:
        loader.seed(5)
        return [[item async for item in loader] for _ in range(2)], len(loader)


# What must be the same ------------------------------------------------------------------


def half(item: int) -> float:
    return item / 2


@scene
async def another_graph_on_rank_1() -> Any:
    began = time.monotonic()
    loader = loader_of(shuffled().map(half if rank() == 1 else double))
    failed = await collected(loader)
    await loader.aclose()
    return failed, time.monotonic() - began < TIMEOUT / 2


@scene
async def other_workers_on_the_last_rank() -> Any:
    async def start(workers: int) -> Any:
        loader = loader_of(shuffled(), workers)
        try:
            return await collected(loader)
        finally:
            await loader.aclose()

    return await start(2 if rank() == dist.get_world_size() - 1 else 1)


# Equal counts ---------------------------------------------------------------------------


@scene
async def uneven() -> Any:
    found = []
    for workers in (0, 2):
        for counts in ((7, 4, 5), (0, 5, 5), (5, 0, 5), (300, 200, 1000)):
            async with loader_of(on_this_rank(*counts), workers) as loader:
                found.append([len((await collected(loader))[0]) for _ in range(2)])
    return found


@scene
def uneven_by_for() -> Any:
    with loader_of(on_this_rank(7, 4, 5)) as loader:
        return list(loader), list(loader)


@scene
async def uneven_without_a_service() -> Any:
    graph = IterableWrapper(range((7, 4, 5)[rank()]))
    async with DataLoader2(graph, FullSync(TIMEOUT)) as loader:
        by_loader = [(await collected(loader))[0] for _ in range(2)]
    pipe = graph.fullsync(TIMEOUT)
    return *by_loader, (await collected(pipe))[0]


@scene
def uneven_by_itself() -> Any:
    with leaves_nothing():
        return list(IterableWrapper(range((7, 4, 5)[rank()])).fullsync(TIMEOUT))


@scene
async def two_of_them() -> Any:
    left, right = on_this_rank(9, 8, 7).fullsync(TIMEOUT), on_this_rank(5, 6, 7).fullsync(TIMEOUT)
    async with loader_of(left.map(double).zip(right)) as loader:
        return [(await collected(loader))[0] for _ in range(2)]


# Errors ---------------------------------------------------------------------------------


class Failing(IterDataPipe[int]):
    """Fail at item 3 on rank 1, in the first epoch."""

    edges = ()

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(6):
            if number == 3 and rank() == 1 and self.passes == 1:
                raise LookupError("no item 3")
            yield number


@scene
async def failing_on_rank_1() -> Any:
    async with loader_of(Failing().sharding_filter(3)) as loader:
        return [await collected(loader) for _ in range(2)]


@scene
async def leaving_at_the_same_item() -> Any:
    found = []
    async with loader_of(shuffled()) as loader:
        for _ in range(5):
            async for _ in loader:
                break
        loader.seed(5)
        found.append(await collected(loader))
    return found


@scene
async def leaving_earlier_on_rank_0() -> Any:
    async with loader_of(on_this_rank(9000, 9000, 9000)) as loader:
        items = aiter(loader)
        await anext(items)
        if rank() != 0:
            # They come to where rank 0 has gone on.
            left = await collected(items)
            return left[1], await collected(loader)
        return "", await collected(loader)


class Slow(IterDataPipe[int]):
    """Keep the others waiting on rank 1."""

    edges = ()

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[int]:
        yield 0
        if rank() == 1:
            time.sleep(self.seconds)
        yield 1


@scene
async def waiting_for_rank_1() -> Any:
    gaps = [0.0]

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = asyncio.create_task(tick())
    async with loader_of(Slow(1.0).sharding_filter(3)) as loader:
        items = await collected(loader)
    ticking.cancel()
    return items, max(gaps)


@scene
async def waiting_too_long_for_rank_1() -> Any:
    loader = loader_of(Slow(3.5).sharding_filter(3), timeout=1.5)
    began = time.monotonic()
    found = await collected(loader)
    await loader.aclose()
    return found, time.monotonic() - began


# What services do -----------------------------------------------------------------------


class Telling(ReadingServiceInterface):
    """Tell every Told of the graph which epoch it is, by a reset."""

    epoch = 0

    async def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.epoch += 1
        epoch = self.epoch

        async def reset(datapipe: Any) -> Any:
            from asyncloader.graph import breadth_first

            datapipe = await iter_reset_fn(datapipe)
            for pipe in breadth_first(datapipe):
                if isinstance(pipe, Told):
                    pipe.epoch = epoch
            return datapipe

        return reset


class Told(IterDataPipe[Any]):
    """Yield each item with the epoch that this pipe was told, and its process."""

    def __init__(self, source: Any, replicable: bool) -> None:
        self.source = source
        self.replicable = replicable
        self.epoch = 0

    def is_replicable(self) -> bool:
        return self.replicable

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, self.epoch, os.getpid()


@scene
async def resets_everywhere() -> Any:
    graph = Told(Told(shuffled(), True), False)
    service = SequentialReadingService(
        DistributedReadingService(TIMEOUT), Telling(), MultiProcessingReadingService(2)
    )
    async with DataLoader2(graph, reading_service=service) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    return os.getpid(), epochs


# Leaving nothing ------------------------------------------------------------------------


@scene
async def ten_epochs_leave_nothing() -> Any:
    async with loader_of(shuffled(), 2) as loader:
        await collected(loader)  # the template process stays
    with leaves_nothing():
        async with loader_of(shuffled()) as loader:
            for _ in range(5):
                assert len((await collected(loader))[0]) == COUNT // dist.get_world_size()
                async for _ in loader:
                    break
        async with loader_of(shuffled(), 2) as loader:
            for _ in range(5):
                await collected(loader)
    return threading.active_count()


@scene
async def closing_in_the_middle() -> Any:
    with leaves_nothing():
        began = time.monotonic()
        async with loader_of(on_this_rank(9000, 9000, 9000)) as loader:
            async for _ in loader:
                break
        return time.monotonic() - began


@scene
async def closing_while_others_are_silent() -> Any:
    loader = loader_of(Slow(2.6).sharding_filter(3))
    items = aiter(loader)
    await anext(items)
    if rank() == 1:
        # It comes out of its source when the others are gone.
        return (await collected(items))[1], 0
    asked = asyncio.create_task(anext(items))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await loader.aclose()
    await asyncio.wait([asked])
    said = [str(each.message) for each in caught if each.category is ResourceWarning]
    return said, time.monotonic() - began


@scene
async def rank_1_is_killed() -> Any:
    loader = loader_of(on_this_rank(90_000, 90_000, 90_000))
    items = aiter(loader)
    await anext(items)
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    _, error = await collected(items)
    again = ""
    try:
        await anext(aiter(loader))
    except LoaderError as second:
        again = str(second)
    await loader.aclose()
    return error, again, time.monotonic() - began
