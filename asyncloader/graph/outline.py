"""What a graph looks like, without the graph.

This file is about ``Node``, a pipe as it is drawn, as plain data. A graph is drawn by functions of
such nodes, so that it can be drawn in another process, or after the graph is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asyncloader.datapipes.base import DataPipe
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.graph.walk import Graph

#: A label for each pipe, as a mapping or as pairs.
Labels = Mapping[Any, str] | Sequence[tuple[Any, str]]


class Node(NamedTuple):
    """A pipe as it is drawn, or what reads the last one; its place among the others is its number.

    What ``to_text`` shows of it is its name and its label; the rest is of pictures.
    """

    name: str
    #: The numbers of those that it reads from.
    reads: tuple[int, ...] = ()
    #: Where it runs, or anything else that several have in common; "" for nothing.
    label: str = ""
    #: What is known of it, in one line.
    figures: str = ""
    #: How long the bar below that is, from 0 to 1; None for no bar.
    share: float | None = None
    #: What is known of the items that leave it.
    beside: str = ""
    #: "blames" if it holds up the rest, "fine" if nothing holds it up, "" otherwise.
    verdict: str = ""


def nodes_of(datapipe: Any, labels: Labels = ()) -> tuple[Node, ...]:
    """Return the graph as it is drawn, breadth-first from its end."""
    graph = Graph.of(datapipe)
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    label_of = {id(pipe): label for pipe, label in pairs}
    return tuple(
        Node(
            name,
            tuple(graph.numbers[id(source)] for source in graph.sources(pipe)),
            label_of.get(id(pipe), ""),
        )
        for name, pipe in zip(graph.once(_names), graph.pipes, strict=True)
    )


def _names(graph: Graph) -> list[str]:
    return list(map(shown_name, graph.pipes))


def shown_name(pipe: Any) -> str:
    """Return what a pipe is called, in one line."""
    try:
        # Our own pipes may know a better name: a branch says which of which splitter it is.
        name = repr(pipe) if isinstance(pipe, DataPipe) else stage_name(pipe)
    except Exception:  # noqa: BLE001 - a user's __repr__ ran, and the others are drawn
        name = stage_name(pipe)
    return " ".join(name.split())
