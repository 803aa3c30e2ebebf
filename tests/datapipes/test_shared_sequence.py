"""SharedSequence: rows packed once, and read wherever they are wanted."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import random
import threading
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper, SharedSequence
from asyncloader.errors import WorkerDied
from asyncloader.graph import copy_graph
from tests.eyes import PROC
from tests.leaks import leaves_nothing
from tests.processes.scripts import run_script

METHODS = [None, "fork", "spawn", "forkserver"]

Pair = namedtuple("Pair", "left right")


@dataclass
class Point:
    x: int


class Text(str):
    pass


ODD_ROWS: list[Any] = [
    None,
    3,
    -(10**30),
    "text",
    b"bytes",
    (),
    {},
    {"a": 1},
    {"b": 1, "a": 2},
    {"a": 2, "b": 1},
    {1: "one"},
    {True: "yes"},
    {Text("a"): 1},
    {"nested": {"a": [1, {"b": (2,)}]}},
    Pair(1, 2),
    Point(3),
    {"point": Point(4)},
    date(2020, 1, 2),
    "x" * 200_000,
    {"large": b"x" * 200_000, "small": 1},
    frozenset({1, 2}),
    float("inf"),
]


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"path": f"/data/{n:06}.jpg", "label": n % 10} for n in range(count)]


@pytest.mark.parametrize("row", ODD_ROWS, ids=lambda row: repr(row)[:20])
def test_a_row_comes_back_as_it_was(row):
    found = SharedSequence([1, row, 2])[1]
    assert found == row
    assert type(found) is type(row)


def test_keys_come_back_in_their_order_and_of_their_type():
    rows = SharedSequence(ODD_ROWS)
    for found, row in zip(rows, ODD_ROWS, strict=True):
        if isinstance(row, dict):
            assert list(found) == list(row)
            assert [*map(type, found)] == [*map(type, row)]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=5,
)


@given(st.lists(PLAIN))
def test_any_plain_rows_come_back(rows):
    shared = SharedSequence(rows)
    assert list(shared) == rows
    assert [shared[-1 - n] for n in range(len(rows))] == rows[::-1]


def test_more_shapes_of_dicts_than_have_numbers():
    rows = [{f"key{n}": n, "same": 0} for n in range(600)]
    assert list(SharedSequence(rows)) == rows


def test_arrays_and_what_a_script_defines():
    def local(number):
        return number + 1

    rows = SharedSequence([numpy.arange(3), local, lambda: 7, {"f": local}])
    assert rows[0].tolist() == [0, 1, 2]
    assert rows[1](1) == 2
    assert rows[2]() == 7
    assert rows[3]["f"] is local


def test_indices_are_those_of_a_list():
    rows = rows_of(10)
    shared = SharedSequence(rows)
    for index in range(-10, 10):
        assert shared[index] == rows[index]
    for key in (slice(None), slice(2, 5), slice(None, None, -3), slice(8, 100)):
        assert shared[key] == rows[key]
    assert shared[numpy.int64(3)] == rows[3]
    for index in (10, -11):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 10 rows"):
            shared[index]
    with pytest.raises(TypeError):
        shared["a"]


def test_there_may_be_no_rows():
    shared: SharedSequence[Any] = SharedSequence([])
    assert (len(shared), list(shared), shared[:]) == (0, [], [])
    with pytest.raises(IndexError, match="out of range for 0 rows"):
        shared[0]


def test_every_lookup_makes_a_new_row():
    shared = SharedSequence(rows_of(3))
    shared[0]["label"] = 99
    assert shared[0] == rows_of(1)[0]


def test_rows_are_taken_one_at_a_time():
    class Row:
        alive = 0

        def __init__(self):
            Row.alive += 1

        def __reduce__(self):
            return int, (Row.alive,)

        def __del__(self):
            Row.alive -= 1

    assert max(SharedSequence(Row() for _ in range(10))) <= 2


@pytest.mark.parametrize("wrong", [3, None])
def test_rows_must_be_iterable(wrong):
    with pytest.raises(TypeError, match="rows must be iterable"):
        SharedSequence(wrong)


@pytest.mark.parametrize("pipe", [IterableWrapper([1]), SequenceWrapper([1])])
def test_a_pipe_is_no_rows(pipe):
    with pytest.raises(TypeError, match="is a pipe, not rows"):
        SharedSequence(pipe)


def test_a_row_that_cannot_be_packed_is_named():
    with leaves_nothing(), pytest.raises(TypeError, match="cannot pickle") as caught:
        SharedSequence([1, 2, threading.Lock()])
    assert caught.value.__notes__ == ["row 2 of a SharedSequence, lock, must pickle"]


def test_alike_rows_share_their_keys():
    rows = rows_of(1000)
    pickled = sum(len(pickle.dumps(row, protocol=5)) for row in rows)
    assert len(SharedSequence(rows)._bytes.view) < 0.75 * pickled


# Copies ---------------------------------------------------------------------------------


def test_copies_within_a_process_share_the_buffer():
    shared = SharedSequence(rows_of(10))
    for twin in (copy.copy(shared), copy.deepcopy(shared), copy_graph(shared)):
        assert twin is not shared
        assert twin._bytes is shared._bytes
        assert list(twin) == rows_of(10)


def test_a_pickle_carries_the_rows():
    data = cloudpickle.dumps(SharedSequence(rows_of(10)))
    assert list(pickle.loads(data)) == rows_of(10)


def test_the_buffer_is_freed_with_the_last_copy():
    with leaves_nothing():
        shared = SharedSequence(rows_of(1000))
        twin = copy.deepcopy(shared)
        del shared
        assert twin[5] == rows_of(6)[5]
        del twin


# Workers --------------------------------------------------------------------------------


def buffer_of(row: Any) -> tuple[Any, list[int]]:
    """Return a row, and the inodes of the memory that this process only reads."""
    with open(f"{PROC}/self/maps") as maps:
        lines = [line.split() for line in maps if "/memfd:asyncloader" in line]
    return row, [int(inode) for _, access, _, _, inode, *_ in lines if access == "r--s"]


def begin_the_method(method: str | None) -> None:
    """Start what a start method keeps for the next time: a template, a tracker."""
    with DataLoader2(
        IterableWrapper([1]), None, MultiProcessingReadingService(1, method)
    ) as loader:
        assert list(loader) == [1]


def inode_of(shared: SharedSequence[Any]) -> int:
    fd = shared._bytes.duplicate_fd()
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_workers_read_the_very_memory(method):
    rows = rows_of(200)
    begin_the_method(method)
    with leaves_nothing():
        shared = SharedSequence(rows)
        graph = shared.to_iter_datapipe().shuffle().sharding_filter().map(buffer_of)
        loader = DataLoader2(graph, None, MultiProcessingReadingService(2, method))
        with loader:
            found = list(loader)
            assert sorted(row["path"] for row, _ in found) == [row["path"] for row in rows]
            assert {inode_of(shared)} == {inode for _, inodes in found for inode in inodes}
        del loader, graph, shared


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_the_dispatching_process_reads_it_too(method):
    begin_the_method(method)
    with leaves_nothing():
        shared, other = SharedSequence(rows_of(20)), SharedSequence("abc")
        graph = (
            shared.to_iter_datapipe()
            .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
            .map(functools.partial(with_letter, other))
        )
        loader = DataLoader2(graph, None, MultiProcessingReadingService(2, method))
        with loader:
            expected = [(row["path"], "abc"[row["label"] % 3]) for row in rows_of(20)]
            assert list(loader) == expected
        del loader, graph, shared, other


def with_letter(letters: SharedSequence[str], row: Any) -> tuple[str, str]:
    return row["path"], letters[row["label"] % 3]


async def test_workers_that_start_again_get_it_again(tmp_path):
    shared = SharedSequence(range(100))
    graph = shared.to_iter_datapipe().sharding_filter().map(ends_once(13, tmp_path / "ended"))
    async with DataLoader2(graph, None, MultiProcessingReadingService(2)) as loader:
        with pytest.raises(WorkerDied):
            [item async for item in loader]
        assert [item async for item in loader] == list(range(100))


def ends_once(number: int, flag: Path) -> Any:
    def end(item: int) -> int:
        if item == number and not flag.exists():
            flag.touch()
            os._exit(3)
        return item

    return end


SCRIPT = """
from dataclasses import dataclass
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.map import SharedSequence

@dataclass
class Point:
    x: int

if __name__ == "__main__":
    rows = SharedSequence([Point(1), {{"p": Point(2)}}, Point, lambda point: point.x])
    graph = rows.to_iter_datapipe().sharding_filter()
    with DataLoader2(graph, None, MultiProcessingReadingService(2, {method!r})) as loader:
        one, two, kind, function = loader
    assert type(one) is type(two["p"]) is kind is Point, (one, two, kind)
    print(one.x, two["p"].x, function(one))
"""


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_scripts_own_classes(method, tmp_path):
    done = run_script(tmp_path, SCRIPT.format(method=method))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 2 1\n", "")


def test_a_snapshot_of_the_graph_carries_the_rows():
    graph = SharedSequence(rows_of(10)).shuffle()
    twin = pickle.loads(cloudpickle.dumps(graph))
    assert sorted(row["path"] for row in twin) == [row["path"] for row in rows_of(10)]


def test_any_order_is_as_good_as_another():
    rows = rows_of(5000)
    shared = SharedSequence(rows)
    for index in random.Random(1).sample(range(5000), 500):
        assert shared[index] == rows[index]
