"""What holds for every graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch.utils.data.datapipes.iter as torch_iter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running.traits import is_splitter
from asyncloader.graph import (
    breadth_first,
    copy_graph,
    cut_graph,
    differences,
    edges_of,
    fingerprint,
    list_dps,
    remove_dp,
    replace_dp,
    to_mermaid,
    to_text,
    traverse_dps,
)

#: The same graphs in every run; a busy machine is no failure.
every_time = settings(max_examples=100, deadline=None, derandomize=True)


class Joined(IterDataPipe[Any]):
    """Reads any pipes, held in one shape or another; may run once only."""

    def __init__(self, pipes: list[Any], shape: str, once: bool) -> None:
        self.held = {
            "list": list,
            "tuple": tuple,
            "dict": lambda each: {str(number): pipe for number, pipe in enumerate(each)},
            "nested": lambda each: [[pipe] for pipe in each],
        }[shape](pipes)
        self.once = once

    def __iter__(self) -> Iterator[Any]:
        return zip(*edges_of(self), strict=False)

    def is_replicable(self) -> bool:
        return not self.once


@st.composite
def graphs(
    draw: st.DrawFn, wrappers: Sequence[Any] = (IterableWrapper, torch_iter.IterableWrapper)
) -> Any:
    """Draw a graph of our pipes and torch's, with joins, shared pipes and splitters."""
    pipes: list[Any] = [draw(st.sampled_from(wrappers))([1, 2, 3])]
    for _ in range(draw(st.integers(0, 8))):
        source = draw(st.sampled_from(pipes))
        match draw(st.sampled_from(["source", "map", "shard", "deal", "fork", "join"])):
            case "source":
                pipes.append(IterableWrapper([4, 5, 6]))
            case "map":
                pipes.append(source.map(str))
            case "shard":
                pipes.append(source.sharding_filter())
            case "deal" if isinstance(source, IterDataPipe):
                pipes.append(source.sharding_round_robin_dispatch(3))
            case "fork":
                pipes.extend(source.fork(2))
            case _:
                chosen = draw(st.lists(st.sampled_from(pipes), min_size=1, max_size=3))
                shape = draw(st.sampled_from(["list", "tuple", "dict", "nested"]))
                pipes.append(Joined(chosen, shape, draw(st.booleans())))
    return Joined(pipes[-3:], "tuple", draw(st.booleans()))


def shape_of(end: Any) -> list[tuple[type, list[int]]]:
    place = {id(pipe): number for number, pipe in enumerate(breadth_first(end))}
    return [(type(p), [place[id(edge)] for edge in edges_of(p)]) for p in breadth_first(end)]


@every_time
@given(graphs())
def test_pipes_are_listed_once_in_the_order_of_a_queue(end: Any) -> None:
    seen, queue = [], deque([end])
    while queue:
        pipe = queue.popleft()
        if not any(pipe is other for other in seen):
            seen.append(pipe)
            queue.extend(edges_of(pipe))
    assert list(map(id, seen)) == list(map(id, breadth_first(end)))
    assert list(map(id, seen)) == list(map(id, list_dps(traverse_dps(end))))


@every_time
@given(graphs(), st.data())
def test_a_copy_has_the_shape_and_no_pipe_of_the_original(end: Any, data: st.DataObject) -> None:
    before, pipes = shape_of(end), breadth_first(end)
    twin = copy_graph(end)
    assert shape_of(twin) == before
    assert not {id(pipe) for pipe in pipes} & {id(pipe) for pipe in breadth_first(twin)}
    assert differences(fingerprint(end), fingerprint(twin)) == []

    chosen = data.draw(st.sampled_from(breadth_first(twin)))
    replace_dp(traverse_dps(twin), chosen, IterableWrapper([2]))
    assert shape_of(end) == before
    assert list(map(id, breadth_first(end))) == list(map(id, pipes))


@every_time
@given(graphs(), st.data())
def test_what_was_replaced_is_gone_and_the_new_pipe_is_in_its_place(
    end: Any, data: st.DataObject
) -> None:
    old, new = data.draw(st.sampled_from(breadth_first(end))), IterableWrapper([2])
    expected = [
        [id(new) if edge is old else id(edge) for edge in edges_of(pipe)]
        for pipe in breadth_first(end)
    ]
    pipes = breadth_first(end)
    graph = replace_dp(traverse_dps(end), old, new)
    assert [[id(edge) for edge in edges_of(pipe)] for pipe in pipes] == expected
    assert not any(pipe is old for pipe in list_dps(graph))
    assert any(pipe is new for pipe in list_dps(graph))


@every_time
@given(graphs(), st.data())
def test_removing_leaves_every_other_pipe_or_changes_nothing(end: Any, data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(breadth_first(end)))
    before = [id(pipe) for pipe in breadth_first(end)]
    try:
        graph = remove_dp(traverse_dps(end), chosen)
    except RuntimeError:
        assert [id(pipe) for pipe in breadth_first(end)] == before
    else:
        assert {id(pipe) for pipe in list_dps(graph)} == set(before) - {id(chosen)}


@every_time
@given(graphs())
def test_a_cut_never_divides_what_shares_a_pass(end: Any) -> None:
    cut = cut_graph(end)
    pipes = breadth_first(end)
    place = {id(pipe): where for pipe, where in cut.places}
    ends = {id(part.end) for part in cut.parts}
    crossing = ends | {id(pipe) for part in cut.parts for pipe in part.inlets}
    assert list(map(id, pipes)) == list(place)
    for pipe in pipes:
        readers = [reader for reader in pipes if any(edge is pipe for edge in edges_of(reader))]
        if any(place[id(reader)] != place[id(pipe)] for reader in readers):
            assert id(pipe) in crossing
            assert len(readers) == 1
            assert not is_splitter(pipe)
        if is_once(pipe):
            assert place[id(pipe)] != "workers"
    for part in cut.parts:
        inside = {id(pipe) for pipe in part.pipes}
        assert all(
            id(edge) in inside or any(edge is inlet for inlet in part.inlets)
            for pipe in part.pipes
            for edge in edges_of(pipe)
        )


@every_time
@given(graphs(wrappers=[IterableWrapper]))
def test_a_cut_graph_yields_what_the_whole_does(end: Any) -> None:
    try:
        expected = list(copy_graph(end))
    except RuntimeError:
        assume(False)  # two passes over one splitter: no graph that could be run at all
    assert run_in_parts(copy_graph(end)) == expected


def run_in_parts(end: Any) -> list[Any]:
    """Run what goes to each process by itself, and send the items on as lists."""
    cut = cut_graph(end)
    crossings = [] if cut.dispatch is None else [cut.dispatch]
    crossings += [part.end for part in cut.parts if part.pipes]
    for pipe in crossings:
        received = IterableWrapper(list(pipe))
        ((end, _),) = replace_dp(traverse_dps(end), pipe, received).values()
    return list(end)


def is_once(pipe: Any) -> bool:
    return isinstance(pipe, Joined) and pipe.once


@every_time
@given(graphs())
def test_every_pipe_is_drawn_once(end: Any) -> None:
    pipes, labels = breadth_first(end), cut_graph(end).places
    drawn = [line for line in to_text(end, labels).splitlines() if ", as above" not in line]
    assert len(drawn) == len(pipes)
    assert to_mermaid(end, labels).count('["') - to_mermaid(end, labels).count("subgraph") == len(
        pipes
    )
