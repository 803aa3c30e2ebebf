"""How a loader is doing: its stats, the verdict on them, and its metrics."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any

import numpy
import pytest

from asyncloader import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from asyncloader.adapters import ShardingPolicy
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.watch import watching
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.graph.outline import Node
from asyncloader.loader.stats import LoaderStats, Metric, StageStats
from asyncloader.workers.worker_stats import WorkerStats
from tests.cpu_time import share_of_a_core
from tests.eyes import name_of

FAR = 10**9


def work(rounds: int) -> None:
    """Compute, for as long as that takes on this machine."""
    for _ in range(rounds):
        pass


def light(item: Any) -> Any:
    work(5_000)
    return item


def heavy(item: Any) -> Any:
    work(25_000)
    return item


def weighty(item: Any) -> Any:
    """Work so long that sending an item takes less, also from a process that others hold up."""
    work(500_000)
    return item


def as_array(item: Any) -> Any:
    return numpy.zeros(100_000, dtype=numpy.uint8)


def numbers(count: int = FAR) -> Any:
    return IterableWrapper(range(count), deepcopy=False)


def stages(stats: LoaderStats) -> dict[str, StageStats]:
    return {stage.name: stage for stage in stats.stages}


def counts(stats: LoaderStats) -> dict[str, int | None]:
    return {name: stage.items for name, stage in stages(stats).items()}


@pytest.fixture
def often(monkeypatch):
    """Look a hundred times a second, so that a test need not take long."""
    monkeypatch.setattr(watching.Sampler, "rest_seconds", 0.005)


# Where the time goes --------------------------------------------------------------------

#: What is looked at now and then shows in the end; a busy machine takes its time.
IN_THE_END_SECONDS = 60.0


def blames(name: str, stats: LoaderStats) -> bool:
    """Whether the stats show that this stage takes more time than the light one."""
    seconds = {stage.name: stage.seconds or 0.0 for stage in stats.stages}
    return seconds.get(name, 0.0) > seconds.get("map(light)", 0.0)


def blames_heavy(stats: LoaderStats) -> bool:
    return blames("map(heavy)", stats) and "use workers" in stats.verdict()


def blames_weighty(stats: LoaderStats) -> bool:
    return (
        bool(stats.workers) and blames("map(weighty)", stats) and "add workers" in stats.verdict()
    )


def blames_consumer(stats: LoaderStats) -> bool:
    return stats.seconds > 0.1 and "the consumer is the bottleneck" in stats.verdict()


def test_a_for_shows_which_pipe_takes_the_time(often):
    end = time.monotonic() + IN_THE_END_SECONDS
    with DataLoader2(numbers().map(light).map(heavy).batch(2)) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames_heavy(stats) or time.monotonic() > end:
                break
    assert_heavy_is_to_blame(stats)


def summed(item: Any) -> Any:
    """Compute in one call that holds the GIL, for less than the interpreter's switch interval."""
    return sum(range(20_000))


def blames_summed(stats: LoaderStats) -> bool:
    seconds = {stage.name: stage.seconds for stage in stats.stages}
    return seconds.get("map(summed)", 0.0) > 2 * seconds.get("batch(4)", 0.0)


def test_short_calls_in_the_thread_of_a_prefetch_are_not_taken_for_its_reader(often):
    end = time.monotonic() + IN_THE_END_SECONDS
    with DataLoader2(numbers().map(summed).batch(4).prefetch(3)) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames_summed(stats) or time.monotonic() > end:
                break
    assert blames_summed(stats), stats


class Private(IterDataPipe[int]):
    """A user's pipe with attributes that have names of ours, and are not to be read."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    @property
    def source(self) -> Any:
        raise RuntimeError("not open")

    fn = source

    def __iter__(self) -> Iterator[int]:
        yield from self.numbers


def test_a_users_attribute_that_raises_harms_no_stats(often):
    end = time.monotonic() + IN_THE_END_SECONDS
    with DataLoader2(Private(numbers().map(light)).map(heavy)) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames("map(heavy)", stats) or time.monotonic() > end:
                break
    assert blames("map(heavy)", stats)


async def test_an_async_for_shows_which_pipe_takes_the_time(often):
    end = time.monotonic() + IN_THE_END_SECONDS
    async with DataLoader2(numbers().map(light).map(heavy).batch(2)) as loader:
        async for _ in loader:
            stats = loader.stats()
            if blames_heavy(stats) or time.monotonic() > end:
                break
    assert_heavy_is_to_blame(stats)


class Hashing(IterDataPipe[int]):
    """A user's source, which takes the time, and lets the other threads run."""

    edges = ()

    def __iter__(self) -> Iterator[int]:
        for number in range(FAR):
            yield hashed(number)


class Awaiting(IterDataPipe[int]):
    """A user's async source, which takes the time."""

    edges = ()

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(FAR):
            yield await soon(number)


DATA = bytes(4 << 20)


def hashed(item: Any) -> Any:
    """Compute without the GIL, much longer than handing an item to another thread takes."""
    hashlib.sha256(DATA)
    return item


async def soon(item: Any) -> Any:
    await asyncio.sleep(0.01)
    return item


#: Graphs, and the only stage of them that takes time.
SLOW_STAGES = {
    "a source that is prefetched": (lambda: Hashing().prefetch(4).map(str), "Hashing()"),
    "a source prefetched twice": (
        lambda: Hashing().prefetch(4).map(str).prefetch(2),
        "Hashing()",
    ),
    "a source of calls in threads": (
        lambda: Hashing().thread_map(str, concurrency=2),
        "Hashing()",
    ),
    "a source of calls on a loop": (
        lambda: Hashing().async_map(same, concurrency=2).map(str),
        "Hashing()",
    ),
    "an async source": (lambda: Awaiting(), "Awaiting()"),
    "an async source that is prefetched": (
        lambda: Awaiting().prefetch(4).map(str),
        "Awaiting()",
    ),
    "calls in threads": (
        lambda: numbers().thread_map(hashed, concurrency=2).map(str),
        "thread_map(hashed, concurrency=2)",
    ),
    "calls on a loop": (
        lambda: numbers().async_map(soon, concurrency=2),
        "async_map(soon, concurrency=2)",
    ),
    "calls on a loop that are prefetched": (
        lambda: numbers().async_map(soon, concurrency=2).prefetch(2).map(str),
        "async_map(soon, concurrency=2)",
    ),
    "an async function, called from a thread": (lambda: numbers().map(soon), "map(soon)"),
    "a look-up": (
        lambda: SequenceWrapper(range(FAR)).map(heavy).to_iter_datapipe(),
        "map(heavy)",
    ),
    "what is forked": (lambda: zipped(numbers().map(heavy).fork(2)), "map(heavy)"),
}


async def same(item: Any) -> Any:
    return item


def zipped(branches: Any) -> Any:
    return branches[0].map(str).zip(branches[1])


def blames_most(name: str, stats: LoaderStats) -> bool:
    """Whether the stats show that most of the time of all stages is in this one."""
    whole = sum(stage.seconds for stage in stats.stages)
    found = stages(stats).get(name)
    return found is not None and found.seconds > max(0.2, 0.5 * whole)


@pytest.mark.sweep
@pytest.mark.parametrize("case", SLOW_STAGES)
def test_a_for_shows_who_is_waited_for(often, case):
    graph, name = SLOW_STAGES[case]
    end = time.monotonic() + IN_THE_END_SECONDS
    with DataLoader2(graph()) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames_most(name, stats) or time.monotonic() > end:
                break
    assert blames_most(name, stats), stats


@pytest.mark.sweep
@pytest.mark.parametrize("case", SLOW_STAGES)
async def test_an_async_for_shows_who_is_waited_for(often, case):
    graph, name = SLOW_STAGES[case]
    end = time.monotonic() + IN_THE_END_SECONDS
    async with DataLoader2(graph()) as loader:
        async for _ in loader:
            stats = loader.stats()
            if blames_most(name, stats) or time.monotonic() > end:
                break
    assert blames_most(name, stats), stats


@pytest.mark.parametrize(
    "case", ["a source that is prefetched", "a source of calls in threads", "calls on a loop"]
)
def test_workers_show_who_is_waited_for(case):
    graph, name = SLOW_STAGES[case]
    end = time.monotonic() + IN_THE_END_SECONDS
    service = MultiProcessingReadingService(1)
    with DataLoader2(graph(), [ShardingPolicy()], service) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames_most(name, stats) or time.monotonic() > end:
                break
    assert blames_most(name, stats), stats
    assert stages(stats)[name].where == "workers"


def assert_heavy_is_to_blame(stats: LoaderStats) -> None:
    found = stages(stats)
    assert blames("map(heavy)", stats)
    assert found["map(heavy)"].where == "loader"
    assert 0 < found["map(heavy)"].share <= 1
    assert re.match(
        r"the consumer waits \d+ % of the time; \d+ % of the loader's time is in"
        r" map\(heavy\): use workers",
        stats.verdict(),
    )


def test_workers_tell_which_pipe_takes_their_time():
    end = time.monotonic() + IN_THE_END_SECONDS
    graph = numbers().sharding_filter().map(light).map(weighty)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        for _ in loader:
            stats = loader.stats()
            if blames_weighty(stats) or time.monotonic() > end:
                break
    assert blames("map(weighty)", stats)
    assert stages(stats)["map(weighty)"].where == "workers"
    (worker,) = stats.workers
    assert worker.working > 0
    assert worker.items > 0
    assert worker.rate > 0
    assert "% of a worker's time is in map(weighty): add workers" in stats.verdict()


def test_a_consumer_that_works_is_the_bottleneck(often):
    end = time.monotonic() + IN_THE_END_SECONDS
    with DataLoader2(numbers().map(light)) as loader:
        for _ in loader:
            work(400_000)
            stats = loader.stats()
            if blames_consumer(stats) or time.monotonic() > end:
                break
    assert stats.waited < stats.seconds
    assert blames_consumer(stats)


async def test_a_consumer_that_is_away_is_the_bottleneck():
    end = time.monotonic() + IN_THE_END_SECONDS
    async with DataLoader2(numbers()) as loader:
        async for _ in loader:
            await asyncio.sleep(0.1)
            stats = loader.stats()
            if blames_consumer(stats) or time.monotonic() > end:
                break
    assert stats.waited < stats.seconds
    assert blames_consumer(stats)


async def test_calls_under_way_are_counted():
    begun, go_on = asyncio.Event(), asyncio.Event()
    count = 0

    async def fetch(item: int) -> int:
        nonlocal count
        count += 1
        if count == 4:
            begun.set()
        await go_on.wait()
        return item

    async with DataLoader2(numbers(9).async_map(fetch, concurrency=4)) as loader:
        waits = asyncio.create_task(anext(aiter(loader)))
        await begun.wait()
        stage = stages(loader.stats())["async_map(fetch, concurrency=4)"]
        assert (stage.held, stage.room) == (4, 4)
        go_on.set()
        assert await waits == 0


# What is counted ------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_items_are_counted_pipe_by_pipe(num_workers):
    graph = numbers(10).shuffle().sharding_filter().map(light).filter(bool).batch(2)
    service = MultiProcessingReadingService(num_workers)
    with DataLoader2(graph, reading_service=service) as loader:
        batches = len(list(loader))
        found = counts(loader.stats())
        again = len(list(loader))
        assert counts(loader.stats())["map(light)"] == 10
    assert found["map(light)"] == found["sharding_filter()"] == 10
    assert found["filter(bool)"] == 9
    assert found["batch(2)"] == batches == again
    assert found["shuffle()"] == 10 * max(1, num_workers)


class Own(IterDataPipe[Any]):
    """A user's pipe, which counts nothing."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


#: What reads a user's pipe of 10 items, and how many items of it that takes.
READERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a loader": (lambda own: own, 10),
    "map": (lambda own: own.map(str).filter(bool), 10),
    "filter": (lambda own: own.filter(bool), 10),
    "batch": (lambda own: own.batch(4).shuffle(), 10),
    "shuffle": (lambda own: own.shuffle(), 10),
    "sharding_filter": (lambda own: own.sharding_filter(), 10),
    "prefetch": (lambda own: own.prefetch(2), 10),
    "async_map": (lambda own: own.async_map(same), 10),
    "thread_map": (lambda own: own.thread_map(str), 10),
    "pin_memory": (lambda own: own.pin_memory(pin_memory_fn=lambda item, _: item), 10),
    "enumerate": (lambda own: own.enumerate(), 10),
    "header": (lambda own: own.header(3), 3),
    "cycle": (lambda own: own.cycle(2), 20),
    "max_token_bucketize": (lambda own: own.max_token_bucketize(9, len_fn=bool), 10),
    "fork": (lambda own: zipped(own.fork(2)), 10),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_users_pipe_is_counted_by_its_reader(reader):
    graph, items = READERS[reader]
    with DataLoader2(graph(Own(numbers(10)))) as loader:
        for _ in loader:
            pass
        assert counts(loader.stats())["Own()"] == items


def test_what_nobody_counts_is_not_known():
    with DataLoader2(Own(Own(numbers(10)))) as loader:
        list(loader)
        stats = loader.stats()
    assert [stage.items for stage in stats.stages] == [None, None, 10]
    _, _, _, *rows = str(stats).splitlines()
    assert [row.split()[2] for row in rows] == ["?", "?", "10"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_that_are_tolerated_are_counted(num_workers):
    graph = IterableWrapper(["1", "two", "3"]).sharding_filter().map(int, on_error="skip")
    service = MultiProcessingReadingService(num_workers)
    with DataLoader2(graph, reading_service=service) as loader:
        assert list(loader) == [1, 3]
        stats = loader.stats()
    assert stats.errors == 1
    (stage,) = [stage for stage in stats.stages if stage.errors]
    assert stage.name.startswith("map(int")
    assert stage.items == 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_tell_their_names_and_their_shared_memory():
    graph = numbers(4).sharding_filter().map(as_array)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        kept = list(loader)
        (worker,) = loader.stats().workers
        assert name_of(worker.pid) == "asyncloader w0"
    assert len(kept) == worker.items == 4
    assert worker.name == "worker 0"
    assert worker.ready == 0
    assert 0 < worker.shared_used <= worker.shared_bytes


def test_the_dispatching_process_is_among_the_workers():
    group = SHARDING_PRIORITIES.MULTIPROCESSING
    graph = numbers(10).map(light).sharding_round_robin_dispatch(group).map(heavy)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert len(list(loader)) == 10
        stats = loader.stats()
    assert [worker.name for worker in stats.workers] == ["worker 0", "the dispatching process"]
    assert stages(stats)["map(light)"].where == "dispatcher"
    assert stages(stats)["map(light)"].items == 10
    assert stages(stats)["map(heavy)"].where == "workers"


def test_stats_can_be_asked_for_before_anything_and_after_everything():
    loader = DataLoader2(numbers(3))
    assert repr(loader.stats()) == "no epoch was begun yet"
    assert loader.stats().verdict() == "no epoch was begun yet"
    with loader:
        assert list(loader) == [0, 1, 2]
    stats = loader.stats()
    assert (stats.epochs, stats.items, stats.restarts) == (1, 3, 0)
    assert stats.seconds == loader.stats().seconds


async def test_an_item_that_was_prefetched_is_held():
    async with DataLoader2(numbers(), None, InProcessReadingService(prefetch_cnt=3)) as loader:
        items = aiter(loader)
        await anext(items)
        stage = loader.stats().stages[-1]
        assert stage.name == "prefetch(3)"
        assert stage.room == 3


def test_printed_it_is_a_table():
    graph = IterableWrapper(range(4)).sharding_filter().map(light)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        list(loader)
        headline, _, *rows = str(loader.stats()).splitlines()
    assert headline.startswith("epoch 1: 4 items in ")
    assert rows[0].split()[:4] == ["stage", "runs", "in", "items"]
    assert rows[3].split()[:3] == ["map(light)", "workers", "4"]
    assert rows[5].split()[:3] == ["process", "pid", "items"]
    assert rows[6].split()[:2] == ["worker", "0"]


# What looking costs ---------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_an_epoch_that_nobody_reads_uses_no_cpu():
    async with DataLoader2(numbers().map(light)) as loader:
        items = aiter(loader)
        await anext(items)
        await asyncio.to_thread(wait_until_asleep)
        assert await asyncio.to_thread(share_of_a_core, enough=0.1) < 0.1


class Silent(IterDataPipe[int]):
    """A source that has an item, and no other for a long time."""

    edges = ()

    async def __aiter__(self) -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("graph", [Silent(), Silent().map(str)])
async def test_a_consumer_that_waits_for_ever_uses_no_cpu(graph):
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        await anext(items)
        waits = asyncio.create_task(anext(items))
        assert await asyncio.to_thread(share_of_a_core, enough=0.01) < 0.01
        waits.cancel()


def test_the_callers_own_thread_is_left_alone_when_it_does_something_else(often):
    with DataLoader2(numbers()) as loader:
        items = iter(loader)
        while not any("sampler" in each.name for each in threading.enumerate()):
            next(items)
        wait_until_asleep()
        next(items)


def test_a_consumer_that_is_in_its_first_item_for_long_is_seen_once_somebody_asks(often):
    release, asked = threading.Event(), threading.Event()

    def slow(number: int) -> int:
        # Not an `Event.wait` alone, in which no frame of the pipe is.
        while not asked.is_set():
            release.wait(0.001)
        return number

    with DataLoader2(IterableWrapper(range(3)).map(slow)) as loader:
        seen: list[int] = []
        consumer = threading.Thread(target=lambda: seen.extend(loader))
        consumer.start()
        end = time.monotonic() + IN_THE_END_SECONDS
        while not any(stage.seconds for stage in loader.stats().stages):
            assert time.monotonic() < end
            release.wait(0.01)
        asked.set()
        consumer.join()
    assert seen == [0, 1, 2]


def wait_until_asleep() -> None:
    pause = threading.Event()
    for _ in range(2000):
        if watching.SAMPLER.is_asleep:
            return
        pause.wait(0.01)
    raise AssertionError("the sampler goes on looking at a thread that is about something else")


def test_looking_draws_no_random_numbers_of_the_users(often):
    before = random.getstate()
    with DataLoader2(numbers().map(light)) as loader:
        for _ in loader:
            if any(stage.seconds for stage in loader.stats().stages):
                break
    assert random.getstate() == before


def test_the_thread_that_looks_ends_with_what_it_looks_at(often):
    with DataLoader2(numbers().map(light)) as loader:
        for _ in loader:
            looking = [each for each in threading.enumerate() if "sampler" in each.name]
            if looking:
                break
    for thread in looking:
        # Closing waits for it, but no longer than a second.
        thread.join(IN_THE_END_SECONDS)
        assert not thread.is_alive()


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


def test_what_is_not_repeated_takes_no_stages_of_its_own(often):
    graph = IterableWrapper(range(100_000)).map(abs, repeatable=False).batch(500)
    with DataLoader2(graph) as loader:
        assert len(list(loader)) == 200
        stats = loader.stats()
    assert [(stage.name, stage.items) for stage in stats.stages] == [
        ("IterableWrapper()", 100_000),
        ("map(abs, repeatable=False)", 100_000),
        ("batch(500)", 200),
    ]


def test_the_processes_of_one_node_stand_together():
    workers = tuple(
        WorkerStats(name=f"worker {number}", pid=number, node=node)
        for number, node in enumerate(["10.0.0.2", "10.0.0.1", "10.0.0.2"])
    )
    _, _, header, *rows = str(LoaderStats(1, 100, 0, 10.0, 0.0, (), workers)).splitlines()
    assert header.split()[:3] == ["process", "node", "pid"]
    assert [row.split()[:3] for row in rows] == [
        ["worker", "1", "10.0.0.1"],
        ["worker", "0", "10.0.0.2"],
        ["worker", "2", "10.0.0.2"],
    ]


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
        "the consumer waits 90 % of the time; async_map(fetch) has 8 of 8 calls in progress:"
        " raise its concurrency",
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
        "the consumer waits 90 % of the time; the workers are idle 80 % of their time, because"
        " their prefetch is full: look at what runs on the event loop between the workers and the"
        " consumer",
    ),
    "a stage behind the workers": (
        verdict(9.0, DECODE, stage("pin_memory()", 0.9), workers=(worker(2),)),
        "the consumer waits 90 % of the time; the workers are idle 80 % of their time, because"
        " their prefetch is full; 90 % of the loader's time is in pin_memory(): do it in the"
        " workers if it can be copied there",
    ),
    "workers that are threads": (
        verdict(9.0, DECODE, workers=(worker(10, pid=1), worker(10, pid=1))),
        "the consumer waits 90 % of the time; 81 % of a worker's time is in map(decode): use"
        " MultiProcessingReadingService if it holds the GIL, otherwise add workers while there are"
        " cores",
    ),
    "sending": (
        verdict(9.0, DECODE, workers=(worker(10, handing=6.0),)),
        "the consumer waits 90 % of the time; 60 % of a worker's time goes into sending"
        " items: send less data, or give a larger prefetch_bytes if it waits for shared memory",
    ),
    "importing": (
        verdict(9.0, DECODE, workers=(worker(10, importing=7.0),)),
        "the consumer waits 90 % of the time; 70 % of a worker's time goes into importing modules,"
        " which each does once: look again at a longer epoch, or at the next one",
    ),
    "the dispatching process": (
        verdict(9.0, DEALT, stage("map(parse)", 0.8, "dispatcher"), workers=(worker(10), DEALER)),
        "the consumer waits 90 % of the time; the workers wait 70 % of their time for the"
        " dispatching process; 80 % of the dispatching process's time is in map(parse): do it in"
        " the workers, after the dispatch, unless it must run only once",
    ),
    "nothing seen": (
        verdict(9.0),
        "the consumer waits 90 % of the time; no sample of the pipes' work was taken yet",
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


LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name and first label, as a reader of the format finds them."""
    found = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, f"not in Prometheus's format: {line!r}"
        name, labels, value = match.groups()
        first = LABEL.findall(labels or "")[:1]
        found[name, first[0][1] if first else ""] = float(value)
    return found


def test_a_scrape_says_what_the_stats_say():
    graph = IterableWrapper(range(10)).sharding_filter().map(str).batch(2)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        list(loader)

        class Metrics(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                lines = (f"{metric}\n" for metric in loader.stats().as_metrics())
                self.wfile.writelines(map(str.encode, lines))

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                address = f"http://127.0.0.1:{server.server_port}/metrics"
                with urllib.request.urlopen(address, timeout=30) as answer:
                    found = parsed(answer.read().decode())
            finally:
                server.shutdown()
                thread.join()
        stats = loader.stats()
    assert found["asyncloader_items_total", ""] == stats.items == 5
    assert found["asyncloader_stage_items_total", "map(str)"] == 10
    assert found["asyncloader_worker_items_total", "worker 0"] == 5
    assert found["asyncloader_epoch_seconds", ""] == stats.seconds
    names = {name for name, _ in found}
    assert {"asyncloader_consumer_waited_seconds_total", "asyncloader_restarts_total"} <= names


def test_a_label_may_hold_anything():
    metric = Metric("asyncloader_stage_errors_total", {"stage": 'map("a\\b\n")'}, 1)
    assert str(metric) == 'asyncloader_stage_errors_total{stage="map(\\"a\\\\b\\n\\")"} 1'
    assert parsed(str(metric))


def test_the_numbers_of_one_name_come_together():
    with DataLoader2(IterableWrapper(range(3)).map(str).map(len)) as loader:
        list(loader)
        names = [metric.name for metric in loader.stats().as_metrics()]
    assert names.count("asyncloader_stage_seconds_total") == 3
    assert [name for name, _ in groupby(names)] == list(dict.fromkeys(names))


# A part of an epoch ---------------------------------------------------------------------


def of_decode(items: int | None, seconds: float) -> StageStats:
    return stage("map(decode)", seconds / 10, "workers", items=items)


def of_worker(items: int, working: float, waiting: float, pid: int = 1) -> WorkerStats:
    return WorkerStats(items, working, 0.0, waiting, name="worker 0", pid=pid, ready=items)


def of_epoch(epoch: int, items: int, seconds: float, *parts: Any) -> LoaderStats:
    stages = tuple(part for part in parts if isinstance(part, StageStats))
    workers = tuple(part for part in parts if isinstance(part, WorkerStats))
    return LoaderStats(epoch, items, 0, seconds, seconds / 2, stages, workers)


BEFORE = of_epoch(1, 100, 10.0, of_decode(200, 2.0), of_worker(100, 6.0, 4.0))
AFTER = of_epoch(1, 160, 14.0, of_decode(300, 4.0), of_worker(150, 9.0, 5.0))


def test_the_stats_since_others_are_those_of_the_time_between():
    since = AFTER.since(BEFORE)
    assert (since.items, since.seconds, since.waited, since.rate) == (60, 4.0, 2.0, 15.0)
    (decode,), (process,) = since.stages, since.workers
    assert (decode.items, decode.rate, decode.seconds) == (100, 25.0, 2.0)
    assert decode.share == 2.0 / 4.0
    assert (process.items, process.working, process.waiting) == (50, 3.0, 1.0)
    assert process.ready == 150


def test_an_epoch_that_began_since_then_is_told_whole():
    later = of_epoch(2, 7, 1.0)
    assert later.since(AFTER) == later


def test_a_process_that_was_replaced_since_then_begins_again():
    replaced = of_epoch(1, 160, 14.0, of_decode(120, 1.0), of_worker(20, 1.0, 1.0, pid=2))
    since = replaced.since(BEFORE)
    assert since.workers == replaced.workers
    assert since.stages[0].items == since.stages[0].seconds == 0


def test_a_stage_that_nobody_counts_stays_uncounted():
    uncounted = of_epoch(1, 160, 14.0, of_decode(None, 4.0))
    assert uncounted.since(BEFORE).stages[0].items is None


def test_the_bottleneck_is_the_pipe_that_the_verdict_blames():
    assert LoaderStats(1, 100, 0, 10.0, 6.2, (SOURCE, DECODE), (worker(9),)).bottleneck() is DECODE
    fast = LoaderStats(1, 100, 0, 10.0, 0.5, (SOURCE, DECODE), (worker(1),))
    assert fast.bottleneck() is None
    assert fast.is_fast_enough()
    assert not LoaderStats(0, 0).is_fast_enough()


def test_a_picture_shows_who_waits_for_the_dispatching_process():
    outline = (Node("map(str)", (1,), "workers"), Node("dispatch()", (), "dispatcher"))
    stages = (replace(DECODE, number=0), replace(SOURCE, number=1, where="dispatcher"), DEALT)
    told = LoaderStats(1, 100, 0, 10.0, 9.0, stages, (worker(9, ready=7), DEALER), outline=outline)
    labels = re.findall(r'<text class="beside".*?>(.*?)</text>', told._repr_html_())
    assert labels == ["waited for 70 %", "10/s · 7 ready"]


def test_a_notebook_shows_a_loader_and_its_stats():
    graph = numbers(2000).sharding_filter().map(light).batch(4)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert "no epoch was begun yet" in loader._repr_html_()
        list(loader)
        stats = loader.stats()
        html = stats._repr_html_()
    assert re.findall(r'<th scope="row">(.*?)</th>', html) == ["worker 0", "worker 1"]
    assert [node.label for node in stats.outline] == ["workers"] * 4
    assert html.count('<g class="box green') == 4
    assert ">your loop</text>" in html
    assert " ready</text>" in html
    assert "prefers-color-scheme: dark" in html
    assert 'style="' not in html
