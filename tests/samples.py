"""One use of every public pipe, service and adapter, for ``tests/test_contracts.py``.

This file is about what each of them looks like in a small graph. A sample of a pipe is
a function from a source of numbers to a graph that has the pipe in it; keep it to a few
steps and let it yield at least four items. To add one, write a line:

    it.Batcher: lambda numbers: numbers.batch(4),
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import asyncloader
import asyncloader.adapters as ad
import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader.datapipes.base import DataPipe

COUNT = 24


class Opens:
    """How many iterators of a source are open; copies of a source share it."""

    now = 0


class Numbers(it.IterDataPipe[int]):
    """Yield the numbers below ``count``, and note which iterators are open."""

    edges = ()

    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self.opens = Opens()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.opens.now += 1
        try:
            yield from range(self.count)
        finally:
            self.opens.now -= 1


def double(number: int) -> int:
    return 2 * number


async def double_soon(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def is_odd(number: int) -> bool:
    return number % 2 == 1


def remainder(number: int) -> int:
    return number % 3


def twice(number: int) -> list[int]:
    return [number, number]


def with_key(number: int) -> tuple[int, int]:
    return number, double(number)


def as_it_is(item: Any, device: Any) -> Any:
    return item


class NewFolder:
    """A folder of which no setting of a pipe tells the name."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(dir=_folders().name)

    def path(self, number: int) -> str:
        return f"{self.name}/{number}"


def cached(numbers: Any) -> Any:
    """Return the names of files in a new cache."""
    pairs = numbers.on_disk_cache(NewFolder().path).map(lambda number: (number, str(number)))
    return pairs.end_caching("wt", same_filepath_fn=True).map(os.path.basename)


@functools.cache
def _folders() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="asyncloader-tests-")


def _joined(branches: list[Any]) -> Any:
    first, *others = branches
    return first.zip(*others)


def _few() -> Any:
    return it.IterableWrapper(range(100, 106))


#: A pipe's class, and a graph with it over a pipe of numbers.
ITER_PIPES: dict[type, Callable[[Any], Any]] = {
    it.AsyncMapper: lambda numbers: numbers.async_map(double_soon, concurrency=4),
    it.Batcher: lambda numbers: numbers.batch(4),
    it.Collator: lambda numbers: numbers.batch(4).collate(sum),
    it.Concater: lambda numbers: numbers.concat(_few()),
    it.Cycler: lambda numbers: numbers.cycle(2),
    it.Demultiplexer: lambda numbers: _joined(numbers.demux(2, is_odd)),
    it.EndOnDiskCacheHolder: cached,
    it.Enumerator: lambda numbers: numbers.enumerate(10),
    it.Filter: lambda numbers: numbers.filter(is_odd),
    it.FlatMapper: lambda numbers: numbers.flatmap(twice),
    it.Forker: lambda numbers: _joined(numbers.fork(2)),
    it.Grouper: lambda numbers: numbers.groupby(remainder, group_size=3),
    it.Header: lambda numbers: numbers.header(7),
    it.InBatchShuffler: lambda numbers: numbers.batch(4).in_batch_shuffle(),
    it.IterToMapConverter: lambda numbers: (
        numbers.map(with_key).to_map_datapipe().to_iter_datapipe()
    ),
    it.IterableWrapper: lambda numbers: it.IterableWrapper([*range(COUNT)]),
    it.LengthSetter: lambda numbers: numbers.filter(is_odd).set_length(COUNT // 2),
    it.MapToIterConverter: lambda numbers: it.MapToIterConverter(
        mp.SequenceWrapper(range(COUNT)), [3, 1, 4, 1, 5]
    ),
    it.Mapper: lambda numbers: numbers.map(double).map(double_soon),
    it.Multiplexer: lambda numbers: numbers.mux(_few()),
    it.MultiplexerLongest: lambda numbers: numbers.mux_longest(_few()),
    it.OnDiskCacheHolder: cached,
    it.PinMemory: lambda numbers: it.PinMemory(numbers, pin_memory_fn=as_it_is),
    it.Prefetcher: lambda numbers: numbers.prefetch(3),
    it.Repeater: lambda numbers: numbers.repeat(2),
    it.RoundRobinDemultiplexer: lambda numbers: _joined(numbers.round_robin_demux(3)),
    it.ShardingFilter: lambda numbers: numbers.sharding_filter(),
    it.ShardingRoundRobinDispatcher: lambda numbers: numbers.sharding_round_robin_dispatch(
        it.SHARDING_PRIORITIES.MULTIPROCESSING
    ),
    it.Shuffler: lambda numbers: numbers.shuffle(buffer_size=8),
    it.ThreadMapper: lambda numbers: numbers.thread_map(double),
    it.UnBatcher: lambda numbers: numbers.batch(4).unbatch(),
    it.Zipper: lambda numbers: numbers.zip(_few()),
    it.ZipperLongest: lambda numbers: numbers.zip_longest(_few(), fill_value=0),
}

#: A pipe's class, and a graph with it over a map pipe of numbers.
MAP_PIPES: dict[type, Callable[[Any], Any]] = {
    mp.Batcher: lambda numbers: numbers.batch(4),
    mp.Concater: lambda numbers: numbers.concat(mp.SequenceWrapper("abc")),
    mp.Mapper: lambda numbers: numbers.map(double).map(double_soon),
    mp.SequenceWrapper: lambda numbers: numbers,
    mp.SharedSequence: lambda numbers: mp.SharedSequence(list(numbers)),
    mp.Shuffler: lambda numbers: numbers.shuffle(),
    mp.Zipper: lambda numbers: numbers.zip(mp.SequenceWrapper(range(COUNT))),
}

#: A service's class, and one such that hands out a graph's items as they are, in order.
SERVICES: dict[type, Callable[[], Any]] = {
    asyncloader.InProcessReadingService: lambda: asyncloader.InProcessReadingService(2),
    asyncloader.MultiProcessingReadingService: lambda: asyncloader.MultiProcessingReadingService(1),
    asyncloader.SequentialReadingService: lambda: asyncloader.SequentialReadingService(
        asyncloader.InProcessReadingService(), asyncloader.InProcessReadingService(1)
    ),
}

#: An adapter's class, and one such that neither adds nor takes away items.
ADAPTERS: dict[type, Callable[[], Any]] = {
    ad.CacheTimeout: lambda: ad.CacheTimeout(5),
    ad.FullSync: lambda: ad.FullSync(60),
    ad.InvalidateCache: lambda: ad.InvalidateCache(),
    ad.PinMemory: lambda: ad.PinMemory(),
    ad.PrefetchPolicy: lambda: ad.PrefetchPolicy(4),
    ad.ShardingPolicy: lambda: ad.ShardingPolicy("after_shuffle"),
    ad.Shuffle: lambda: ad.Shuffle(True),
}


def graph_with(pipe_class: type) -> Any:
    """Return a new graph that has a pipe of this class in it."""
    if pipe_class in ITER_PIPES:
        return ITER_PIPES[pipe_class](Numbers())
    return MAP_PIPES[pipe_class](mp.SequenceWrapper(range(COUNT)))


def public_pipes(module: Any) -> list[type]:
    """Return the pipe classes that a module exports, without the bases."""
    return _public(module, DataPipe, {it.IterDataPipe, mp.MapDataPipe})


def public_services() -> list[type]:
    """Return the reading services that the package exports, without the bases."""
    bases = {
        asyncloader.ReadingServiceInterface,
        asyncloader.CheckpointableReadingServiceInterface,
    }
    return _public(asyncloader, asyncloader.ReadingServiceInterface, bases)


def public_adapters() -> list[type]:
    """Return the adapters that the package exports, without the base."""
    return _public(ad, ad.Adapter, {ad.Adapter})


def _public(module: Any, base: type, without: set[Any]) -> list[type]:
    exported = [getattr(module, name) for name in module.__all__]
    classes = [each for each in exported if isinstance(each, type) and issubclass(each, base)]
    return [each for each in classes if each not in without]
