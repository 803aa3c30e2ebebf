"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.async_mapping import AsyncMapper, BatchAsyncMapper
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batch_mapping import BatchMapper
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.combining import (
    Multiplexer,
    MultiplexerLongest,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.grouping import Grouper
from asyncloader.datapipes.mapping import Collator, Enumerator, LengthSetter, Mapper
from asyncloader.datapipes.object_stores import ObjectStoreReader
from asyncloader.datapipes.prefetching import PinMemory, Prefetcher
from asyncloader.datapipes.repeating import Concater, Cycler, Repeater
from asyncloader.datapipes.selecting import Filter, Header
from asyncloader.datapipes.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.datapipes.splitting import Demultiplexer, Forker, RoundRobinDemultiplexer
from asyncloader.datapipes.thread_mapping import ThreadMapper, ThreadPoolMapper
from asyncloader.datapipes.web import HttpReader

__all__ = [
    "SHARDING_PRIORITIES",
    "AsyncMapper",
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "Collator",
    "Concater",
    "Cycler",
    "Demultiplexer",
    "Enumerator",
    "Filter",
    "FlatMapper",
    "Forker",
    "Grouper",
    "Header",
    "HttpReader",
    "InBatchShuffler",
    "IterDataPipe",
    "IterToMapConverter",
    "IterableWrapper",
    "LengthSetter",
    "MapToIterConverter",
    "Mapper",
    "Multiplexer",
    "MultiplexerLongest",
    "ObjectStoreReader",
    "PinMemory",
    "Prefetcher",
    "Repeater",
    "RoundRobinDemultiplexer",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "Shuffler",
    "ThreadMapper",
    "ThreadPoolMapper",
    "UnBatcher",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]
