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
from functools import partial
from pathlib import Path
from typing import Any

import asyncloader
import asyncloader.adapters as ad
import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader.datapipes.base import DataPipe
from tests import sample_files as files

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


def itself(number: int) -> int:
    return number


def nested(number: int) -> tuple[int, tuple[int, int]]:
    return number, with_key(number)


def as_dict(number: int) -> dict[str, int]:
    return {"number": number, "double": double(number)}


def as_text(number: int) -> str:
    return str(number) * (number % 6 + 1)


def backwards(numbers: list[int]) -> list[int]:
    return numbers[::-1]


def sum_and_length(numbers: list[int]) -> list[int]:
    return [sum(numbers), len(numbers)]


def no_url(number: int) -> str:
    return f"none://{number}"


def answer_none(error: Exception, url: str) -> tuple[str, None]:
    return url, None


def store_of_names() -> Any:
    from obstore.store import MemoryStore

    store = MemoryStore()
    for number in range(COUNT):
        store.put(str(number), b"content of %d" % number)
    return store


def as_it_is(item: Any, device: Any) -> Any:
    return item


def to_save(folder: Path, number: int) -> tuple[str, str]:
    return str(folder / f"{number}.txt"), f"number {number}"


def to_upload(number: int) -> tuple[str, str]:
    return f"memory://samples/{number}.txt", f"number {number}"


def _paths(numbers: Any, kind: str, make: Callable[[int], bytes]) -> Any:
    return numbers.header(files.COUNT).map(files.numbered(kind, make).format)


def _bytes(numbers: Any, kind: str, make: Callable[[int], bytes]) -> Any:
    return _paths(numbers, kind, make).open_files("b")


def _hashes() -> dict[str, str]:
    pattern = files.numbered("txt", files.text)
    return {path: files.sha256(path) for path in map(pattern.format, range(files.COUNT))}


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


def _one_after_the_other(shares: list[Any]) -> Any:
    first, *others = shares
    return first.concat(*others)


def _few() -> Any:
    return it.IterableWrapper(range(100, 106))


#: A pipe's class, or the function that makes it, and a graph with it over a pipe of numbers.
ITER_PIPES: dict[Any, Callable[[Any], Any]] = {
    it.AsyncMapper: lambda numbers: numbers.async_map(double_soon, concurrency=4),
    it.BatchAsyncMapper: lambda numbers: numbers.async_map_batches(double_soon, 4),
    it.BatchMapper: lambda numbers: numbers.map_batches(sum_and_length, 4),
    it.Rollout: lambda numbers: numbers.sharding_filter().rollout(double_soon, order="source"),
    it.TokenBatcher: lambda numbers: numbers.batch_tokens(40, abs),
    it.Batcher: lambda numbers: numbers.batch(4),
    it.Collator: lambda numbers: numbers.batch(4).collate(sum),
    it.Concater: lambda numbers: numbers.concat(_few()),
    it.Bz2FileLoader: lambda numbers: (
        _bytes(numbers, "bz2", files.bz).load_from_bz2().map(files.read)
    ),
    it.CSVDictParser: lambda numbers: _bytes(numbers, "csv", files.table).parse_csv_as_dict(),
    it.CSVParser: lambda numbers: _bytes(numbers, "csv", files.table).parse_csv(),
    it.Cycler: lambda numbers: numbers.cycle(2),
    it.Decompressor: lambda numbers: _bytes(numbers, "gz", files.gz).decompress().map(files.read),
    it.Demultiplexer: lambda numbers: _joined(numbers.demux(2, is_odd)),
    it.EndOnDiskCacheHolder: cached,
    it.DeviceMover: lambda numbers: numbers.sharding_filter().to_device("cpu"),
    it.Enumerator: lambda numbers: numbers.enumerate(10),
    it.FSSpecFileLister: lambda numbers: it.FSSpecFileLister(
        str(Path(files.numbered("txt", files.text)).parent)
    ),
    it.FSSpecFileOpener: lambda numbers: (
        _paths(numbers, "txt", files.text).open_files_by_fsspec("rb").map(files.read)
    ),
    it.FSSpecSaver: lambda numbers: numbers.map(to_upload).save_by_fsspec(),
    it.FileLister: lambda numbers: it.FileLister(
        str(Path(files.numbered("txt", files.text)).parent)
    ),
    it.FileOpener: lambda numbers: _bytes(numbers, "txt", files.text).map(files.read),
    it.Filter: lambda numbers: numbers.filter(is_odd),
    it.FlatMapper: lambda numbers: numbers.flatmap(twice),
    it.Forker: lambda numbers: _joined(numbers.fork(2)),
    it.FullSync: lambda numbers: numbers.sharding_filter().fullsync(60),
    it.Grouper: lambda numbers: numbers.groupby(remainder, group_size=3),
    it.HashChecker: lambda numbers: (
        _bytes(numbers, "txt", files.text).check_hash(_hashes()).map(files.read)
    ),
    it.Header: lambda numbers: numbers.header(7),
    it.HttpReader: lambda numbers: numbers.map(no_url).read_from_http(on_error=answer_none),
    it.InBatchShuffler: lambda numbers: numbers.batch(4).in_batch_shuffle(),
    it.IterToMapConverter: lambda numbers: (
        numbers.map(with_key).to_map_datapipe().to_iter_datapipe()
    ),
    it.IterableWrapper: lambda numbers: it.IterableWrapper([*range(COUNT)]),
    it.JsonLinesParser: lambda numbers: _bytes(
        numbers, "jsonl", files.documents
    ).parse_json_lines(),
    it.JsonParser: lambda numbers: _bytes(numbers, "json", files.document).parse_json_files(),
    it.LengthSetter: lambda numbers: numbers.filter(is_odd).set_length(COUNT // 2),
    it.LineReader: lambda numbers: _bytes(numbers, "txt", files.text).readlines(),
    it.MapToIterConverter: lambda numbers: it.MapToIterConverter(
        mp.SequenceWrapper(range(COUNT)), [3, 1, 4, 1, 5]
    ),
    it.Mapper: lambda numbers: numbers.map(double).map(double_soon),
    it.Multiplexer: lambda numbers: numbers.mux(_few()),
    it.MultiplexerLongest: lambda numbers: numbers.mux_longest(_few()),
    it.ObjectStoreReader: lambda numbers: numbers.map(str).read_from_object_store(
        store_of_names, as_bytes=True
    ),
    it.ParagraphAggregator: lambda numbers: (
        _paths(numbers, "text", files.paragraphs).open_files().readlines().lines_to_paragraphs()
    ),
    it.ParquetLoader: lambda numbers: _paths(numbers, "parquet", files.parquet).load_parquet(
        as_rows=True
    ),
    it.OnDiskCacheHolder: cached,
    it.PinMemory: lambda numbers: it.PinMemory(numbers.sharding_filter(), pin_memory_fn=as_it_is),
    it.Prefetcher: lambda numbers: numbers.prefetch(3),
    it.Repeater: lambda numbers: numbers.repeat(2),
    it.RoundRobinDemultiplexer: lambda numbers: _joined(numbers.round_robin_demux(3)),
    it.Saver: lambda numbers: numbers.map(
        partial(to_save, files.folder() / "saved")
    ).save_to_disk(),
    it.ShardExpander: lambda numbers: numbers.header(4).map("{{0..{}}}.tar".format).shard_expand(),
    it.ShardingFilter: lambda numbers: numbers.sharding_filter(),
    it.ShardingRoundRobinDispatcher: lambda numbers: numbers.sharding_round_robin_dispatch(
        it.SHARDING_PRIORITIES.MULTIPROCESSING
    ),
    it.Shuffler: lambda numbers: numbers.shuffle(buffer_size=8),
    it.StreamReader: lambda numbers: _bytes(numbers, "txt", files.text).read_from_stream(9),
    it.TarArchiveLoader: lambda numbers: (
        _bytes(numbers, "tar", files.tar).load_from_tar().map(files.read)
    ),
    it.ThreadMapper: lambda numbers: numbers.thread_map(double),
    it.ThreadPoolMapper: lambda numbers: numbers.threadpool_map(double, max_workers=2),
    it.UnBatcher: lambda numbers: numbers.batch(4).unbatch(),
    it.WebDataset: lambda numbers: (
        _bytes(numbers, "tar", files.tar).load_from_tar().webdataset().map(files.read_all)
    ),
    it.XzFileLoader: lambda numbers: _bytes(numbers, "xz", files.xz).load_from_xz().map(files.read),
    it.ZipArchiveLoader: lambda numbers: (
        _bytes(numbers, "zip", files.zipped).load_from_zip().map(files.read)
    ),
    it.Zipper: lambda numbers: numbers.zip(_few()),
    it.BucketBatcher: lambda numbers: numbers.bucketbatch(
        2, batch_num=2, bucket_num=2, sort_key=sorted
    ),
    it.Dropper: lambda numbers: numbers.map(with_key).drop(0),
    it.Flattener: lambda numbers: numbers.map(nested).flatten(),
    it.InMemoryCacheHolder: lambda numbers: numbers.in_memory_cache(),
    it.IndexAdder: lambda numbers: numbers.map(as_dict).add_index(),
    it.IterKeyZipper: lambda numbers: numbers.zip_with_iter(
        it.IterableWrapper(range(COUNT)).batch(4).map(backwards).unbatch(), key_fn=itself
    ),
    it.MapKeyZipper: lambda numbers: numbers.zip_with_map(
        mp.SequenceWrapper(range(COUNT)), key_fn=itself
    ),
    it.MaxTokenBucketizer: lambda numbers: numbers.max_token_bucketize(
        30, len_fn=itself, buffer_size=4
    ),
    it.RandomSplitter: lambda numbers: _one_after_the_other(
        numbers.random_split({"train": 16, "valid": 8}, seed=3)
    ),
    it.Rows2Columnar: lambda numbers: numbers.map(as_dict).batch(3).rows2columnar(),
    it.SampleMultiplexer: lambda numbers: it.SampleMultiplexer({numbers: 3, _few(): 1}),
    it.SequencePacker: lambda numbers: numbers.map(as_text).pack_sequences(
        7, split="long", open_packs=3
    ),
    it.ShuffledFlatMapper: lambda numbers: numbers.shuffled_flatmap(twice, buffer_size=3),
    it.Slicer: lambda numbers: numbers.map(with_key).slice(1),
    it.UnZipper: lambda numbers: _joined(numbers.map(with_key).unzip(2)),
    it.ZipperLongest: lambda numbers: numbers.zip_longest(_few(), fill_value=0),
}

#: The same over a map pipe of numbers.
MAP_PIPES: dict[Any, Callable[[Any], Any]] = {
    mp.Batcher: lambda numbers: numbers.batch(4),
    mp.Concater: lambda numbers: numbers.concat(mp.SequenceWrapper("abc")),
    mp.Mapper: lambda numbers: numbers.map(double).map(double_soon),
    mp.InMemoryCacheHolder: lambda numbers: numbers.map(double).in_memory_cache(),
    mp.SequenceWrapper: lambda numbers: numbers,
    mp.SharedSequence: lambda numbers: mp.SharedSequence(list(numbers)),
    mp.Shuffler: lambda numbers: numbers.shuffle(),
    mp.UnZipper: lambda numbers: _joined(numbers.map(with_key).unzip(2)),
    mp.Zipper: lambda numbers: numbers.zip(mp.SequenceWrapper(range(COUNT))),
}

#: Of those, what nothing may follow in a graph.
LAST = {pipe for pipe in ITER_PIPES if isinstance(pipe, type) and pipe.hands_over}

#: A service's class, and one such that hands out a graph's items as they are, in order.
SERVICES: dict[type, Callable[[], Any]] = {
    asyncloader.DistributedReadingService: lambda: asyncloader.DistributedReadingService(60),
    asyncloader.InProcessReadingService: lambda: asyncloader.InProcessReadingService(2),
    asyncloader.MultiProcessingReadingService: lambda: asyncloader.MultiProcessingReadingService(2),
    asyncloader.MultiThreadingReadingService: lambda: asyncloader.MultiThreadingReadingService(2),
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


def graph_with(pipe_class: Any) -> Any:
    """Return a new graph that has a pipe in it which this class, or this function, makes."""
    if pipe_class in ITER_PIPES:
        return ITER_PIPES[pipe_class](Numbers())
    return MAP_PIPES[pipe_class](mp.SequenceWrapper(range(COUNT)))


def names_of_pipes() -> list[str]:
    """Return the names of the pipes that have a sample, with the module that exports each."""
    modules = [("iter", it, ITER_PIPES), ("map", mp, MAP_PIPES)]
    return [
        f"{kind}.{name}"
        for kind, module, of_kind in modules
        for name in module.__all__
        if getattr(module, name) in of_kind
    ]


def named_graph(name: str) -> Any:
    """Return ``graph_with`` the pipe of a name that ``names_of_pipes`` has."""
    kind, name = name.split(".")
    return graph_with(getattr(it if kind == "iter" else mp, name))


def public_pipes(module: Any) -> list[Any]:
    """Return what a module exports that makes pipes, without the bases."""
    exported = [getattr(module, name) for name in module.__all__]
    functions = [each for each in exported if "functional_name" in vars(each)]
    classes = _public(module, DataPipe, {it.IterDataPipe, it.Pipe, mp.MapDataPipe})
    return list(dict.fromkeys([*classes, *functions]))


def public_services() -> list[type]:
    """Return the reading services that the package exports, but for the bases and Ray's."""
    bases = {
        asyncloader.ReadingServiceInterface,
        asyncloader.CheckpointableReadingServiceInterface,
        # It needs a cluster, and has tests of its own in tests/ray.
        asyncloader.RayReadingService,
    }
    return _public(asyncloader, asyncloader.ReadingServiceInterface, bases)


def public_adapters() -> list[type]:
    """Return the adapters that the package exports, without the base."""
    return _public(ad, ad.Adapter, {ad.Adapter})


def _public(module: Any, base: type, without: set[Any]) -> list[type]:
    exported = [getattr(module, name) for name in module.__all__]
    classes = [each for each in exported if isinstance(each, type) and issubclass(each, base)]
    return [each for each in classes if each not in without]
