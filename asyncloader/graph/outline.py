"""What a graph looks like, without the graph.

This file is about ``Outline``: the names of the pipes, who reads whom, and what runs where, as
plain data. Who has it can draw the graph in another process, or after the graph is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.base import show_in_notebooks
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.graph.cut import cut_graph
from asyncloader.graph.draw import Labels, by_id, shown_name
from asyncloader.graph.walk import Graph


@dataclass(frozen=True)
class Outline:
    """The pipes of a graph by their numbers, breadth-first from its end."""

    names: tuple[str, ...] = ()
    #: The numbers of the pipes that each reads from.
    reads: tuple[tuple[int, ...], ...] = ()
    #: "loader", "workers" or "dispatcher" for each, another label, or "" for none.
    places: tuple[str, ...] = ()


NO_GRAPH = Outline()


def outline_of(datapipe: Any, labels: Labels = ()) -> Outline:
    """Return the outline of a graph, with a label for each pipe that has one."""
    graph, label_of = Graph.of(datapipe), by_id(labels)
    return Outline(
        names=tuple(map(_safe_name, graph.pipes)),
        reads=tuple(
            tuple(graph.numbers[id(source)] for source in graph.sources(pipe))
            for pipe in graph.pipes
        ),
        places=tuple(label_of.get(id(pipe), "") for pipe in graph.pipes),
    )


def placed_outline_of(datapipe: Any, workers: int) -> Outline:
    """Return the outline of a graph that runs in so many workers, with what runs where."""
    graph = Graph.of(datapipe)
    if not workers:
        return outline_of(graph, [(pipe, "loader") for pipe in graph.pipes])
    try:
        return outline_of(graph, cut_graph(graph).places)
    except Exception:  # noqa: BLE001 - it cannot be divided, which the loader's start will say
        return outline_of(graph)


def _safe_name(pipe: Any) -> str:
    try:
        return shown_name(pipe)
    except Exception:  # noqa: BLE001 - a user's __repr__ ran; stats must not fail
        return stage_name(pipe)


def to_html(datapipe: Any, labels: Labels = ()) -> str:
    """Return the graph as HTML for a page or a notebook, with its own style.

    A pipe that is the last line of a notebook's cell is shown in this way. A label is where a
    pipe runs, or anything else; those of ``cut_graph(graph).places`` have colours of their own.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> to_html(IterableWrapper(range(3)).map(str)).count('<g class="box')
    2
    """
    # Few draw pictures, and every process imports this.
    from asyncloader.graph.figure import drawn, styled

    outline = outline_of(datapipe, labels)
    notes: Mapping[int, Any] = {}
    return styled(drawn(outline.names, outline.reads, outline.places, notes))


show_in_notebooks(to_html)
