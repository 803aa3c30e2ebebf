"""Changing a graph in place."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from asyncloader.graph import edges_of, list_dps, remove_dp, replace_dp, to_text, traverse_dps

Pair = namedtuple("Pair", "left right")


class Holder(IterDataPipe[Any]):
    def __init__(self, held: Any) -> None:
        self.held = held


class Slotted(IterDataPipe[Any]):
    __slots__ = ("first",)

    def __init__(self, first: Any) -> None:
        self.first = first


def numbers() -> IterDataPipe[int]:
    return IterableWrapper([1, 2, 3])


def test_readers_read_the_new_pipe() -> None:
    end = numbers().map(str).map(len)
    graph = replace_dp(traverse_dps(end), end.source, IterableWrapper(["a", "bb"]))
    assert list(end) == [1, 2]
    assert graph == traverse_dps(end)


def test_a_pipe_is_put_in_between() -> None:
    end = numbers().map(lambda n: n + 1)
    source = end.source
    replace_dp(traverse_dps(end), source, source.map(lambda n: n * 10))
    assert list(end) == [11, 21, 31]


def test_a_new_end_is_returned() -> None:
    end = numbers().map(str)
    ((new, _),) = replace_dp(traverse_dps(end), end, end.map(len)).values()
    assert list(new) == [1, 1, 1]


@pytest.mark.parametrize(
    "hold",
    [
        lambda pipe: pipe,
        lambda pipe: [1, pipe],
        lambda pipe: (pipe, 1),
        lambda pipe: Pair(pipe, [pipe]),
        lambda pipe: {"a": {"b": pipe}},
        lambda pipe: OrderedDict([(pipe, 0.5), ("b", 1)]),
        lambda pipe: {pipe},
        lambda pipe: frozenset([pipe]),
        lambda pipe: [({"a": pipe},)],
    ],
)
def test_a_pipe_is_replaced_wherever_it_is_held(hold: Any) -> None:
    old, new = numbers(), numbers()
    reader = Holder(hold(old))
    replace_dp(traverse_dps(reader), old, new)
    expected = hold(new)
    assert reader.held == expected
    assert type(reader.held) is type(expected)


def test_slots_and_several_readers_are_reached() -> None:
    old, new = numbers(), numbers()
    end = Holder([Slotted(old), Mapper(old, str)])
    replace_dp(traverse_dps(end), old, new)
    assert list_dps(traverse_dps(end))[-1] is new
    assert [edges_of(reader) for reader in edges_of(end)] == [[new], [new]]


def test_declared_edges_follow() -> None:
    class Declared(Holder):
        @property
        def edges(self) -> Any:  # type: ignore[override]
            return self.held[:1]

    old, new = numbers(), numbers()
    reader = Declared([old])
    replace_dp(traverse_dps(reader), old, new)
    assert edges_of(reader) == [new]
    fixed = Holder(None)
    fixed.edges = (old,)
    replace_dp(traverse_dps(fixed), old, new)
    assert edges_of(fixed) == [new]


def test_edges_that_are_held_nowhere_cannot_be_replaced() -> None:
    old = numbers()

    class Hidden(IterDataPipe[Any]):
        @property
        def edges(self) -> Any:  # type: ignore[override]
            return (old,)

    end = Hidden()
    with pytest.raises(RuntimeError, match=r"Hidden\(\) declares that it reads IterableWrapper"):
        replace_dp(traverse_dps(end), old, numbers())


def test_torch_pipes_are_replaced_and_mixed() -> None:
    source = torch_iter.IterableWrapper([3, 1])
    end = source.map(str).batch(2)
    replace_dp(traverse_dps(end), source, numbers())
    assert list(end) == [["1", "2"], ["3"]]


def test_the_source_of_a_splitter_is_replaced_for_all_branches() -> None:
    source = numbers()
    left, right = source.fork(2)
    end = left.zip(right)
    replace_dp(traverse_dps(end), source, IterableWrapper("ab"))
    assert list(end) == [("a", "a"), ("b", "b")]


def test_a_pipe_that_is_no_part_of_the_graph_is_an_error() -> None:
    with pytest.raises(ValueError, match="no part of the graph"):
        replace_dp(traverse_dps(numbers()), numbers(), numbers())


def test_only_a_pipe_replaces_a_pipe() -> None:
    end = numbers()
    with pytest.raises(TypeError, match="got list"):
        replace_dp(traverse_dps(end), end, [1])


def test_a_removed_pipe_leaves_its_source() -> None:
    end = numbers().map(str).map(int)
    graph = remove_dp(traverse_dps(end), end.source)
    assert to_text(end) == "IterableWrapper()\nmap(int)"
    ((other, _),) = remove_dp(graph, end).values()
    assert list(other) == [1, 2, 3]


def test_what_cannot_be_removed_says_so() -> None:
    source = numbers()
    left, right = source.fork(2)
    end = left.zip(right)
    graph = traverse_dps(end)
    (splitter,) = edges_of(left)
    with pytest.raises(RuntimeError, match="is a source"):
        remove_dp(graph, source)
    with pytest.raises(RuntimeError, match="reads 2 pipes"):
        remove_dp(graph, end)
    for pipe in (left, splitter):
        with pytest.raises(RuntimeError, match="belongs to a splitter"):
            remove_dp(graph, pipe)


def test_the_branch_of_a_torch_splitter_cannot_be_removed() -> None:
    left, right = torch_iter.IterableWrapper(range(3)).fork(2)
    end = left.zip(right)
    with pytest.raises(RuntimeError, match="belongs to a splitter"):
        remove_dp(traverse_dps(end), left)
