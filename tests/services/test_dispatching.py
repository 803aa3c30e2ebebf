"""One process deals the items of what must run once to all the workers."""

import asyncio
import os
import random
import signal

import pytest

from asyncloader import (
    DataLoader2,
    MultiProcessingReadingService,
    ResourceExhausted,
    WorkerDied,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from tests.cpu_time import share_of_a_core
from tests.leaks import leaves_nothing

METHODS = [None, "fork", "spawn", "forkserver"]


def dealt(source: IterDataPipe) -> IterDataPipe:
    return source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def numbers(count: int = 300) -> IterDataPipe[int]:
    return dealt(IterableWrapper(range(count)).shuffle().map(lambda x: x))


def increment(number: int) -> int:
    return number + 1


def with_pid(item):
    return item, os.getpid()


async def epochs(graph, workers: int, count: int = 2, **settings) -> list[list]:
    service = MultiProcessingReadingService(workers, **settings)
    async with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(5)
        return [[item async for item in loader] for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_the_order_is_that_of_one_process(workers):
    graph = numbers().map(increment)
    assert await epochs(graph, workers) == await epochs(graph, 0)


async def test_the_dealing_runs_once_and_the_rest_in_every_worker():
    graph = dealt(IterableWrapper(range(40)).map(with_pid)).map(with_pid)
    (items,) = await epochs(graph, 2, count=1)
    assert [item for ((item, _), _) in items] == list(range(40))
    dealers = {pid for ((_, pid), _) in items}
    workers = {pid for (_, pid) in items}
    assert (len(dealers), len(workers)) == (1, 2)
    assert not (dealers | {os.getpid()}) & workers


async def test_a_graph_that_ends_in_dealing_works():
    assert await epochs(numbers(), 2) == await epochs(numbers(), 0)


@pytest.mark.parametrize("join", [IterDataPipe.zip, IterDataPipe.concat])
async def test_what_one_pipe_reads_twice_is_dealt_after_it(join):
    pipe = numbers(20)
    assert await epochs(join(pipe, pipe), 1) == await epochs(join(pipe, pipe), 0)


async def test_two_dispatch_pipes_over_one_source_are_dealt_together():
    first, second = IterableWrapper(range(60)).fork(2)
    graph = dealt(first).zip(dealt(second.map(increment))).map(with_pid)
    (items,) = await epochs(graph, 2, count=1)
    assert [item for item, _ in items] == [(n, n + 1) for n in range(60)]


async def test_a_filter_behind_the_dealing_lets_everything_pass():
    graph = numbers().sharding_filter().map(increment)
    (items,) = await epochs(graph, 2, count=1)
    assert sorted(items) == list(range(1, 301))


def test_the_length_counts_what_each_worker_is_dealt():
    graph = dealt(IterableWrapper(range(10))).batch(3)
    service = MultiProcessingReadingService(2)
    with DataLoader2(graph, reading_service=service) as loader:
        assert len(loader) == 4  # two batches of 5 items in each worker
        assert len(list(loader)) == 4


@pytest.mark.parametrize("dropped", [0, 1])
async def test_a_worker_that_drops_all_it_is_dealt_does_not_stop_the_others(dropped):
    graph = dealt(IterableWrapper(range(4000))).filter(lambda n: n % 2 != dropped)
    (items,) = await epochs(graph, 2, count=1)
    assert items == [n for n in range(4000) if n % 2 != dropped]


async def test_dropping_beyond_the_byte_budget_names_the_pipe_that_drops():
    graph = dealt(IterableWrapper([bytes(1000)] * 4000).enumerate())
    graph = graph.filter(lambda pair: pair[0] % 2 == 1)
    with pytest.raises(ResourceExhausted, match=r"filter\("):
        await epochs(graph, 2, count=1, prefetch_bytes=100_000)


def fails_at_150(item):
    if item == 150:
        raise LookupError("no such item", item)
    return item


async def test_an_error_of_the_dealing_comes_in_its_place_and_says_where():
    graph = dealt(IterableWrapper(range(300)).map(fails_at_150)).map(increment)
    service = MultiProcessingReadingService(2)
    async with DataLoader2(graph, reading_service=service) as loader:
        for _ in range(2):
            items = []
            with pytest.raises(LookupError) as caught:
                await _append_all(items, loader)
            assert items == list(range(1, 151))
            assert caught.value.args == ("no such item", 150)
            notes = "\n".join(caught.value.__notes__)
            assert "raised in map(fails_at_150)" in notes
            assert "in the dispatching process" in notes
            assert "in fails_at_150" in notes


async def _append_all(items, loader):
    async for item in loader:
        items.append(item)


def dies_at_150(item):
    if item == 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("where", ["dispatcher", "worker"])
async def test_a_death_is_an_error_of_the_epoch_and_the_next_starts_anew(where):
    if where == "dispatcher":
        graph = dealt(IterableWrapper(range(300)).map(dies_at_150)).map(increment)
    else:
        graph = numbers().map(dies_at_150)
    service = MultiProcessingReadingService(2)
    async with DataLoader2(graph, reading_service=service) as loader:
        for _ in range(2):
            with pytest.raises(WorkerDied, match="SIGKILL") as caught:
                await _append_all([], loader)
            assert caught.value.signal == signal.SIGKILL
            assert caught.value.pid is not None
            assert (caught.value.worker is None) == (where == "dispatcher")


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
async def test_iterating_again_at_any_moment_never_hangs(method):
    draw = random.Random(20)
    service = MultiProcessingReadingService(2, method)
    async with asyncio.timeout(100), DataLoader2(numbers(), reading_service=service) as loader:
        for _ in range(100):
            stop = draw.randrange(1, 100)
            loader.limit(stop)
            assert len([item async for item in loader]) == stop
        loader.limit(None)
        assert sorted([item async for item in loader]) == list(range(300))


async def test_nothing_is_left_behind():
    # The template process stays for the next loader.
    await epochs(numbers(), 2)
    with leaves_nothing():
        await epochs(numbers(), 2)


def test_an_idle_or_paused_dispatcher_uses_no_cpu():
    service = MultiProcessingReadingService(2)
    with DataLoader2(numbers(100_000).map(increment), reading_service=service) as loader:
        iterator = iter(loader)
        next(iterator)
        assert share_of_a_core(enough=0.01) < 0.01, "idle"
        iterator.pause()
        assert share_of_a_core(enough=0.01) < 0.01, "paused"
        iterator.resume()
        assert next(iterator) is not None
