"""Tables in Parquet files."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import FileOpener, IterableWrapper, ParquetLoader
from asyncloader.errors import ResourceExhausted
from tests.leaks import leaves_nothing

ROWS = [{"number": number, "name": f"name {number}"} for number in range(10)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of ten rows, in row groups of four."""
    made = str(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), made, row_group_size=4)
    return made


def test_each_row_group_is_a_table(path: str) -> None:
    tables = list(ParquetLoader([path]))
    assert [table.num_rows for table in tables] == [4, 4, 2]
    assert [row for table in tables for row in table.to_pylist()] == ROWS


def test_rows_are_dicts(path: str) -> None:
    assert list(ParquetLoader([path], as_rows=True)) == ROWS


def test_columns_are_chosen(path: str) -> None:
    assert list(ParquetLoader([path], ["number"], as_rows=True))[3] == {"number": 3}
    with pytest.raises(KeyError, match=r"x.parquet has no column nothing"):
        list(ParquetLoader([path], ["nothing"]))
    with pytest.raises(TypeError, match="columns must be a list of names, got the text 'number'"):
        ParquetLoader([], "number")


def test_fields_of_columns_are_chosen(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    rows = [{"at": {"x": 1, "deep": {"y": 2}}, "b.c": 3}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = ParquetLoader([path], ["at.deep", "b.c"], as_rows=True)
    assert list(found) == [{"at": {"deep": {"y": 2}}, "b.c": 3}]
    assert list(ParquetLoader([path], ["at"], as_rows=True)) == [{"at": rows[0]["at"]}]
    for missing in ("at.z", "b", "at.", "at.deep.y.z"):
        with pytest.raises(KeyError, match=f"x.parquet has no column {missing}"):
            list(ParquetLoader([path], [missing]))


def test_paths_come_along(path: str) -> None:
    ((found, _), *_) = ParquetLoader([path], return_path=True)
    assert found == path


def test_streams_are_read_and_closed(path: str) -> None:
    with leaves_nothing():
        assert list(FileOpener([path], "b").load_parquet(as_rows=True)) == ROWS
        for _ in FileOpener([path], "b").load_parquet():
            break
        for _ in ParquetLoader([path]):
            break


@pytest.mark.parametrize("as_rows", [False, True])
def test_what_was_read_is_passed_over(path: str, as_rows: bool) -> None:
    pipe = ParquetLoader([], as_rows=as_rows)
    whole = list(pipe.parts(path))
    for skip in range(len(whole) + 1):
        assert list(pipe.parts(path, skip)) == whole[skip:]


def test_a_row_group_that_is_too_large_is_not_read(path: str) -> None:
    message = r"x.parquet: row group 0 has \d+ bytes, .* pass a larger max_group_bytes"
    with pytest.raises(ResourceExhausted, match=message):
        list(ParquetLoader([path], max_group_bytes=10))


def test_what_is_no_table_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="Parquet") as caught:
        list(ParquetLoader([("x", io.BytesIO(b"secret" * 100))]))
    assert caught.value.__notes__ == ["while reading x"]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.parquet"):
        list(ParquetLoader(["nowhere.parquet"]))


async def test_tables_come_from_workers(path: str) -> None:
    graph = IterableWrapper([path]).sharding_filter().load_parquet()
    service = MultiProcessingReadingService(1)
    async with DataLoader2(graph, reading_service=service) as loader:
        tables: list[Any] = [table async for table in loader]
    assert pyarrow.concat_tables(tables).to_pylist() == ROWS


WITHOUT = """
import sys
sys.modules["pyarrow"] = None
from asyncloader.datapipes.iter import ParquetLoader
try:
    list(ParquetLoader(["x"]))
except ImportError as error:
    print(error)
"""


def test_pyarrow_is_asked_for_only_where_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.stdout == (
        "load_parquet needs pyarrow; install it with: pip install 'asyncloader[arrow]'\n"
    ), done.stderr
