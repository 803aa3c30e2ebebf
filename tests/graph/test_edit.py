"""Changing and copying graphs."""

from __future__ import annotations

import random
from collections import OrderedDict, deque, namedtuple
from typing import Any

import numpy
import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import (
    apply_sharding,
    breadth_first,
    copy_graph,
    edges_of,
    list_dps,
    remove_dp,
    replace_dp,
    to_text,
    traverse_dps,
)

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


class HolderOf(IterDataPipe[Any]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Uncopyable:
    def __copy__(self) -> Any:
        raise AssertionError("data must not be copied")

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("data must not be copied")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("data must not be pickled")


def test_pipes_are_copied_and_data_is_shared() -> None:
    rows = [Uncopyable() for _ in range(3)]
    end = IterableWrapper(rows, deepcopy=False).map(str).batch(2)
    twin = copy_graph(end)
    assert to_text(twin) == to_text(end)
    assert not {id(pipe) for pipe in breadth_first(end)} & {id(p) for p in breadth_first(twin)}
    assert breadth_first(twin)[-1].iterable is rows


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: IterableWrapper(rows, deepcopy=False),
        torch_iter.IterableWrapper,
        lambda rows: HolderOf(iterable=rows),
    ],
)
def test_a_million_rows_stay_where_they_are(wrap: Any) -> None:
    rows = list(range(1_000_000))
    twin = copy_graph(wrap(rows).map(str))
    assert breadth_first(twin)[-1].iterable is rows


def test_shared_pipes_stay_shared() -> None:
    source = IterableWrapper([1, 2])
    end = source.map(str).zip(source.map(len))
    twin = copy_graph(end)
    left, right = edges_of(twin)
    assert edges_of(left)[0] is edges_of(right)[0] is not source


@pytest.mark.parametrize("wrapper", [IterableWrapper, torch_iter.IterableWrapper])
def test_branches_stay_tied_to_their_splitter(wrapper: Any) -> None:
    left, right = wrapper(range(3)).fork(2)
    end = left.zip(right)
    twin = copy_graph(end)
    one, other = edges_of(twin)
    assert edges_of(one)[0] is edges_of(other)[0] is not edges_of(left)[0]
    assert list(twin) == list(end) == [(0, 0), (1, 1), (2, 2)]


def test_a_copy_was_never_iterated() -> None:
    for wrapper in (IterableWrapper, torch_iter.IterableWrapper):
        left, right = wrapper(range(4)).shuffle().fork(2)
        end = left.zip(right)
        iterator = iter(end)
        next(iterator)
        # torch warns of a fork that was begun and is begun again.
        assert len(list(copy_graph(end))) == 4
        assert len(list(iterator)) == 3


def test_deleting_a_copy_leaves_the_original_whole() -> None:
    pipe = torch_iter.IterableWrapper(range(5)).shuffle()
    iterator = iter(pipe)
    first = next(iterator)
    copy_graph(pipe)
    assert sorted([first, *iterator]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("wrapper", [IterableWrapper, torch_iter.IterableWrapper])
def test_sharding_a_copy_leaves_the_original_alone(wrapper: Any) -> None:
    pipe = wrapper(range(4)).sharding_filter()
    twin = apply_sharding(copy_graph(pipe), 2, 1)
    again = apply_sharding(copy_graph(pipe), 2, 0)
    assert [list(each) for each in (twin, again, pipe)] == [[1, 3], [0, 2], [0, 1, 2, 3]]


def test_editing_a_copy_leaves_the_original_alone() -> None:
    source = IterableWrapper([1])
    end = HolderOf(parts=[source, {"a": (source,)}])
    twin = copy_graph(end)
    replace_dp(traverse_dps(twin), edges_of(twin)[0], IterableWrapper([2]))
    assert edges_of(end) == [source]


def test_small_containers_and_generators_are_the_copys_own() -> None:
    shared = random.Random(1)
    pipe = HolderOf(
        seen={1},
        names=["a"],
        counts={"a": [1]},
        waiting=deque([1]),
        random=shared,
        again=shared,
        numpy=numpy.random.default_rng(1),
    )
    twin = copy_graph(pipe)
    twin.seen.add(2)
    twin.names.append("b")
    twin.counts["a"].append(2)
    twin.waiting.append(2)
    assert (pipe.seen, pipe.names, pipe.counts, pipe.waiting) == (
        {1},
        ["a"],
        {"a": [1]},
        deque([1]),
    )
    assert twin.random is twin.again
    assert twin.random.random() == pipe.random.random()
    assert twin.numpy.random() == pipe.numpy.random()


def test_a_method_of_a_pipe_is_the_copys() -> None:
    class Scaler(IterDataPipe[int]):
        def __init__(self, factor: int) -> None:
            self.factor = factor
            self.function = self.scaled

        def scaled(self, number: int) -> int:
            return number * self.factor

    pipe = Scaler(2)
    twin = copy_graph(pipe)
    twin.factor = 3
    assert (pipe.function(1), twin.function(1)) == (2, 3)


def test_slots_are_copied() -> None:
    class Slotted(IterDataPipe[Any]):
        __slots__ = ("first",)

    pipe = Slotted()
    pipe.first = IterableWrapper([1])
    twin = copy_graph(pipe)
    assert list(twin.first) == [1]
    assert twin.first is not pipe.first


def test_a_pipe_may_refuse_to_be_copied_by_returning_itself() -> None:
    class Live(IterDataPipe[int]):
        def __copy__(self) -> Live:
            return self

    live = Live()
    assert edges_of(copy_graph(Mapper(live, str))) == [live]


def test_a_pipe_that_cannot_be_copied_is_named() -> None:
    class Stuck(IterDataPipe[int]):
        def __copy__(self) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        copy_graph(Stuck().map(str))
    assert caught.value.__notes__ == ["Stuck() could not be copied"]


def test_edges_that_are_held_nowhere_cannot_be_copied() -> None:
    source = IterableWrapper([1])

    class Hidden(IterDataPipe[Any]):
        @property
        def edges(self) -> Any:  # type: ignore[override]
            return (source,)

    with pytest.raises(RuntimeError, match="declares that it reads"):
        copy_graph(Hidden())


def test_map_pipes_are_copied() -> None:
    end = SequenceWrapper([1, 2]).map(str)
    twin = copy_graph(end)
    assert list(twin) == ["1", "2"]
    assert twin.source is not end.source
