"""A graph with its cuts, in a format.

This file is about ``drawing``: text for a terminal, Mermaid for Markdown and notebooks,
SVG for a browser.
"""

from __future__ import annotations

from typing import Literal

from asyncloader.graph.cut import Place, cut_graph
from asyncloader.graph.draw import Labels, to_mermaid, to_svg, to_text
from asyncloader.tools.target import Target

Format = Literal["text", "mermaid", "svg"]

#: What is assumed where neither the command nor a loader says a number.
WORKERS = 2


def drawing(target: Target, form: Format, workers: int | None = None) -> str:
    """Return the graph as it is run in so many workers, in a format."""
    if workers is None:
        workers = WORKERS if target.workers is None else target.workers
    labels = places(target, workers)
    match form:
        case "text":
            return to_text(target.graph, labels)
        case "mermaid":
            return to_mermaid(target.graph, labels)
        case "svg":
            return to_svg(target.graph, labels)


def places(target: Target, workers: int) -> Labels:
    """Return where each pipe of the graph runs, in words."""
    cut = cut_graph(target.graph)
    words: dict[Place, str] = {
        "loader": "loader",
        "dispatcher": "dispatching process",
        "workers": f"each of {workers} workers" if workers > 1 else "worker",
    }
    if workers == 0:
        return [(pipe, words["loader"]) for pipe, _ in cut.places]
    if not any(cut.dispatch in part.inlets for part in cut.parts):
        # There is nobody to deal to.
        words["dispatcher"] = words["loader"]
    return [(pipe, words[place]) for pipe, place in cut.places]
