"""A graph for the eye."""

from __future__ import annotations

import pickle

import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.graph import cut_graph, to_dot, to_mermaid, to_text
from asyncloader.graph.cut import places_of
from asyncloader.graph.outline import nodes_of
from asyncloader.graph.walk import Graph


def test_a_chain_reads_top_down() -> None:
    end = IterableWrapper([1]).map(str).batch(2)
    assert to_text(end).splitlines() == ["IterableWrapper()", "map(str)", "batch(2)"]


def test_what_is_joined_is_indented_and_what_is_shared_is_numbered() -> None:
    left, right = IterableWrapper([1]).fork(2)
    end = left.map(str).zip(right).map(len)
    assert to_text(end).splitlines() == [
        "  - IterableWrapper()",
        "    fork(2) [1]",
        "    fork(2)[0]",
        "    map(str)",
        "  - fork(2) [1], as above",
        "    fork(2)[1]",
        "zip()",
        "map(len)",
    ]


def test_labels_stand_in_a_column() -> None:
    end = IterableWrapper([1]).map(str)
    assert to_text(end, cut_graph(end).places).splitlines() == [
        "IterableWrapper()  | workers",
        "map(str)           | workers",
    ]
    assert to_text(end, {end: "here"}).splitlines()[0] == "IterableWrapper()"


def test_mermaid_has_a_box_for_each_label() -> None:
    end = IterableWrapper([1]).map(str).map(lambda item: item)
    assert to_mermaid(end, {end.source: "workers"}).splitlines() == [
        "flowchart TD",
        '    p0["IterableWrapper()"]',
        '    p2["map(#lt;lambda#gt;)"]',
        '    subgraph s1["workers"]',
        '        p1["map(str)"]',
        "    end",
        "    p0 --> p1",
        "    p1 --> p2",
    ]


def test_dot_has_a_box_for_each_label_and_quotes_what_it_shows() -> None:
    end = IterableWrapper([1]).map(str).map(_quoting)
    assert to_dot(end, {end.source: "workers"}).splitlines() == [
        "digraph {",
        "    node [shape=box]",
        '    p0 [label="IterableWrapper()"]',
        r'    p2 [label="map(\"\\)"]',
        "    subgraph cluster1 {",
        '        label="workers"',
        '        p1 [label="map(str)"]',
        "    }",
        "    p0 -> p1",
        "    p1 -> p2",
        "}",
    ]


def _quoting(item: object) -> object:
    return item


_quoting.__qualname__ = '"\\'


def test_a_circle_is_drawn_too() -> None:
    end = IterableWrapper([1]).map(str).map(len)
    end.source.source = end
    assert to_text(end).splitlines() == ["map(len), as above", "map(str)", "map(len)"]


def test_a_pipe_with_a_long_name_stays_on_one_line() -> None:
    class Wordy(IterDataPipe[int]):
        def __repr__(self) -> str:
            return "one\n  two"

    assert to_text(Wordy().map(str)).splitlines() == ["one two", "map(str)"]


def test_torch_pipes_are_drawn() -> None:
    assert "(str)" in to_text(torch_iter.IterableWrapper([1]).map(str)).splitlines()[1]


def test_what_is_drawn_is_plain_data_that_says_who_reads_whom() -> None:
    left, right = IterableWrapper(range(4)).fork(2)
    nodes = pickle.loads(pickle.dumps(nodes_of(left.map(str).zip(right))))
    assert [(node.name, [nodes[source].name for source in node.reads]) for node in nodes] == [
        ("zip()", ["map(str)", "fork(2)[1]"]),
        ("map(str)", ["fork(2)[0]"]),
        ("fork(2)[1]", ["fork(2)"]),
        ("fork(2)[0]", ["fork(2)"]),
        ("fork(2)", ["IterableWrapper()"]),
        ("IterableWrapper()", []),
    ]
    assert {node.label for node in nodes} == {""}


def test_what_is_drawn_says_what_runs_where() -> None:
    graph = Graph(IterableWrapper(range(4)).sharding_filter().map(str).pin_memory())
    assert labels(graph, 2) == ["loader", "workers", "workers", "workers"]
    assert labels(graph, 0) == ["loader"] * 4


def labels(graph: Graph, workers: int) -> list[str]:
    return [node.label for node in nodes_of(graph, places_of(graph, workers))]


class Unnamed(IterDataPipe[int]):
    """Fails when it is to say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")


def test_a_pipe_that_cannot_say_its_name_is_drawn() -> None:
    assert to_text(Unnamed().map(str)).splitlines() == ["Unnamed()", "map(str)"]
