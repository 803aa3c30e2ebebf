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
from asyncloader.datapipes.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.grouping import Grouper
from asyncloader.datapipes.mapping import Collator, Enumerator, LengthSetter, Mapper
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

__all__ = [
    "SHARDING_PRIORITIES",
    "AsyncMapper",
    "Batcher",
    "Collator",
    "Concater",
    "Cycler",
    "Demultiplexer",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "Filter",
    "FlatMapper",
    "Forker",
    "Grouper",
    "Header",
    "InBatchShuffler",
    "IterDataPipe",
    "IterToMapConverter",
    "IterableWrapper",
    "LengthSetter",
    "MapToIterConverter",
    "Mapper",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "PinMemory",
    "Prefetcher",
    "Repeater",
    "RoundRobinDemultiplexer",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "Shuffler",
    "ThreadMapper",
    "UnBatcher",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]
