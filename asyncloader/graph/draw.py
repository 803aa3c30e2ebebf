"""How a graph is drawn: as text, as a picture, and in the languages of drawing programs.

This file is about ``to_text`` and its like. Each makes the nodes of an outline and writes them
down, from the sources at the top to the last pipe; all take labels, such as where each pipe runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncloader.datapipes.base import show_in_notebooks
from asyncloader.graph.outline import Labels, Node, nodes_of
from asyncloader.graph.walk import Graph


def to_text(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as text, one pipe to a line, sources first.

    What a pipe reads stands above it; if it reads several, each of them is indented and
    begins with a dash. A pipe with several readers is drawn once and numbered.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> print(to_text(IterableWrapper(range(3)).map(str).map(len)))
    IterableWrapper()
    map(str)
    map(len)
    """
    lines = list(_lines(nodes_of(datapipe, labels)))
    width = max(len(text) for text, _ in lines)
    return "\n".join(f"{text:<{width}}  | {label}" if label else text for text, label in lines)


def _lines(nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a graph, sources first, each with the label of its node."""
    readers = Counter(source for node in nodes for source in node.reads)
    names = [node.name for node in nodes]
    shared = (number for number in range(len(nodes)) if readers[number] > 1)
    for count, number in enumerate(shared, 1):
        names[number] += f" [{count}]"
    drawn: set[int] = set()

    def down_to(end: int) -> Iterator[tuple[str, str]]:
        chain: list[int] = []
        sources: tuple[int, ...] = (end,)
        while len(sources) == 1 and sources[0] not in drawn:
            chain += sources
            drawn.update(sources)
            sources = nodes[sources[0]].reads
        if len(sources) == 1:
            yield f"{names[sources[0]]}, as above", nodes[sources[0]].label
        else:
            for source in sources:
                for at, (text, label) in enumerate(down_to(source)):
                    yield f"{'    ' if at else '  - '}{text}", label
        for number in reversed(chain):
            yield names[number], nodes[number].label

    return down_to(0)


def to_mermaid(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as a Mermaid flowchart, with a box around the pipes of each label.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> print(to_mermaid(IterableWrapper(range(3)).map(str)))
    flowchart TD
        p0["IterableWrapper()"]
        p1["map(str)"]
        p0 --> p1
    """
    nodes = nodes_of(datapipe, labels)
    chart = _chart(nodes, _escaped, 'p{}["{}"]', 'subgraph s{}["{}"]', "end", "p{} --> p{}")
    return "\n".join(["flowchart TD", *chart])


def to_dot(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph in Graphviz's language, with a box around the pipes of each label.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> print(to_dot(IterableWrapper(range(3)).map(str)))
    digraph {
        node [shape=box]
        p0 [label="IterableWrapper()"]
        p1 [label="map(str)"]
        p0 -> p1
    }
    """
    nodes = nodes_of(datapipe, labels)
    area = 'subgraph cluster{} {{\n        label="{}"'
    chart = _chart(nodes, _quoted, 'p{} [label="{}"]', area, "}", "p{} -> p{}")
    return "\n".join(["digraph {", "    node [shape=box]", *chart, "}"])


def _chart(
    nodes: Sequence[Node], quote: Callable[[str], str], box: str, area: str, end: str, arrow: str
) -> Iterator[str]:
    """Yield what a graph is in a language in which areas with a label are written around boxes."""
    last = len(nodes) - 1
    # Those without a label come first.
    areas: dict[str, list[str]] = {"": []}
    for number, node in enumerate(reversed(nodes)):
        areas.setdefault(node.label, []).append(box.format(number, quote(node.name)))
    for place, (label, boxes) in enumerate(areas.items()):
        if label:
            yield f"    {area.format(place, quote(label))}"
            yield from (f"        {each}" for each in boxes)
            yield f"    {end}"
        else:
            yield from (f"    {each}" for each in boxes)
    for number, node in enumerate(reversed(nodes)):
        yield from (f"    {arrow.format(last - source, number)}" for source in node.reads)


def _escaped(text: str) -> str:
    for character, code in {"#": "35", '"': "quot", "<": "lt", ">": "gt"}.items():
        text = text.replace(character, f"#{code};")
    return text


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def to_svg(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as an SVG picture, with a colour for the pipes of each label.

    The labels of ``cut_graph(graph).places`` have the same colours in every picture. A long name
    is cut in its middle; a pointer that rests on the box shows all of it. ValueError for pipes
    that read from one another in a circle.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> picture = to_svg(IterableWrapper(range(3)).map(str))
    >>> picture.count('<g class="box'), picture.count('class="arrow"')
    (2, 1)
    """
    # Few draw pictures, and every process imports this.
    from asyncloader.graph.svg import picture

    graph = Graph.of(datapipe)
    graph.sources_first()  # it names the pipes of a circle
    return picture(nodes_of(graph, labels))


def to_html(datapipe: Any, labels: Labels = ()) -> str:
    """Return the picture of ``to_svg`` for a page or a notebook, in the colours of light or dark.

    A pipe that is the last line of a notebook's cell is shown in this way.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> to_html(IterableWrapper(range(3)).map(str)).count('<g class="box')
    2
    """
    from asyncloader.graph.svg import styled

    return styled(to_svg(datapipe, labels))


show_in_notebooks(to_html)
