"""Finding the pipes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch.utils.data.datapipes.iter as torch_iter
import torch.utils.data.graph as torch_graph

from asyncloader.datapipes.edges import MAX_ELEMENTS
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import (
    DataPipe,
    DataPipeGraph,
    breadth_first,
    edges_of,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    traverse_dps,
)


class Holder(IterDataPipe[Any]):
    """Holds anything in one attribute."""

    def __init__(self, held: Any) -> None:
        self.held = held


class Slotted(IterDataPipe[Any]):
    __slots__ = ("__hidden", "first")

    def __init__(self, first: Any, hidden: Any) -> None:
        self.first = first
        self.__hidden = hidden


class Touched:
    """Data that notices being looked into."""

    def __init__(self) -> None:
        self.touches = 0

    def __iter__(self) -> Any:
        self.touches += 1
        return iter(())

    def __len__(self) -> int:
        self.touches += 1
        return 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("data must not be pickled")


def a_pipe() -> IterDataPipe[int]:
    return IterableWrapper([1, 2, 3])


def test_a_chain_is_nested_from_its_end() -> None:
    source = a_pipe()
    middle = source.map(str)
    end = middle.map(len)
    assert traverse_dps(end) == {id(end): (end, {id(middle): (middle, {id(source): (source, {})})})}


def test_a_shared_pipe_appears_under_each_reader() -> None:
    source = a_pipe()
    left, right = source.map(str), source.map(len)
    end = left.zip(right)
    ((_, below),) = traverse_dps(end).values()
    assert [list(entry[1]) for entry in below.values()] == [[id(source)], [id(source)]]


def test_pipes_are_listed_breadth_first_and_once() -> None:
    source = a_pipe()
    left, right = source.fork(2)
    mapped = left.map(str)
    end = mapped.zip(right)
    (splitter,) = edges_of(right)
    assert list_dps(traverse_dps(end)) == [end, mapped, right, left, splitter, source]
    assert breadth_first(end) == list_dps(traverse_dps(end))


def test_excluded_pipes_are_left_out_with_all_they_read() -> None:
    source = a_pipe()
    shared = source.map(str)
    end = shared.map(len)
    assert list_dps(traverse_dps(end), exclude_dps=shared) == [end]
    assert list_dps(traverse_dps(end), exclude_dps=[source]) == [end, shared]


def test_pipes_are_found_by_type_and_derived_type() -> None:
    class Doubler(Mapper[Any]):
        pass

    source = a_pipe()
    end = Doubler(source.map(str), len)
    assert find_dps(traverse_dps(end), Mapper) == [end, end.source]
    assert find_dps(traverse_dps(end), IterableWrapper) == [source]


@pytest.mark.parametrize(
    "hold",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, [b]),
        lambda a, b: {"first": a, "second": (b,)},
        lambda a, b: {a: 0.5, b: 0.5},
        lambda a, b: [[[a], [b]]],
        lambda a, b: [a, *range(5), b],
        lambda a, b: [a] * (MAX_ELEMENTS + 1) + [b],
    ],
)
def test_pipes_are_found_in_containers_in_their_order(hold: Any) -> None:
    first, second = a_pipe(), a_pipe()
    assert edges_of(Holder(hold(first, second))) == [first, second]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_pipes_in_a_set_have_an_order_that_does_not_depend_on_addresses(kind: Any) -> None:
    pipes = [a_pipe().map(function) for function in (str, len, abs, repr)]
    names = [repr(pipe) for pipe in edges_of(Holder(kind(pipes)))]
    assert names == ["map(abs)", "map(len)", "map(repr)", "map(str)"]


@pytest.mark.parametrize(
    "hold",
    [
        lambda pipe: [[[[pipe]]]],
        lambda pipe: [0] * MAX_ELEMENTS + [pipe],
        lambda pipe: [[0] * 1000, [0] * 30 + [pipe]],
        lambda pipe: iter([pipe]),
        lambda pipe: lambda: pipe,
    ],
)
def test_what_is_too_deep_or_too_long_is_data(hold: Any) -> None:
    assert edges_of(Holder(hold(a_pipe()))) == []


def test_pipes_in_slots_are_found() -> None:
    first, second = a_pipe(), a_pipe()
    assert edges_of(Slotted(first, second)) == [second, first]


def test_declared_edges_are_believed() -> None:
    class Declared(Holder):
        @property
        def edges(self) -> Any:  # type: ignore[override]
            return (self.held[0],)

    first, second = a_pipe(), a_pipe()
    assert edges_of(Declared([first, second])) == [first]
    assert edges_of(IterableWrapper([first, second])) == []


def test_edges_that_are_no_pipes_are_a_type_error() -> None:
    pipe = Holder(None)
    for data in ([(0, 1), (1, 2)], 12):
        pipe.edges = data
        with pytest.raises(TypeError, match="edges of Holder must be the pipes"):
            edges_of(pipe)


def test_edges_mean_nothing_special_in_a_pipe_of_torch() -> None:
    class Network(torch_iter.IterableWrapper):  # type: ignore[misc]
        edges = ((0, 1), (1, 2))

    assert edges_of(Network([1])) == []


def test_a_pipe_that_is_iterated_has_the_same_edges() -> None:
    source = a_pipe()
    pipe = source.shuffle()
    next(iter(pipe))
    assert edges_of(pipe) == [source]


def test_a_circle_ends() -> None:
    first = Holder(None)
    second = Holder(first)
    first.held = second
    assert list_dps(traverse_dps(first)) == [first, second]
    assert edges_of(Holder([first, first])) == [first]


def test_a_deep_graph_is_no_recursion() -> None:
    end: Any = a_pipe()
    for _ in range(5000):
        end = Mapper(end, str)
    assert len(list_dps(traverse_dps(end))) == 5001


def test_a_ladder_of_diamonds_is_walked_once() -> None:
    end: Any = a_pipe()
    for _ in range(60):  # 2**60 paths
        end = Holder((Holder(end), Holder(end)))
    assert len(list_dps(traverse_dps(end))) == 181


def test_data_is_neither_iterated_nor_pickled_nor_measured() -> None:
    data = Touched()
    end = Holder([data, IterableWrapper(data, deepcopy=False).map(str)])
    assert len(breadth_first(end)) == 3
    assert data.touches == 0


def test_a_million_rows_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncloader.datapipes import edges

    looked_at = []
    original = edges.is_pipe
    monkeypatch.setattr(edges, "is_pipe", lambda value: looked_at.append(1) or original(value))
    row = {"path": "a", "label": 1}
    for rows in (
        [row] * 1_000_000,
        dict.fromkeys(range(1_000_000), row),
        [[row] * 1000] * 1000,
        [[[row] * 100] * 100] * 100,
    ):
        looked_at.clear()
        traverse_dps(Mapper(Holder(rows), str))
        assert len(looked_at) < 2 * MAX_ELEMENTS


def test_only_pipes_have_a_graph() -> None:
    with pytest.raises(TypeError, match="must end in a pipe, got list"):
        traverse_dps([1, 2])
    with pytest.raises(TypeError, match="got the class IterableWrapper"):
        traverse_dps(IterableWrapper)


def test_the_types_of_pipes_and_graphs_go_into_unions_as_those_of_torchdata_do() -> None:
    for name in (DataPipe, DataPipeGraph):
        assert type(None) in get_args(name | None)


def test_only_a_graph_is_listed_and_changed() -> None:
    end = IterableWrapper([1]).map(str)
    uses: list[Callable[[Any], Any]] = [
        list_dps,
        lambda graph: find_dps(graph, IterableWrapper),
        lambda graph: replace_dp(graph, end, end),
        lambda graph: remove_dp(graph, end),
    ]
    for use in uses:
        with pytest.raises(TypeError, match="a graph is what traverse_dps returns, got Mapper"):
            use(end)


def test_map_pipes_are_nodes_too() -> None:
    source = SequenceWrapper("abc")
    end = source.map(str).to_iter_datapipe()
    assert [type(pipe).__name__ for pipe in breadth_first(end)][-1] == "SequenceWrapper"
    assert len(breadth_first(end)) == 3


# torch's pipes ----------------------------------------------------------------------------


def torch_graphs() -> list[Any]:
    source = torch_iter.IterableWrapper(range(8))
    left, right = torch_iter.IterableWrapper(range(8)).fork(2)
    one, other = torch_iter.IterableWrapper(range(8)).demux(2, classifier_fn=bool)
    return [
        source,
        source.map(str).shuffle().sharding_filter().batch(2),
        left.map(str).zip(right.shuffle()),
        one.concat(other.map(str), source.map(len)),
        source.map(str).zip(source.map(len)).mux(left, right),
    ]


@pytest.mark.parametrize("end", torch_graphs())
def test_torch_graphs_are_seen_as_torch_sees_them(end: Any) -> None:
    def flat(graph: Any) -> set[tuple[int, int]]:
        return {
            edge
            for key, (_, below) in graph.items()
            for edge in {(key, other) for other in below} | flat(below)
        }

    ours, theirs = traverse_dps(end), torch_graph.traverse_dps(end)
    assert flat(ours) == flat(theirs)
    assert list_dps(ours) == list_dps(theirs)


def test_torch_pipes_and_ours_mix() -> None:
    source = torch_iter.IterableWrapper(range(4))
    mapped = Mapper(source, str)
    end = torch_iter.Batcher(mapped, 2)
    assert breadth_first(end) == [end, mapped, source]


def test_an_iterated_torch_graph_keeps_its_edges() -> None:
    left, right = torch_iter.IterableWrapper(range(4)).fork(2)
    end = left.zip(right.shuffle())
    before = breadth_first(end)
    next(iter(end))
    assert breadth_first(end) == before
