"""Functions of several items at once.

This file is about map_batches: a function is given a list of items and may return
as many as it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from asyncloader.datapipes.groups.batching import Batcher
from asyncloader.datapipes.groups.flattening import FlatMapper, collecting
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import is_async
from asyncloader.datapipes.pipe.tolerance import OnError

T = TypeVar("T")


@functional_datapipe("map_batches")
class BatchMapper(FlatMapper[T]):
    """Yield each item of ``fn(items)``, which is given ``batch_size`` items at a time.

    The last list may be shorter. With ``input_col``, ``fn`` is given that column of each
    item, or a list of the columns where there are several. ``on_error`` and ``max_errors``
    are those of ``flatmap``, for whole lists.

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
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        checked_function("fn", fn, takes=1)
        columns = fn if input_col is None else of_columns(collecting(fn), input_col)
        batches = Batcher(datapipe, batch_size)
        super().__init__(batches, columns, on_error=on_error, max_errors=max_errors)
        self.fn = fn
        self.input_col = input_col


def of_columns(fn: Callable[[list[Any]], Any], input_col: Any) -> Callable[[list[Any]], Any]:
    """Return a function of whole items that hands some of their columns to ``fn``."""
    return functools.partial(_of_columns_async if is_async(fn) else _of_columns, fn, input_col)


def _of_columns(fn: Callable[[list[Any]], Any], input_col: Any, items: list[Any]) -> Any:
    return fn([_columns_of(item, input_col) for item in items])


async def _of_columns_async(fn: Callable[[list[Any]], Any], input_col: Any, items: Any) -> Any:
    return await fn([_columns_of(item, input_col) for item in items])


def _columns_of(item: Any, input_col: Any) -> Any:
    if isinstance(input_col, list | tuple):
        return [item[column] for column in input_col]
    return item[input_col]
