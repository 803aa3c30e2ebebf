"""The iter pipes, under the import path that torchdata gave them."""

from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.mapping import Mapper
from asyncloader.datapipes.sources import IterableWrapper

__all__ = ["IterDataPipe", "IterableWrapper", "Mapper", "functional_datapipe"]
