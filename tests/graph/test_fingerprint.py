"""What a graph is made of, as plain data."""

from __future__ import annotations

import functools
import json
import math
import pathlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.graph import (
    apply_sharding,
    copy_graph,
    differences,
    edges_of,
    fingerprint,
    read_without_fork,
)


class Colour(Enum):
    RED = 1


class Setting(IterDataPipe[Any]):
    def __init__(self, source: Any, setting: Any) -> None:
        self.source = source
        self._setting = setting


class Scaler:
    def __call__(self, number: int) -> int:
        return number

    def scaled(self, number: int) -> int:
        return number


def a_graph(rows: Any = (1, 2), size: int = 2, function: Any = str) -> Any:
    return IterableWrapper(rows).shuffle(buffer_size=9).sharding_filter().map(function).batch(size)


def test_it_is_plain_data_with_classes_edges_and_settings() -> None:
    found = fingerprint(a_graph())
    assert json.loads(json.dumps(found)) == found
    assert [entry["reads"] for entry in found] == [[1], [2], [3], [4], []]
    assert found[0]["class"] == "asyncloader.Batcher"
    assert found[0]["settings"]["batch_size"] == 2
    settings = found[1]["settings"]
    assert settings.items() >= {"fn": "builtins.str", "input_col": None, "output_col": None}.items()
    assert found[-1] == {
        "class": "asyncloader.IterableWrapper",
        "reads": [],
        "settings": {"deepcopy": True, "shards_itself": False},
    }


@pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])
def test_data_seeds_and_shards_are_no_part_of_it(wrap: Any) -> None:
    def graph(rows: Any) -> Any:
        return wrap(rows).shuffle().sharding_filter().map(str)

    one, other = graph([1, 2]), graph(list(range(1000)))
    apply_sharding(other, 4, 3)
    edges_of(edges_of(other)[0])[0].set_seed(5)
    assert differences(fingerprint(one), fingerprint(other)) == []
    assert fingerprint(copy_graph(one)) == fingerprint(one)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (b"a", b"a"),
        (SHARDING_PRIORITIES.DISTRIBUTED, 2),
        (Colour.RED, f"{__name__}.Colour.RED"),
        (pathlib.Path("/data"), "/data"),
        ([0, ("a", None)], [0, ["a", None]]),
        ({"a": [1]}, [["a", [1]]]),
        (len, "builtins.len"),
        (Scaler, f"{__name__}.Scaler"),
        (Scaler().scaled, f"{__name__}.Scaler.scaled"),
        (Scaler(), f"an instance of {__name__}.Scaler"),
        (functools.partial(int, base=2), "partial of builtins.int with ['base', 2]"),
    ],
)
def test_settings_are_told_as_plain_data(value: Any, plain: Any) -> None:
    (found, _) = fingerprint(Setting(IterableWrapper([1]), value))
    assert found["settings"] == {"setting": plain}


@pytest.mark.parametrize("value", [object(), [object()], "a" * 1000, [0] * 1000, {1, 2}])
def test_what_is_no_plain_setting_is_left_out(value: Any) -> None:
    (found, _) = fingerprint(Setting(IterableWrapper([1]), value))
    assert found["settings"] == {}


def test_weights_of_pipes_name_the_pipes_by_place() -> None:
    source = IterableWrapper([1])
    found = fingerprint(Setting(source, {source: 0.5}))
    assert found[0]["settings"] == {"setting": [["pipe 1", 0.5]]}


def test_differences_are_sentences() -> None:
    one = fingerprint(a_graph())
    assert differences(one, fingerprint(a_graph(size=3))) == [
        "batch_size of Batcher was 2 and is 3"
    ]
    assert differences(one, fingerprint(a_graph(function=repr))) == [
        "fn of Mapper was 'builtins.str' and is 'builtins.repr'"
    ]
    assert differences(one, fingerprint(a_graph().map(len))) == ["Mapper is new"]
    without = IterableWrapper([1]).shuffle(buffer_size=9).map(str).batch(2)
    assert differences(one, fingerprint(without)) == ["ShardingFilter is gone"]
    unrepeatable = fingerprint(IterableWrapper([1]).map(str, repeatable=False))
    assert differences(fingerprint(IterableWrapper([1]).map(str)), unrepeatable) == [
        "repeatable of Mapper was True and is False"
    ]
    quiet = a_graph()
    edges_of(edges_of(edges_of(quiet)[0])[0])[0].set_shuffle(False)
    assert differences(one, fingerprint(quiet)) == ["shuffles of Shuffler was True and is False"]


def test_differing_edges_are_named() -> None:
    def graph(reader: int) -> Any:
        branches = IterableWrapper([1]).fork(2)
        others = IterableWrapper([1]).fork(2)
        ends = [*branches, *others]
        return ends[0].zip(ends[2], ends[reader].map(str))

    sentences = differences(fingerprint(graph(1)), fingerprint(graph(3)))
    assert sentences == [
        "Branch read ForkSplitter (pipe 4) and reads ForkSplitter (pipe 5)",
    ]


@pytest.mark.parametrize(
    "hostile",
    [
        None,
        1,
        [1],
        [{}],
        {"class": "a"},
        [{"class": 1, "reads": [], "settings": {}}],
        [{"class": "a", "reads": [1], "settings": {}}],
        [{"class": "a", "reads": ["0"], "settings": {}}],
        [{"class": "a", "reads": [], "settings": {1: 2}}],
    ],
)
def test_what_is_no_fingerprint_is_told_so(hostile: Any) -> None:
    assert differences(hostile, fingerprint(a_graph())) == [
        "one of them is not a fingerprint of a graph"
    ]


def test_pipes_that_are_read_twice_without_a_fork_are_found() -> None:
    shared = IterableWrapper([1])
    assert read_without_fork(shared.map(str).zip(shared.map(len))) == [shared]
    left, right = shared.fork(2)
    assert read_without_fork(left.zip(right)) == []


def test_a_pipe_that_one_other_reads_twice_at_once_is_found() -> None:
    shared = IterableWrapper([1])
    assert read_without_fork(shared.zip(shared)) == [shared]
    assert read_without_fork(shared.mux(IterableWrapper([2]), shared).batch(2)) == [shared]
    assert read_without_fork(shared.zip_with_iter(shared, hash)) == [shared]


def test_a_pipe_may_be_read_twice_in_turn_or_by_what_is_run_again() -> None:
    shared = IterableWrapper([1])
    assert read_without_fork(shared.concat(shared)) == []
    assert read_without_fork(Pairs(shared)) == []


class Pairs(IterDataPipe[Any]):
    """A user's pipe, which knows its source by two names."""

    def __init__(self, source: Any) -> None:
        self.source = self.wrapped = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, item


def test_a_setting_that_does_not_equal_itself_is_the_same_again() -> None:
    once, again = (fingerprint(Setting(IterableWrapper([1]), [1.5, math.nan])) for _ in range(2))
    assert differences(once, again) == []
    assert json.loads(json.dumps(once)) == again
