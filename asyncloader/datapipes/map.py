"""The map pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.branches.combining import MapZipper as Zipper
from asyncloader.datapipes.branches.repeating import MapConcater as Concater
from asyncloader.datapipes.branches.unzipping import MapUnZipper as UnZipper
from asyncloader.datapipes.caching.memory_caching import (
    MapInMemoryCacheHolder as InMemoryCacheHolder,
)
from asyncloader.datapipes.groups.batching import MapBatcher as Batcher
from asyncloader.datapipes.groups.shuffling import MapShuffler as Shuffler
from asyncloader.datapipes.items.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.items.mapping import MapMapper as Mapper
from asyncloader.datapipes.items.shared_sequence import SharedSequence
from asyncloader.datapipes.items.sources import SequenceWrapper
from asyncloader.datapipes.pipe.base import MapDataPipe, functional_datapipe

__all__ = [
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IterToMapConverter",
    "MapDataPipe",
    "MapToIterConverter",
    "Mapper",
    "SequenceWrapper",
    "SharedSequence",
    "Shuffler",
    "UnZipper",
    "Zipper",
    "functional_datapipe",
]
