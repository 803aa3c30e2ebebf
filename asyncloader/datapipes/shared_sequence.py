"""Rows in memory that all workers share.

This file is about ``SharedSequence``, and about ``RowPacking``, which packs a row into a few bytes
and back. It uses pickle, and leaves out what the pickles of a million rows would repeat: headers,
equal dict keys, and code that another process could not import.
"""

from __future__ import annotations

import io
import operator
import pickle
import types
from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, SupportsIndex, TypeVar, overload

from asyncloader.datapipes.base import MapDataPipe, is_pipe
from asyncloader.main_script import MAIN, home_of, may_name_main
from asyncloader.memory import SharedBytes
from asyncloader.safe_error_text import note

T = TypeVar("T")

#: The first byte of a packed row: a pickle, a pickle that refers to code, or a dict's values.
_PLAIN, _WITH_CODE, _FIRST_SHAPE = 0, 1, 2
_SHAPES = 256 - _FIRST_SHAPE
_HEADS = [bytes([kind]) for kind in range(256)]

_PROTO, _FRAME = b"\x80\x05", 0x95
_FRAME_ENDS = 11
_ONLY_TEXT = {str}


class RowPacking:
    """Packs rows, and unpacks them in any order and any process.

    A row comes back as a new object every time. Objects that rows shared are copied for each.
    """

    def __init__(self) -> None:
        #: The tuples of dict keys, in order, and their numbers.
        self._shapes: dict[tuple[str, ...], int] = {}
        self._keys: list[tuple[str, ...]] = []
        #: Classes and functions in rows that another process cannot import by name.
        self._code: list[Any] = []

    def pack(self, row: Any) -> bytes:
        """Return a row's bytes; raise pickle's error if it cannot be pickled."""
        if type(row) is dict:
            number = self._shape_of(row)
            if number is not None:
                values = _pickle(tuple(row.values()))
                if values is not None:
                    return _HEADS[_FIRST_SHAPE + number] + values
        data = _pickle(row)
        return _HEADS[_PLAIN] + data if data is not None else self._pack_with_code(row)

    def unpack(self, packed: memoryview) -> Any:
        """Return the row of these bytes."""
        kind = packed[0]
        if kind >= _FIRST_SHAPE:
            return dict(zip(self._keys[kind - _FIRST_SHAPE], pickle.loads(packed[1:]), strict=True))
        if kind == _PLAIN:
            return pickle.loads(packed[1:])
        return _CodeUnpickler(packed[1:], self._code).load()

    def _shape_of(self, row: dict[Any, Any]) -> int | None:
        """Return the number of a dict's keys; None if not all are texts, or no number is left."""
        keys = tuple(row)
        # A subclass of str may equal a text, but must not come back as a plain str.
        if set(map(type, keys)) != _ONLY_TEXT:
            return None
        if keys not in self._shapes:
            if len(self._shapes) == _SHAPES:
                return None
            self._shapes[keys] = len(self._shapes)
            self._keys.append(keys)
        return self._shapes[keys]

    def _pack_with_code(self, row: Any) -> bytes:
        file = io.BytesIO()
        _CodePickler(file, self._code).dump(row)
        return _HEADS[_WITH_CODE] + file.getvalue()


def _pickle(value: Any) -> bytes | None:
    """Return a pickle without its header, or None if it must refer to code."""
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # noqa: BLE001 - pickle refuses in many ways; it is tried again with code
        return None
    return None if may_name_main(data) else _without_header(data)


def _without_header(data: bytes) -> bytes:
    if data[2] != _FRAME:
        return data.removeprefix(_PROTO)
    is_all = len(data) == _FRAME_ENDS + int.from_bytes(data[3:_FRAME_ENDS], "little")
    return data[_FRAME_ENDS:] if is_all else data


class _CodePickler(pickle.Pickler):
    """Pickles code of the main script, or without a name of its own, as a number."""

    def __init__(self, file: io.BytesIO, code: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._code = code

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, type | types.FunctionType) or not _is_out_of_reach(value):
            return None
        for number, known in enumerate(self._code):
            if known is value:
                return number
        self._code.append(value)
        return len(self._code) - 1


class _CodeUnpickler(pickle.Unpickler):
    def __init__(self, data: memoryview, code: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._code = code

    def persistent_load(self, number: Any) -> Any:
        return self._code[number]


def _is_out_of_reach(code: Any) -> bool:
    return home_of(code) == MAIN or "<" in code.__qualname__


class SharedSequence(MapDataPipe[T]):
    """Look rows up in a buffer that this process shares with all its workers.

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
            raise TypeError(f"{rows!r} is a pipe, not rows; pack its items: list(pipe)")
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


#: Two neighbours in the index: where a row begins, and where the next one begins.
_ENTRIES = Struct("=2Q")
_ENTRY_BYTES = _ENTRIES.size // 2


def _packed(rows: Iterable[Any], packing: RowPacking) -> Iterator[bytes]:
    for number, row in enumerate(rows):
        try:
            yield packing.pack(row)
        except Exception as error:
            note(
                error,
                f"row {number} of a SharedSequence, {type(row).__name__}, must pickle",
            )
            raise


def _with_index(chunks: Iterable[bytes], begins: array[int]) -> Iterator[bytes | memoryview]:
    """Yield the chunks, then the index of their beginnings, which is collected in ``begins``."""
    end = 0
    for chunk in chunks:
        yield chunk
        end += len(chunk)
        begins.append(end)
    yield memoryview(begins)
