"""Functions of several items at once.

This file is about map_batches: a function is given a list of items and may return
as many as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from asyncloader.datapipes.arguments import checked_count, checked_function
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.flattening import FlatMapper

T = TypeVar("T")


@functional_datapipe("map_batches")
class BatchMapper(FlatMapper[T]):
    """Yield each item of ``fn(items)``, which is given ``batch_size`` items at a time.

    The last list may be shorter. With ``input_col``, ``fn`` is given that column of each
    item, or a list of the columns where there are several.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(5)).map_batches(lambda batch: [sum(batch)], 2))
    [1, 5, 4]
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[[list[Any]], Iterable[T]],
        batch_size: int,
        input_col: Any = None,
    ) -> None:
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        checked_function("fn", fn)
        super().__init__(Batcher(datapipe, batch_size), fn)
        self.input_col = input_col
