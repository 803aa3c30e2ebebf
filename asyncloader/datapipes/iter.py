"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.combining import (
    Multiplexer,
    MultiplexerLongest,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.concurrent import AsyncMapper, ThreadMapper
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.decompressing import (
    Bz2FileLoader,
    CompressionType,
    Decompressor,
    XzFileLoader,
)
from asyncloader.datapipes.files import FileLister, FileOpener, StreamReader
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.fsspec import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from asyncloader.datapipes.grouping import Grouper
from asyncloader.datapipes.hashing import HashChecker
from asyncloader.datapipes.mapping import Collator, Enumerator, LengthSetter, Mapper
from asyncloader.datapipes.parquet import ParquetLoader
from asyncloader.datapipes.parsing import CSVDictParser, CSVParser, JsonLinesParser, JsonParser
from asyncloader.datapipes.prefetching import PinMemory, Prefetcher
from asyncloader.datapipes.repeating import Concater, Cycler, Repeater
from asyncloader.datapipes.saving import Saver
from asyncloader.datapipes.selecting import Filter, Header
from asyncloader.datapipes.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.shards import ShardExpander
from asyncloader.datapipes.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.datapipes.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer
from asyncloader.datapipes.tar import TarArchiveLoader
from asyncloader.datapipes.text import LineReader, ParagraphAggregator
from asyncloader.datapipes.webdataset import WebDataset
from asyncloader.datapipes.zip import ZipArchiveLoader

__all__ = [
    "SHARDING_PRIORITIES",
    "AsyncMapper",
    "Batcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "CompressionType",
    "Concater",
    "Cycler",
    "Decompressor",
    "Demultiplexer",
    "Enumerator",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Forker",
    "Grouper",
    "HashChecker",
    "Header",
    "InBatchShuffler",
    "IterDataPipe",
    "IterToMapConverter",
    "IterableWrapper",
    "JsonLinesParser",
    "JsonParser",
    "LengthSetter",
    "LineReader",
    "MapToIterConverter",
    "Mapper",
    "Multiplexer",
    "MultiplexerLongest",
    "ParagraphAggregator",
    "ParquetLoader",
    "PinMemory",
    "Prefetcher",
    "Repeater",
    "RoundRobinDemultiplexer",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "Shuffler",
    "StreamReader",
    "TarArchiveLoader",
    "ThreadMapper",
    "UnBatcher",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]
