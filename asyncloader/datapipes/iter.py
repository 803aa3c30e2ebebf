"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.grouping import Grouper
from asyncloader.datapipes.mapping import Collator, Enumerator, LengthSetter, Mapper
from asyncloader.datapipes.selecting import Filter, Header
from asyncloader.datapipes.sources import IterableWrapper

__all__ = [
    "Batcher",
    "Collator",
    "Enumerator",
    "Filter",
    "FlatMapper",
    "Grouper",
    "Header",
    "IterDataPipe",
    "IterableWrapper",
    "LengthSetter",
    "Mapper",
    "UnBatcher",
    "functional_datapipe",
]
