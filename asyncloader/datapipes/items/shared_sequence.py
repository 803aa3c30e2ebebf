"""A sequence that all processes share.

This file is about ``SharedSequence``: rows in one read-only buffer, and an index of
where each of them begins.

    row 0 │ row 1 │ … │ row n-1 │ where row 0 begins, …, where row n would
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, SupportsIndex, TypeVar, overload

from asyncloader.datapipes.items.rows import RowPacking
from asyncloader.datapipes.pipe.base import MapDataPipe, is_pipe
from asyncloader.memory import SharedBytes
from asyncloader.safe_error_text import note

T = TypeVar("T")


class SharedSequence(MapDataPipe[T]):
    """Look rows up in a buffer that this process and all its workers have in common.

    A list of a million rows is a million objects in every worker, which copies them as
    it looks at them. Here the rows are packed once, when the pipe is made, and any
    number of workers read the same memory, whatever their start method. Each lookup
    makes a new row; a slice makes a list of rows. Rows are what pickle takes; an
    iterable is read to its end and not kept, so that the rows need not all exist at
    the same time.

    >>> rows = SharedSequence({"path": f"{n}.jpg", "label": n % 2} for n in range(1000))
    >>> len(rows), rows[-1]
    (1000, {'path': '999.jpg', 'label': 1})
    """

    edges = ()

    def __init__(self, rows: Iterable[T]) -> None:
        if is_pipe(rows):
            raise TypeError(f"{rows!r} is a datapipe, not rows; pack its items: list(pipe)")
        if not isinstance(rows, Iterable):
            raise TypeError(f"rows must be iterable, got {type(rows).__name__}")
        begins = array("Q", [0])
        self._packing = RowPacking()
        self._bytes = SharedBytes.of(_with_index(_packed(rows, self._packing), begins))
        self._length = len(begins) - 1
        self._index = begins[-1]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> list[T]: ...
    def __getitem__(self, key: SupportsIndex | slice) -> T | list[T]:
        if isinstance(key, slice):
            return [self._row(index) for index in range(*key.indices(self._length))]
        index = operator.index(key)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is out of range for {self._length} rows")
        return self._row(index % self._length)

    def _row(self, index: int) -> T:
        view = self._bytes.view
        begin, end = _ENTRIES.unpack_from(view, self._index + index * _ENTRY_BYTES)
        row: T = self._packing.unpack(view[begin:end])
        return row


#: Two neighbours in the index: where a row begins, and where the next does.
_ENTRIES = Struct("=2Q")
_ENTRY_BYTES = _ENTRIES.size // 2


def _packed(rows: Iterable[Any], packing: RowPacking) -> Iterator[bytes]:
    for number, row in enumerate(rows):
        try:
            yield packing.pack(row)
        except Exception as error:
            note(error, f"row {number} of a SharedSequence, {type(row).__name__}, must pickle")
            raise


def _with_index(chunks: Iterable[bytes], begins: array[int]) -> Iterator[bytes | memoryview]:
    """Yield the chunks and then where each of them begins, which is noted in ``begins``."""
    end = 0
    for chunk in chunks:
        yield chunk
        end += len(chunk)
        begins.append(end)
    yield memoryview(begins)
