"""Batches of rows made batches of columns.

This file is about rows2columnar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.arguments import checked_names, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.run import Run


@functional_datapipe("rows2columnar")
class Rows2Columnar(OneToOne, IterDataPipe[dict[Any, list[Any]]]):
    """Yield for each batch of rows a dict of columns: lists of what the rows hold.

    Rows are dicts, of which the columns named in ``column_names`` are taken (default:
    all), or sequences, for whose values ``column_names`` are the names. A dict without
    a named column is a KeyError, a sequence longer than the names an IndexError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[{"a": 1, "b": 2}, {"a": 3}]]).rows2columnar())
    [{'a': [1, 3], 'b': [2]}]
    >>> list(IterableWrapper([[[0, 1], [2, 3]]]).rows2columnar(["x", "y"]))
    [{'x': [0, 2], 'y': [1, 3]}]
    """

    def __init__(
        self,
        source_datapipe: Iterable[Iterable[Any]],
        column_names: Sequence[str] | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        names = () if column_names is None else column_names
        self.column_names = checked_names("column_names", names)

    def __len__(self) -> int:
        return len(self.source)

    def results(self, source: Run[Any]) -> Iterator[dict[Any, list[Any]]]:
        for batch in source.begin():
            if not isinstance(batch, Iterable):
                raise TypeError(f"{self!r} reads batches of rows, got {type(batch).__name__}")
            columns: dict[Any, list[Any]] = {}
            for row in batch:
                for name, value in self._cells(row):
                    columns.setdefault(name, []).append(value)
            yield columns

    def _cells(self, row: Any) -> Iterable[tuple[Any, Any]]:
        names = self.column_names
        if not isinstance(row, dict):
            if not (isinstance(row, Sized) and isinstance(row, Iterable)):
                raise TypeError(
                    f"{self!r} reads rows that are dicts or sequences, got {type(row).__name__}"
                )
            if len(row) > len(names):
                raise IndexError(
                    f"{self!r} got a row of {len(row)} values for {len(names)} column_names;"
                    " name every column"
                )
            return zip(names, row, strict=False)
        for name in names:
            if name not in row:
                raise KeyError(f"{self!r} got a row without the column {name!r}")
        return ((name, row[name]) for name in names) if names else row.items()
