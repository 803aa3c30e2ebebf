"""While a loader is paused, nothing in this process runs ahead of what is waited for."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, InProcessReadingService, IterDataPipe

COUNT = 300

#: An epoch has a group of 64 items ready for its consumer at most, and each pipe one more on their
#: way, however much it may hold. How many a quick loop gets ready in a group's time differs.
FEW = 200
#: What is called in threads is handed out by itself, in a for.
FEW_IN_THREADS = 20
LONG = 30.0


async def double(number: int) -> int:
    return 2 * number


def is_tenth(number: int) -> bool:
    return number % 10 == 9


class Released(IterDataPipe[int]):
    """Yields a number for each that is released, and counts them."""

    edges = ()

    def __init__(self) -> None:
        self.released = asyncio.Semaphore(0)
        self.read = 0

    def release(self, count: int) -> None:
        for _ in range(count):
            self.released.release()

    def __copy__(self) -> Released:
        return self

    def __deepcopy__(self, memo: Any) -> Released:
        return self

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(COUNT):
            await self.released.acquire()
            self.read += 1
            yield number


AHEAD: dict[str, Callable[[Any], Any]] = {
    "prefetch": lambda source: source.prefetch(COUNT),
    "async_map": lambda source: source.async_map(double, concurrency=COUNT),
    "async_map, unordered": lambda source: source.async_map(
        double, concurrency=COUNT, ordered=False
    ),
    "batch, by the clock": lambda source: source.batch(COUNT, max_wait=0.0).flatmap(
        lambda batch: [2 * number for number in batch]
    ),
    "both": lambda source: source.prefetch(3).async_map(double, concurrency=COUNT).prefetch(3),
}
every_way = pytest.mark.parametrize("way", AHEAD)


async def turns(count: int = 5 * COUNT) -> None:
    """Let the loop do all that it can do by itself."""
    for _ in range(count):
        await asyncio.sleep(0)


@every_way
async def test_what_runs_ahead_stops_reading_and_goes_on(way: str) -> None:
    source = Released()
    async with DataLoader2(AHEAD[way](source)) as loader:
        source.release(1)
        items = aiter(loader)
        taken = [await anext(items)]
        loader.pause()
        source.release(COUNT - 1)
        await turns()
        # What was being waited for when the pause began, and not what there is room for.
        assert source.read < FEW
        assert [item async for item in items] == []
        loader.resume()
        taken += [item async for item in items]
    assert sorted(taken) == [n if way == "prefetch" else 2 * n for n in range(COUNT)]


@every_way
async def test_an_item_that_is_waited_for_comes_all_the_same(way: str) -> None:
    source = Released()
    async with DataLoader2(AHEAD[way](source).filter(is_tenth_of[way])) as loader:
        items = aiter(loader)
        waiting = asyncio.create_task(anext(items))
        await turns()
        loader.pause()
        source.release(COUNT)
        async with asyncio.timeout(LONG):
            # The nine before it are read for it, one by one, and dropped.
            assert await waiting in (9, 18)
        loader.resume()
        assert len([item async for item in items]) == COUNT // 10 - 1


is_tenth_of: dict[str, Callable[[int], bool]] = {
    way: is_tenth if way == "prefetch" else lambda number: is_tenth(number // 2) for way in AHEAD
}


class ReleasedInThread(IterDataPipe[int]):
    """Yields a number for each that is released, in whichever thread; says when it was asked."""

    edges = ()

    def __init__(self) -> None:
        self.released = threading.Semaphore(0)
        self.many_were_read = threading.Event()

    def __deepcopy__(self, memo: Any) -> ReleasedInThread:
        return self

    def __iter__(self) -> Iterator[int]:
        for number in range(COUNT):
            assert self.released.acquire(timeout=LONG)
            if number == FEW_IN_THREADS:
                self.many_were_read.set()
            yield number


def cached(source: Any, folder: Path) -> Any:
    """Return names of files that are made in threads."""
    pairs = source.on_disk_cache(lambda number: folder / str(number)).map(named)
    ended = pairs.end_caching("wt", same_filepath_fn=True, concurrency=COUNT)
    return ended.map(os.path.basename)


def named(number: int) -> tuple[int, str]:
    return number, "text"


IN_THREADS: dict[str, Callable[[Any, Path], Any]] = {
    "thread_map": lambda source, _: source.thread_map(str, concurrency=COUNT),
    "thread_map, unordered": lambda source, _: source.thread_map(
        str, concurrency=COUNT, ordered=False
    ),
    "end_caching": cached,
}


@pytest.mark.parametrize("way", IN_THREADS)
def test_what_calls_in_threads_begins_none_until_it_goes_on(way: str, tmp_path: Path) -> None:
    source = ReleasedInThread()
    with DataLoader2(IN_THREADS[way](source, tmp_path)) as loader:
        items = iter(loader)
        source.released.release()
        assert next(items) == "0"
        loader.pause()
        source.released.release(COUNT - 1)
        assert list(items) == []
        assert not source.many_were_read.wait(0.1)
        loader.resume()
        assert sorted(items, key=int) == [str(number) for number in range(1, COUNT)]


def test_a_service_that_prefetches_stops_too() -> None:
    source = ReleasedInThread()
    with DataLoader2(source, reading_service=InProcessReadingService(COUNT)) as loader:
        items = iter(loader)
        source.released.release()
        assert next(items) == 0
        loader.pause()
        source.released.release(COUNT - 1)
        assert list(items) == []
        loader.resume()
        assert list(items) == list(range(1, COUNT))
