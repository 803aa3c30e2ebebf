"""The iter pipes, under the import path that torchdata gave them."""

from typing import TYPE_CHECKING, Any

from asyncloader.datapipes.async_calls import AsyncMapper, BatchAsyncMapper
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.caching.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from asyncloader.datapipes.caching.memory_caching import InMemoryCacheHolder
from asyncloader.datapipes.combining import (
    Multiplexer,
    MultiplexerLongest,
    SampleMultiplexer,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.files.archives import TarArchiveLoader, ZipArchiveLoader
from asyncloader.datapipes.files.decompressing import (
    Bz2FileLoader,
    CompressionType,
    Decompressor,
    XzFileLoader,
)
from asyncloader.datapipes.files.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from asyncloader.datapipes.files.local import (
    FileLister,
    FileOpener,
    HashChecker,
    Saver,
    StreamReader,
)
from asyncloader.datapipes.files.parsing import (
    CSVDictParser,
    CSVParser,
    JsonLinesParser,
    JsonParser,
    ParquetLoader,
)
from asyncloader.datapipes.files.text import LineReader, ParagraphAggregator
from asyncloader.datapipes.files.webdataset import ShardExpander, WebDataset
from asyncloader.datapipes.flattening import BatchMapper, FlatMapper, ShuffledFlatMapper, UnBatcher
from asyncloader.datapipes.full_sync import FullSync
from asyncloader.datapipes.grouping import BucketBatcher, Grouper, MaxTokenBucketizer, TokenBatcher
from asyncloader.datapipes.joining import IterKeyZipper, MapKeyZipper
from asyncloader.datapipes.mapping import (
    Collator,
    Dropper,
    Enumerator,
    Flattener,
    IndexAdder,
    LengthSetter,
    Mapper,
    Rows2Columnar,
    Slicer,
)
from asyncloader.datapipes.moving import DeviceMover
from asyncloader.datapipes.packing import SequencePacker
from asyncloader.datapipes.patterns import Pipe
from asyncloader.datapipes.prefetching import PinMemory, Prefetcher
from asyncloader.datapipes.random_splitting import RandomSplitter
from asyncloader.datapipes.repeating import Concater, Cycler, Repeater
from asyncloader.datapipes.rollouts import Rollout
from asyncloader.datapipes.selecting import Filter, Header
from asyncloader.datapipes.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.datapipes.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer, UnZipper
from asyncloader.datapipes.thread_calls import ThreadMapper, ThreadPoolMapper
from asyncloader.datapipes.torchdata_names import RENAMED, missing
from asyncloader.datapipes.web.readers import HttpReader, ObjectStoreReader

__all__ = [
    "SHARDING_PRIORITIES",
    "AsyncMapper",
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "CompressionType",
    "Concater",
    "Cycler",
    "Decompressor",
    "Demultiplexer",
    "DeviceMover",
    "Dropper",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "Grouper",
    "HashChecker",
    "Header",
    "HttpReader",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IterDataPipe",
    "IterKeyZipper",
    "IterToMapConverter",
    "IterableWrapper",
    "JsonLinesParser",
    "JsonParser",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "ObjectStoreReader",
    "OnDiskCacheHolder",
    "ParagraphAggregator",
    "ParquetLoader",
    "PinMemory",
    "Pipe",
    "Prefetcher",
    "RandomSplitter",
    "Repeater",
    "Rollout",
    "RoundRobinDemultiplexer",
    "Rows2Columnar",
    "SampleMultiplexer",
    "Saver",
    "SequencePacker",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "TarArchiveLoader",
    "ThreadMapper",
    "ThreadPoolMapper",
    "TokenBatcher",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if RENAMED.get(name) in __all__:
            return globals()[RENAMED[name]]
        raise missing(__name__, name)
