"""A graph as a picture.

This file is about ``Picture``, which draws a graph as SVG by itself, for browsers and editors.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncloader.graph.labels import shown_name
from asyncloader.graph.picture.layout import Box, Layout
from asyncloader.graph.picture.legend import Legend
from asyncloader.graph.picture.shapes import arrow, rectangle, sheet, title, width_of, words
from asyncloader.graph.walk import Wiring

_PADDING, _MARGIN = 12.0, 20.0


class Picture:
    """The boxes and arrows of one graph, with a legend above them."""

    def __init__(self, wiring: Wiring, labels: dict[int, str]) -> None:
        self._labels = labels
        self._names = {id(pipe): shown_name(pipe) for pipe in wiring.pipes}
        widths = {key: width_of(name) + 2 * _PADDING for key, name in self._names.items()}
        self._layout = Layout(wiring, widths)
        as_read = sorted(self._layout.boxes, key=lambda box: (box.y, box.x))
        self._legend = Legend(labels.get(id(box.pipe), "") for box in as_read)

    def lines(self) -> Iterator[str]:
        """Yield the picture, line by line."""
        layout, legend = self._layout, self._legend
        width = max(layout.width, legend.width)
        height = legend.height + layout.height
        yield from sheet(
            width + 2 * _MARGIN, height + 2 * _MARGIN, f"A graph of {len(self._names)} pipes"
        )
        yield from _moved((width - legend.width) / 2, 0.0, legend.lines())
        yield from _moved((width - layout.width) / 2, legend.height, self._graph())
        yield "</svg>"

    def _graph(self) -> Iterator[str]:
        for each in self._layout.arrows:
            yield arrow(each.points)
        for box in self._layout.boxes:
            yield from self._pipe(box)

    def _pipe(self, box: Box) -> Iterator[str]:
        name, label = self._names[id(box.pipe)], self._labels.get(id(box.pipe), "")
        yield '<g class="pipe">'
        yield title(f"{name} | {label}" if label else name)
        yield rectangle(box.x, box.y, box.width, box.height, self._legend.colours_of(label))
        yield words(box.x + box.width / 2, box.y + box.height / 2, name, "middle")
        yield "</g>"


def _moved(x: float, y: float, lines: Iterator[str]) -> Iterator[str]:
    yield f'<g transform="translate({_MARGIN + x:.1f} {_MARGIN + y:.1f})">'
    yield from lines
    yield "</g>"
