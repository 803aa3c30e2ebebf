"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.async_mapping import AsyncMapper, BatchAsyncMapper
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batch_mapping import BatchMapper
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.bucketing import BucketBatcher, MaxTokenBucketizer
from asyncloader.datapipes.columnar import Rows2Columnar
from asyncloader.datapipes.combining import (
    Multiplexer,
    MultiplexerLongest,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.decompressing import (
    Bz2FileLoader,
    CompressionType,
    Decompressor,
    XzFileLoader,
)
from asyncloader.datapipes.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from asyncloader.datapipes.files import FileLister, FileOpener, StreamReader
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from asyncloader.datapipes.full_sync import FullSync
from asyncloader.datapipes.grouping import Grouper
from asyncloader.datapipes.hashing import HashChecker
from asyncloader.datapipes.indexing import IndexAdder
from asyncloader.datapipes.joining import IterKeyZipper, MapKeyZipper
from asyncloader.datapipes.mapping import Collator, Enumerator, LengthSetter, Mapper
from asyncloader.datapipes.memory_caching import InMemoryCacheHolder
from asyncloader.datapipes.mixing import SampleMultiplexer
from asyncloader.datapipes.object_stores import ObjectStoreReader
from asyncloader.datapipes.packing import SequencePacker
from asyncloader.datapipes.parquet import ParquetLoader
from asyncloader.datapipes.parsing import CSVDictParser, CSVParser, JsonLinesParser, JsonParser
from asyncloader.datapipes.prefetching import PinMemory, Prefetcher
from asyncloader.datapipes.random_splitting import RandomSplitter
from asyncloader.datapipes.repeating import Concater, Cycler, Repeater
from asyncloader.datapipes.saving import Saver
from asyncloader.datapipes.selecting import Filter, Header
from asyncloader.datapipes.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.shards import ShardExpander
from asyncloader.datapipes.shuffled_flattening import ShuffledFlatMapper
from asyncloader.datapipes.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.slicing import Dropper, Flattener, Slicer
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.datapipes.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer
from asyncloader.datapipes.tar import TarArchiveLoader
from asyncloader.datapipes.text import LineReader, ParagraphAggregator
from asyncloader.datapipes.thread_mapping import ThreadMapper, ThreadPoolMapper
from asyncloader.datapipes.unzipping import UnZipper
from asyncloader.datapipes.web import HttpReader
from asyncloader.datapipes.webdataset import WebDataset
from asyncloader.datapipes.zip import ZipArchiveLoader

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
