"""The map pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.base import MapDataPipe, functional_datapipe
from asyncloader.datapipes.batching import MapBatcher as Batcher
from asyncloader.datapipes.mapping import MapMapper as Mapper
from asyncloader.datapipes.sources import SequenceWrapper

__all__ = [
    "Batcher",
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "functional_datapipe",
]
