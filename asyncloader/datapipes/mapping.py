"""One item in, one item out.

This file is about pipes that apply something to every item and keep their
number and order: map, collate, enumerate and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.datapipes.columns import ColumnFunction
from asyncloader.datapipes.function import blame, calling, is_async, unawaited

T = TypeVar("T")


@functional_datapipe("map")
class Mapper(IterDataPipe[T]):
    """Yield ``fn(item)`` for each item.

    ``input_col`` picks what is handed to ``fn`` out of a tuple, list or dict, and
    ``output_col`` says where the result goes (default: where the input was).

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).map(str))
    ['1', '2']
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
    ) -> None:
        self.source = datapipe
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self._apply = ColumnFunction.of(fn, input_col, output_col)

    def waits(self) -> bool:
        return is_async(self.fn)

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        with calling(self._apply) as apply:
            for item in self.source:
                try:
                    result = apply(item)
                except BaseException as error:
                    blame(error, self)
                    raise
                if result.__class__ is CoroutineType:
                    raise unawaited(self)
                yield result


@functional_datapipe("map")
class MapMapper(MapDataPipe[T]):
    """Look items up as ``fn(source[key])``."""

    def __init__(self, datapipe: MapDataPipe[Any], fn: Callable[[Any], T]) -> None:
        self.source = datapipe
        self.fn = fn

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> T:
        item = self.source[key]
        try:
            return self.fn(item)
        except BaseException as error:
            blame(error, self)
            raise
