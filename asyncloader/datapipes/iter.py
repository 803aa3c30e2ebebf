"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.branches.combining import (
    Multiplexer,
    MultiplexerLongest,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.branches.joining import IterKeyZipper, MapKeyZipper
from asyncloader.datapipes.branches.mixing import SampleMultiplexer
from asyncloader.datapipes.branches.random_splitting import RandomSplitter
from asyncloader.datapipes.branches.repeating import Concater, Cycler, Repeater
from asyncloader.datapipes.branches.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.branches.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer
from asyncloader.datapipes.branches.unzipping import UnZipper
from asyncloader.datapipes.caching.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from asyncloader.datapipes.caching.memory_caching import InMemoryCacheHolder
from asyncloader.datapipes.calls.async_mapping import AsyncMapper, BatchAsyncMapper
from asyncloader.datapipes.calls.full_sync import FullSync
from asyncloader.datapipes.calls.prefetching import PinMemory, Prefetcher
from asyncloader.datapipes.calls.thread_mapping import ThreadMapper, ThreadPoolMapper
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
from asyncloader.datapipes.groups.batch_mapping import BatchMapper
from asyncloader.datapipes.groups.batching import Batcher
from asyncloader.datapipes.groups.bucketing import BucketBatcher, MaxTokenBucketizer
from asyncloader.datapipes.groups.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.groups.grouping import Grouper
from asyncloader.datapipes.groups.packing import SequencePacker
from asyncloader.datapipes.groups.shuffled_flattening import ShuffledFlatMapper
from asyncloader.datapipes.groups.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.items.columnar import Rows2Columnar
from asyncloader.datapipes.items.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.items.indexing import IndexAdder
from asyncloader.datapipes.items.mapping import Collator, Enumerator, LengthSetter, Mapper
from asyncloader.datapipes.items.selecting import Filter, Header
from asyncloader.datapipes.items.slicing import Dropper, Flattener, Slicer
from asyncloader.datapipes.items.sources import IterableWrapper
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
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
    "Prefetcher",
    "RandomSplitter",
    "Repeater",
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
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]
