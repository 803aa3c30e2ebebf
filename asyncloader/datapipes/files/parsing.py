"""Rows and documents in files.

This file is about parse_csv, parse_csv_as_dict, parse_json_files and parse_json_lines, and about
load_parquet, which needs pyarrow (the extra ``[arrow]``). What cannot be parsed is an error that
names the file and the line, and shows nothing of what is there.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from asyncloader.arguments import checked_function, checked_names
from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.call import plain_function
from asyncloader.datapipes.files.streams import close_stream, path_and_stream
from asyncloader.datapipes.files.text import (
    MAX_LINE_BYTES,
    OPENING,
    TextReader,
    checked_line_limit,
    line_too_long,
    lines_of,
    undecodable,
)
from asyncloader.datapipes.files.unpacking import checked_limit
from asyncloader.datapipes.patterns import Applier, Expander, after
from asyncloader.datapipes.tolerance import OnError
from asyncloader.errors import ResourceExhausted
from asyncloader.safe_error_text import note
from asyncloader.worker_info import this_worker

#: What json.loads calls for what it finds.
_HOOKS = ("object_hook", "object_pairs_hook", "parse_constant", "parse_float", "parse_int")


class _CSVReader(TextReader):
    """What the two parsers of CSV share."""

    #: What makes rows of lines.
    make_reader: ClassVar[Callable[..., Any]]

    def set_format(self, fmtparams: dict[str, Any]) -> None:
        """Say what the reader is told of the format; a constructor does."""
        # A TypeError that names the keyword, if there is none such.
        self.make_reader([], **fmtparams)
        self.fmtparams = fmtparams

    def parts(self, item: Any, skip: int = 0) -> Iterator[Any]:
        path, stream = path_and_stream(item, self)
        try:
            numbered = enumerate(self.lines(stream, path), self.skip_lines + 1)
            lines = LinesOfRow(numbered, path, self.max_line_bytes)
            reader = self.make_reader(iter(lines), **self.fmtparams)
            returns_path = self.return_path
            for row in after(self.rows(reader, path, lines), skip):
                yield (path, row) if returns_path else row
        finally:
            close_stream(stream)

    def rows(self, reader: Any, path: str, lines: LinesOfRow) -> Iterator[Any]:
        """Yield the rows that a reader makes; a csv.Error names the file and the line."""
        try:
            # A row with keys is read when somebody wants to know them, and is one of its own.
            getattr(reader, "fieldnames", None)
            lines.size = 0
            for row in reader:
                lines.size = 0
                yield row
        except csv.Error as error:
            line = self.skip_lines + max(reader.line_num, 1)
            raise csv.Error(f"{path}, line {line}: {error}") from None


class LinesOfRow:
    """The lines of a file, of which those of one row may only have so many bytes together."""

    def __init__(self, numbered: Iterable[tuple[int, Any]], path: str, most: float) -> None:
        self._numbered = numbered
        self._path = path
        self._most = most
        #: How much of a row was read; to be set to 0 when the row is whole.
        self.size = 0

    def __iter__(self) -> Iterator[Any]:
        for number, line in self._numbered:
            self.size += len(line)
            if self.size > self._most:
                raise line_too_long(self._path, number, self._most, "the row that ends there")
            yield line


@functional_datapipe("parse_csv")
class CSVParser(_CSVReader):
    r"""Yield the rows of CSV files, as lists of text, from pairs ``(path, stream)``.

    The first ``skip_lines`` of every file are left out. With ``decode`` bytes become
    text, as ``encoding`` and ``errors`` say, without a byte order mark. With ``as_tuple``
    rows are tuples, and with ``return_path`` they come as ``(path, row)``. A row whose lines
    have more than ``max_line_bytes`` (256 MiB; None for no limit) is a ``ResourceExhausted``.
    ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole files: what follows a
    row that cannot be parsed is left out. Other keywords are those of ``csv.reader``, such as
    ``delimiter``.

    >>> import io
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("table", io.BytesIO(b"a,1\nb,2\n"))]).parse_csv())
    [['a', '1'], ['b', '2']]
    """

    make_reader = csv.reader

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **fmtparams: Any,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.set_reading(skip_lines, decode, encoding, errors, return_path, max_line_bytes)
        self.set_format(fmtparams)
        self.as_tuple = as_tuple

    def rows(self, reader: Any, path: str, lines: LinesOfRow) -> Iterator[Any]:
        rows = super().rows(reader, path, lines)
        return map(tuple, rows) if self.as_tuple else rows


@functional_datapipe("parse_csv_as_dict")
class CSVDictParser(_CSVReader):
    r"""Yield the rows of CSV files, as dicts, from pairs ``(path, stream)``.

    The first row of each file, after the ``skip_lines`` that are left out, has the keys.
    With ``decode`` bytes become text, as ``encoding`` and ``errors`` say, without a byte
    order mark; with ``return_path`` rows come as ``(path, row)``. ``max_line_bytes``,
    ``on_error`` and ``max_errors`` are those of ``parse_csv``. Other keywords are those of
    ``csv.DictReader``, such as ``fieldnames`` or ``delimiter``.

    >>> import io
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("table", io.BytesIO(b"name,size\na,1\n"))])
    >>> list(files.parse_csv_as_dict())
    [{'name': 'a', 'size': '1'}]
    """

    make_reader = csv.DictReader

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **fmtparams: Any,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.set_reading(skip_lines, decode, encoding, errors, return_path, max_line_bytes)
        self.set_format(fmtparams)


@functional_datapipe("parse_json_files")
class JsonParser(Applier[tuple[str, Any]]):
    """Yield ``(path, document)`` for each pair of a path and a stream of JSON.

    A file that cannot be parsed is a ``json.JSONDecodeError`` that names the file and the line.
    ``on_error`` and ``max_errors`` are those of ``map``, for such files.
    Other keywords are those of ``json.loads``, such as ``parse_float``.

    >>> import io
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("1.json", io.BytesIO(b'{"a": [1, null]}'))])
    >>> list(files.parse_json_files())
    [('1.json', {'a': [1, None]})]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.kwargs = _checked_keywords(kwargs)

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    def function(self) -> Callable[[Any], tuple[str, Any]]:
        return self._document

    def _document(self, item: Any) -> tuple[str, Any]:
        path, stream = path_and_stream(item, self)
        try:
            text = stream.read()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {undecodable(error, OPENING)}") from None
        finally:
            close_stream(stream)
        return path, _parsed(text, path, 1, self.kwargs)


@functional_datapipe("parse_json_lines")
class JsonLinesParser(Expander[Any]):
    r"""Yield the document in each line of streams of JSON lines, from pairs ``(path, stream)``.

    Empty lines are left out. With ``return_path`` documents come as ``(path, document)``. A
    line of more than ``max_line_bytes`` (256 MiB; None for no limit) is a ``ResourceExhausted``,
    and one that cannot be parsed a ``json.JSONDecodeError`` that names the file and the line.
    ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole files: to leave out
    single lines, ``readlines().map(json.loads, 1, on_error="skip")``. Other keywords are
    those of ``json.loads``.

    >>> import io
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("log", io.BytesIO(b'{"a": 1}\n\n[2]\n'))])
    >>> list(files.parse_json_lines())
    [{'a': 1}, [2]]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        return_path: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.return_path = return_path
        self.max_line_bytes = checked_line_limit(max_line_bytes)
        self.kwargs = _checked_keywords(kwargs)

    def parts(self, item: Any, skip: int = 0) -> Iterator[Any]:
        path, stream = path_and_stream(item, self)
        try:
            numbered = enumerate(lines_of(stream, path, self.max_line_bytes), 1)
            filled = ((number, line) for number, line in numbered if line.strip())
            for number, line in after(filled, skip):
                document = _parsed(line, path, number, self.kwargs)
                yield (path, document) if self.return_path else document
                del document
        finally:
            close_stream(stream)


def _checked_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    for name in _HOOKS:
        if kwargs.get(name) is not None:
            plain_function(name, kwargs[name], takes=1)
    decoder = kwargs.get("cls")
    if decoder is not None:
        checked_function("cls", decoder)
    elif unknown := kwargs.keys() - {*_HOOKS, "strict", "cls"}:
        raise TypeError(
            f"json.loads has no keyword {min(unknown)!r}; it has cls, strict, {', '.join(_HOOKS)}"
        )
    # A decoder of the user's own says itself what it takes. No hook is called here.
    json.loads("null", **kwargs)
    return kwargs


def _parsed(text: str | bytes, path: str, line: int, kwargs: dict[str, Any]) -> Any:
    # The original errors hold the text itself.
    try:
        return json.loads(text, **kwargs)
    except json.JSONDecodeError as error:
        number = line + error.lineno - 1
        message = f"{path}, line {number}, column {error.colno}: {error.msg}"
        raise BadJson(message, error.msg, number, error.colno) from None
    except UnicodeDecodeError as error:
        why = undecodable(error, OPENING)
        raise BadJson(f"{path}, from line {line} on: {why}", why, line) from None
    except RecursionError:
        why = "nested too deeply"
        raise BadJson(f"{path}, from line {line} on: {why}", why, line) from None
    except ValueError as error:
        note(error, f"in {path}, from line {line} on")
        raise


class BadJson(json.JSONDecodeError):
    """Text that is no JSON: its message names the file and the line, and shows no text.

    ``lineno`` and ``colno`` are the place in the file, and ``doc`` is empty.
    """

    def __init__(self, message: str, msg: str = "", lineno: int = 1, colno: int = 1) -> None:
        super().__init__(msg or message, "", 0)
        self.args = (message,)
        self.lineno, self.colno = lineno, colno

    def __reduce__(self) -> Any:
        # Its base makes a copy of what it is made of, which is not here.
        return type(self), self.args, self.__dict__


#: A row group of a Parquet file is read at once.
MAX_GROUP_BYTES = 4 * 2**30


@functional_datapipe("load_parquet")
class ParquetLoader(Expander[Any]):
    """Yield a ``pyarrow.Table`` for each row group of each Parquet file.

    Files are paths, or pairs of a path and a stream that can seek. ``columns`` are the
    columns to read (default: all), or fields in them, as ``"position.x"``. With ``as_rows``
    each row is yielded, as a dict; with ``return_path`` what is yielded comes as
    ``(path, …)``. A row group that says it has more than ``max_group_bytes`` is an error.
    ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole files.

    >>> import io
    >>> import pyarrow, pyarrow.parquet
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> packed = io.BytesIO()
    >>> pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2], "b": [3, 4]}), packed)
    >>> list(IterableWrapper([("t", packed)]).load_parquet(["a"], as_rows=True))
    [{'a': 1}, {'a': 2}]
    """

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        columns: Sequence[str] | None = None,
        *,
        as_rows: bool = False,
        return_path: bool = False,
        max_group_bytes: float = MAX_GROUP_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.columns = None if columns is None else checked_names("columns", columns)
        self.as_rows = as_rows
        self.return_path = return_path
        self.max_group_bytes = checked_limit("max_group_bytes", max_group_bytes)

    def parts(self, item: Any, skip: int = 0) -> Iterator[Any]:
        is_path = isinstance(item, str | os.PathLike)
        path, stream = (os.fspath(item), None) if is_path else path_and_stream(item, self)
        try:
            with contextlib.closing(ParquetFile(path, stream)) as file:
                for part in self._parts_of(file, skip):
                    yield (path, part) if self.return_path else part
                    del part
        finally:
            close_stream(stream)

    def _parts_of(self, file: ParquetFile, skip: int) -> Iterator[Any]:
        for group in range(file.groups):
            count = file.rows(group) if self.as_rows else 1
            if skip >= count:
                skip -= count
                continue
            file.check(group, self.max_group_bytes)
            table = file.read(group, self.columns)
            if self.as_rows:
                yield from _rows(table.slice(skip))
            else:
                yield table
            skip = 0
            del table


#: Rows become Python objects so many at a time.
_ROWS = 1024


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


class ParquetFile:
    """A Parquet file that is open."""

    def __init__(self, path: str, stream: Any) -> None:
        self.path = path
        with self._naming():
            self._file = _pyarrow_parquet().ParquetFile(path if stream is None else stream)
        self.groups: int = self._file.num_row_groups

    def close(self) -> None:
        """Close what was opened here."""
        self._file.close()

    def rows(self, group: int) -> int:
        """Return how many rows a row group has."""
        count: int = self._file.metadata.row_group(group).num_rows
        return count

    def check(self, group: int, max_bytes: float) -> None:
        """Raise ResourceExhausted for a row group that is too large to read at once."""
        size = self._file.metadata.row_group(group).total_byte_size
        if size > max_bytes:
            raise ResourceExhausted(
                f"{self.path}: row group {group} has {size} bytes, more than"
                f" max_group_bytes={max_bytes}; if you trust the file, pass a larger"
                " max_group_bytes"
            )

    def read(self, group: int, columns: list[str] | None) -> Any:
        """Return a row group as a table."""
        unknown = set(columns or ()) - set(self._file.schema_arrow.names)
        if missing := sorted(name for name in unknown if not self._is_field(name)):
            raise KeyError(f"{self.path} has no column {', '.join(missing)}")
        # The workers share the cores already.
        alone = this_worker() is None
        with self._naming():
            return self._file.read_row_group(group, columns=columns, use_threads=alone)

    def _is_field(self, name: str) -> bool:
        """Whether a name is that of a field in a column, however deep: ``"position.x"``."""
        schema, columns = self._file.schema, self._file.schema_arrow.names
        if not any(name.startswith(f"{column}.") for column in columns):
            return False
        paths = (schema.column(number).path for number in range(len(schema)))
        return any(f"{path}.".startswith(f"{name}.") for path in paths)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            error.add_note(f"while reading {self.path}")
            raise


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise ImportError(
            "load_parquet needs pyarrow; install it with: pip install 'asyncloader[arrow]'"
        ) from None
    return pyarrow.parquet
