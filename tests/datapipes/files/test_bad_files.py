"""Files that cannot be read to their end: raised, left out from there on, or answered for."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.errors import TooManyErrors
from asyncloader.graph import breadth_first
from tests.datapipes.files.test_archives import packed_tar, packed_zip
from tests.datapipes.resuming import assert_goes_on, cursors_along, plain, rest_of
from tests.leaks import leaves_nothing


def damaged_tar() -> bytes:
    """Return a tar of which the second header is damaged."""
    content = bytearray(packed_tar({"1": b"one", "2": b"two", "3": b"three"}))
    content[1024:1034] = b"\xff" * 10
    return bytes(content)


def read(item: tuple[str, Any]) -> Any:
    """Return what is in the stream of a pair, be it open or read already."""
    path, stream = item
    return path, stream.read() if hasattr(stream, "read") else stream


def tar(source: Any, **how: Any) -> Any:
    return source.load_from_tar(**how).map(read)


def zipped(source: Any, **how: Any) -> Any:
    return source.load_from_zip(**how).map(read)


def table() -> bytes:
    packed = io.BytesIO()
    # To make one of Python's lists imports pandas, in each process that collects this.
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n2\n")), packed)
    return packed.getvalue()


def lines(source: Any, **how: Any) -> Any:
    return source.readlines(decode=True, errors="strict", **how)


def rows(source: Any, **how: Any) -> Any:
    return source.parse_csv(strict=True, **how)


def dicts(source: Any, **how: Any) -> Any:
    return source.parse_csv_as_dict(strict=True, **how)


def hashes(source: Any, **how: Any) -> Any:
    return source.check_hash({"x": hashlib.sha256(b"x").hexdigest()}, **how).map(read)


@dataclass
class Family:
    """A pipe of files, a file it can read, and one that it cannot, after some parts."""

    pipe: Callable[..., Any]
    good: bytes
    bad: bytes
    of_good: list[Any]
    of_bad: list[Any]


FAMILIES = {
    "readlines": Family(lines, b"1\n2\n", b"3\n\xff\n4\n", [("x", "1"), ("x", "2")], [("x", "3")]),
    "parse_csv": Family(rows, b"1,2\n", b'3,4\n5,"6"7\n8,9\n', [["1", "2"]], [["3", "4"]]),
    "parse_csv_as_dict": Family(
        dicts, b"a\n1\n2\n", b'a\n3\n"4"5\n', [{"a": "1"}, {"a": "2"}], [{"a": "3"}]
    ),
    "parse_json_lines": Family(
        lambda source, **how: source.parse_json_lines(**how), b"1\n2\n", b"3\n{\n4\n", [1, 2], [3]
    ),
    "parse_json_files": Family(
        lambda source, **how: source.parse_json_files(**how), b"[1]", b"[1", [("x", [1])], []
    ),
    "load_from_tar": Family(
        tar,
        packed_tar({"1": b"one", "2": b"two"}),
        damaged_tar(),
        [("x/1", b"one"), ("x/2", b"two")],
        [("x/1", b"one")],
    ),
    "load_from_zip": Family(
        zipped, packed_zip({"1": b"one"}), b"no zip at all", [("x/1", b"one")], []
    ),
    "load_parquet": Family(
        lambda source, **how: source.load_parquet(as_rows=True, **how),
        table(),
        table()[4:],
        [{"a": 1}, {"a": 2}],
        [],
    ),
    "check_hash": Family(hashes, b"x", b"y", [("x", b"x")], []),
}
every_family = pytest.mark.parametrize("name", FAMILIES)


class Files(IterableWrapper[Any]):
    """Opens a bad file between good ones, and remembers what it opened."""

    def __init__(self, family: Family) -> None:
        super().__init__([family.good, family.bad, family.good, family.bad, family.good])
        self.opened: list[io.BytesIO] = []

    def __iter__(self) -> Any:
        for content in self.iterable:
            self.opened.append(io.BytesIO(content))
            yield "x", self.opened[-1]


def pipe_of(name: str, **how: Any) -> Any:
    family = FAMILIES[name]
    return family.pipe(Files(family), **how)


def expected_of(name: str, answer: list[Any]) -> list[Any]:
    family = FAMILIES[name]
    bad = family.of_bad + answer
    return [*family.of_good, *bad, *family.of_good, *bad, *family.of_good]


def answers_for(name: str, pipe: Any) -> Any:
    """Return the pipe that tolerates errors in a graph: what reads its streams is after it."""
    return pipe.source if name in ("load_from_tar", "load_from_zip", "check_hash") else pipe


@every_family
def test_what_follows_the_damage_is_left_out_and_counted(name: str) -> None:
    pipe = pipe_of(name, on_error="skip")
    RunTree(breadth_first(pipe))
    assert list(pipe) == expected_of(name, [])
    assert latest_pass(answers_for(name, pipe)).errors == 2


def take_into(items: list[Any], pipe: Any) -> None:
    for item in pipe:
        items += [item]


@every_family
def test_without_on_error_it_is_raised_after_what_was_before(name: str) -> None:
    items: list[Any] = []
    with pytest.raises(Exception, match="x"):
        take_into(items, pipe_of(name))
    assert items == FAMILIES[name].of_good + FAMILIES[name].of_bad


@every_family
def test_a_function_answers_for_the_rest(name: str) -> None:
    seen = []

    def answer(error: Exception, item: Any) -> Any:
        seen.append((error, item[0]))
        one = ("x", b"?")
        return one if name in ("parse_json_files", "check_hash") else [one, one]

    count = 1 if name in ("parse_json_files", "check_hash") else 2
    assert list(pipe_of(name, on_error=answer)) == expected_of(name, [("x", b"?")] * count)
    assert [path for _, path in seen] == ["x", "x"]
    assert all("raised in" in error.__notes__[-1] for error, _ in seen)


@every_family
def test_one_damaged_file_too_many_ends_the_pass(name: str) -> None:
    items: list[Any] = []
    with pytest.raises(TooManyErrors, match=f"{name}.* failed on 2 items"):
        take_into(items, pipe_of(name, on_error="skip", max_errors=1))
    assert items == 2 * (FAMILIES[name].of_good + FAMILIES[name].of_bad)


def two_in_place(error: Exception, item: Any) -> Any:
    return [("x", b"?"), ("x", b"!")]


@every_family
@pytest.mark.parametrize("on_error", ["skip", two_in_place])
def test_it_goes_on_exactly_and_counts_each_failure_once(name: str, on_error: Any) -> None:
    def graph() -> Any:
        return pipe_of(name, on_error=on_error, max_errors=2)

    assert_goes_on(graph, least=3)
    items, along = cursors_along(graph())
    for position, cursors in enumerate(along):
        later = graph()
        assert rest_of(later, position, plain(cursors)) == items[position:]
        assert latest_pass(answers_for(name, later)).errors == 2


@every_family
def test_no_stream_stays_open(name: str) -> None:
    pipe = pipe_of(name, on_error="skip")
    with leaves_nothing():
        list(pipe)
    source = answers_for(name, pipe).source
    # What only looks at a file hands its stream on.
    assert name == "check_hash" or all(stream.closed for stream in source.opened)


async def test_workers_count_theirs_and_the_loader_shows_them() -> None:
    graph = pipe_of("parse_json_lines", on_error="skip").sharding_filter()
    async with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        items = [item async for item in loader]
        stats = loader.stats()
    assert sorted(items) == sorted(expected_of("parse_json_lines", []))
    # Each of the two reads all files, and keeps its share of what is in them.
    assert stats.errors == 4


def test_what_cannot_tell_how_a_file_is_packed_may_leave_it_out() -> None:
    files = IterableWrapper([("a.txt", io.BytesIO(b"plain")), ("b.tar", io.BytesIO(b""))])
    pipe = files.decompress(on_error="skip")
    RunTree([pipe])
    assert [path for path, _ in pipe] == ["b.tar"]
    assert latest_pass(pipe).errors == 1
