"""The map pipes, under the import path that torchdata gave them."""

from typing import TYPE_CHECKING, Any

# Map pipes lead to iter pipes, whose methods are to be there.
import asyncloader.datapipes.iter  # noqa: F401
from asyncloader.datapipes.base import MapDataPipe, functional_datapipe
from asyncloader.datapipes.batching import MapBatcher as Batcher
from asyncloader.datapipes.caching.memory_caching import (
    MapInMemoryCacheHolder as InMemoryCacheHolder,
)
from asyncloader.datapipes.combining import MapZipper as Zipper
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.mapping import MapMapper as Mapper
from asyncloader.datapipes.repeating import MapConcater as Concater
from asyncloader.datapipes.shared_sequence import SharedSequence
from asyncloader.datapipes.shuffling import MapShuffler as Shuffler
from asyncloader.datapipes.sources import SequenceWrapper
from asyncloader.datapipes.splitting import MapUnZipper as UnZipper
from asyncloader.datapipes.torchdata_names import missing

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


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise missing(__name__, name)
