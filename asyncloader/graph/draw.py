"""A graph as text and in the languages of drawing programs.

This file is about ``to_text``, ``to_mermaid``, ``to_dot`` and ``to_svg``. All read from the
sources at the top down to the last pipe, and all take labels, such as where each pipe runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncloader.datapipes.base import DataPipe
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.graph.walk import Graph

#: A label for each pipe, as a mapping or as pairs.
Labels = Mapping[Any, str] | Sequence[tuple[Any, str]]


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
    lines = _lines(Graph.of(datapipe))
    label_of = by_id(labels)
    width = max(len(text) for text, _ in lines)
    labelled = ((text, label_of.get(id(pipe), "")) for text, pipe in lines)
    return "\n".join(f"{text:<{width}}  | {label}" if label else text for text, label in labelled)


def to_mermaid(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as a Mermaid flowchart, with a box around the pipes of each label.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> print(to_mermaid(IterableWrapper(range(3)).map(str)))
    flowchart TD
        p0["IterableWrapper()"]
        p1["map(str)"]
        p0 --> p1
    """
    boxes, arrows = _chart(datapipe, labels)
    lines = ["flowchart TD"]
    for place, (label, pipes) in enumerate(boxes.items()):
        nodes = [f'    {name}["{_escaped(text)}"]' for name, text in pipes]
        if label:
            nodes = [
                f'    subgraph s{place}["{_escaped(label)}"]',
                *(f"    {node}" for node in nodes),
                "    end",
            ]
        lines += nodes
    lines += [f"    {source} --> {reader}" for source, reader in arrows]
    return "\n".join(lines)


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
    boxes, arrows = _chart(datapipe, labels)
    lines = ["digraph {", "    node [shape=box]"]
    for place, (label, pipes) in enumerate(boxes.items()):
        nodes = [f"    {name} [label={_quoted(text)}]" for name, text in pipes]
        if label:
            nodes = [
                f"    subgraph cluster{place} {{",
                f"        label={_quoted(label)}",
                *(f"    {node}" for node in nodes),
                "    }",
            ]
        lines += nodes
    lines += [f"    {source} -> {reader}" for source, reader in arrows]
    return "\n".join([*lines, "}"])


def to_svg(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as an SVG picture, with a colour for the pipes of each label.

    A long name is cut in its middle; a pointer that rests on the box shows all of it.
    ValueError for pipes that read from one another in a circle.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> picture = to_svg(IterableWrapper(range(3)).map(str))
    >>> picture.count('class="pipe"'), picture.count('class="arrow"')
    (2, 1)
    """
    # Few draw pictures, and every process imports this.
    from asyncloader.graph.svg import picture

    graph = Graph.of(datapipe)
    graph.sources_first()  # it names the pipes of a circle
    reads = {id(pipe): list(map(id, graph.sources(pipe))) for pipe in graph.pipes}
    names = {id(pipe): shown_name(pipe) for pipe in graph.pipes}
    return "\n".join(picture(reads, names, by_id(labels)))


def _chart(
    datapipe: Any, labels: Labels
) -> tuple[dict[str, list[tuple[str, str]]], list[tuple[str, str]]]:
    """Return the boxes and the arrows of a graph, its pipes by short names.

    A box has a label, and the names and texts of its pipes; those without a label come first. An
    arrow leads from a source to a pipe that reads it.
    """
    graph = Graph.of(datapipe)
    pipes = graph.pipes[::-1]
    name = {id(pipe): f"p{place}" for place, pipe in enumerate(pipes)}
    label_of = by_id(labels)
    boxes: dict[str, list[tuple[str, str]]] = {"": []}
    for pipe in pipes:
        box = boxes.setdefault(label_of.get(id(pipe), ""), [])
        box.append((name[id(pipe)], shown_name(pipe)))
    arrows = [
        (name[id(source)], name[id(pipe)]) for pipe in pipes for source in graph.sources(pipe)
    ]
    return boxes, arrows


def _lines(graph: Graph) -> list[tuple[str, Any]]:
    """Return the lines of a graph, sources first, each with the pipe that it shows."""
    shared = [pipe for pipe in graph.pipes if len(graph.readers(pipe)) > 1]
    number = {id(pipe): number for number, pipe in enumerate(shared, 1)}
    drawn: set[int] = set()

    def line(pipe: Any) -> str:
        return shown_name(pipe) + (f" [{number[id(pipe)]}]" if id(pipe) in number else "")

    def down_to(end: Any) -> list[tuple[str, Any]]:
        chain: list[Any] = []
        sources = [end]
        while len(sources) == 1 and id(sources[0]) not in drawn:
            chain.append(sources[0])
            drawn.add(id(sources[0]))
            sources = graph.sources(sources[0])
        lines = [(line(pipe), pipe) for pipe in reversed(chain)]
        if len(sources) == 1:
            return [(f"{line(sources[0])}, as above", sources[0]), *lines]
        return [each for source in sources for each in indented(source)] + lines

    def indented(source: Any) -> list[tuple[str, Any]]:
        (text, pipe), *rest = down_to(source)
        return [(f"  - {text}", pipe), *((f"    {text}", pipe) for text, pipe in rest)]

    return down_to(graph.end)


def shown_name(pipe: Any) -> str:
    """Return what a pipe is called, in one line."""
    # Our own pipes may know a better name: a branch says which of which splitter it is.
    name = repr(pipe) if isinstance(pipe, DataPipe) else stage_name(pipe)
    return " ".join(name.split())


def by_id(labels: Labels) -> dict[int, str]:
    """Return the labels by the ids of their pipes."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return {id(pipe): label for pipe, label in pairs}


def _escaped(text: str) -> str:
    for character, code in {"#": "35", '"': "quot", "<": "lt", ">": "gt"}.items():
        text = text.replace(character, f"#{code};")
    return text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
