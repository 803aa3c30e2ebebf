"""Tables in Parquet files.

This file is about load_parquet, which reads a file by row groups and needs pyarrow
(the extra ``[arrow]``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from asyncloader.datapipes.files.limits import MAX_GROUP_BYTES, checked_limit
from asyncloader.datapipes.files.streams import close_stream, path_and_stream
from asyncloader.datapipes.patterns.expanding import TolerantExpander
from asyncloader.datapipes.pipe.arguments import checked_names
from asyncloader.datapipes.pipe.base import functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError
from asyncloader.errors import ResourceExhausted
from asyncloader.worker_info import this_worker


@functional_datapipe("load_parquet")
class ParquetLoader(TolerantExpander[Any]):
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

    def parts(self, item: Any, skip: int = 0) -> Generator[Any, None, None]:
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
                f" max_group_bytes={max_bytes}; if the file is to be trusted, pass a larger"
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
