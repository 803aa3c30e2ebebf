"""A drawn graph as an SVG picture.

This file is about ``picture``. It has the colours of a light page, which every viewer shows; on a
page ``style.css`` gives it those of a dark one. Top-down: the picture, the elements in it, the
style of pages, and texts in XML.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate, cycle, pairwise
from typing import get_args

from asyncloader.graph.cut import Place
from asyncloader.graph.layout import PORT_GAP, Layout, Point, Spot
from asyncloader.graph.outline import Node

#: What the boxes of a label are filled with, and their outline; "plain" are those without one.
_COLOURS = {
    "plain": ("#f5f7f9", "#57606a"),
    "purple": ("#f0e2f6", "#80429a"),
    "green": ("#e2f2d5", "#467a26"),
    "blue": ("#dcebfa", "#2563a8"),
    "orange": ("#fdeed2", "#b06f00"),
    "red": ("#f6c9c5", "#b03a2e"),
}
#: The outline of a box that a verdict is about.
_EDGES = {"blames": "#b3261e", "fine": "#1d6b3a"}
_GROUND, _INK, _SOFT = "#ffffff", "#1c2126", "#57606a"

#: How high a box is, and how much is between two rows, where there are figures and where not.
_WITH_FIGURES, _WITHOUT = (48.0, 40.0), (30.0, 30.0)
_PADDING, _MARGIN, _SWATCH, _LEGEND_HEIGHT = 12.0, 12.0, 14.0, 30.0

#: How wide a character is in the usual fonts of a fixed width, and how many are shown of a name.
_FONT_SIZE, _CELL, _MOST_CELLS = 13, 7.85, 45


def picture(nodes: Sequence[Node], about: str = "") -> str:
    """Return the boxes and arrows of a graph, with a legend above them.

    ``about`` is what a screen reader says of it. ValueError for a graph with a circle.
    """
    return "\n".join(_lines(nodes, about or f"A graph of {len(nodes)} pipes"))


def _lines(nodes: Sequence[Node], about: str) -> Iterator[str]:
    height, gap = _WITH_FIGURES if any(node.figures for node in nodes) else _WITHOUT
    layout = Layout([node.reads for node in nodes], [*map(_box_width, nodes)], height, gap)
    boxes = list(zip(layout.boxes, nodes, strict=True))
    # As they are read.
    boxes.sort(key=lambda each: (each[0].top, each[0].middle))
    labels = list(dict.fromkeys(node.label for _, node in boxes if node.label))
    # Where pipes run has the same colours in every picture.
    known = dict.fromkeys((*get_args(Place), *labels))
    hues = {"": "plain", **dict(zip(known, cycle([*_COLOURS][1:]), strict=False))}
    legend = list(accumulate((_width(each) + 3 * _SWATCH for each in labels), initial=0.0))
    top = _MARGIN + (_LEGEND_HEIGHT if labels else 0.0)
    beside = (_beside(box) + _CELL * cells(node.beside) for box, node in boxes)
    width = max(layout.width, legend[-1], *beside) + 2 * _MARGIN
    yield _sheet(width, top + layout.height + _MARGIN, about)
    for label, x in zip(labels, legend, strict=False):
        yield from _swatch(_MARGIN + x, label, hues[label])
    yield f'<g transform="translate({_MARGIN:.1f} {top:.1f})">'
    for corners in layout.arrows:
        yield from _arrow(corners)
    for box, node in boxes:
        yield from _box(box, node, height, hues[node.label])
    yield "</g></svg>"


def _sheet(width: float, height: float, about: str) -> str:
    """Return how a picture begins."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="img" {size}'
        f' viewBox="0 0 {width:.0f} {height:.0f}" aria-label="{escaped(about)}"'
        f' font-family="monospace" font-size="{_FONT_SIZE}" fill="{_INK}">\n'
        f'<rect class="ground" {size} fill="{_GROUND}"/>'
    )


def _swatch(x: float, label: str, hue: str) -> Iterator[str]:
    yield f'<g class="label {hue}">'
    yield _title(label)
    yield _rectangle("area", (x, _MARGIN), (_SWATCH, _SWATCH), *_COLOURS[hue])
    yield _text("legend", x + 1.5 * _SWATCH, _MARGIN + _SWATCH / 2, _shown(label))
    yield "</g>"


def _arrow(corners: Sequence[Point]) -> Iterator[str]:
    """Yield an arrow; every other stretch of it may lead aside, the rest go straight on."""
    (x, y), (end_x, end_y) = corners[0], corners[-1]
    way = " ".join([f"M{x:.1f} {y:.1f}", *(_stretch(*ends) for ends in pairwise(corners))])
    yield f'<path class="arrow" d="{way}" fill="none" stroke="{_SOFT}" stroke-width="1.3"/>'
    yield f'<path class="head" d="M{end_x:.1f} {end_y:.1f} l-4 -8 h8 z" fill="{_SOFT}"/>'


def _stretch(start: Point, end: Point) -> str:
    (x, y), (to_x, to_y) = start, end
    if x == to_x:
        return f"L{to_x:.1f} {to_y:.1f}"
    # It leaves and arrives upright, and does not leave the space between the two rows.
    middle = (y + to_y) / 2
    return f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def _box(box: Spot, node: Node, height: float, hue: str) -> Iterator[str]:
    fill, edge = _COLOURS[hue]
    edge = _EDGES.get(node.verdict, edge)
    said = (node.name, node.label, node.figures, node.beside, node.verdict and "the bottleneck")
    yield f'<g class="{" ".join(filter(None, ("box", hue, node.verdict)))}">'
    yield _title(" | ".join(filter(None, said)))
    thick = 4 if node.verdict else 1
    yield _rectangle("area", (box.left, box.top), (box.width, height), fill, edge, thick)
    name_at = box.top + (14 if node.figures else height / 2)
    yield _text("name", box.middle, name_at, _shown(node.name), _CENTRED)
    if node.figures:
        yield _text("figures", box.middle, box.top + 30, node.figures, _CENTRED)
    if node.share is not None:
        corner, full = (box.left + _PADDING, box.top + height - 8), box.width - 2 * _PADDING
        yield _rectangle("track", corner, (full, 4), _GROUND)
        yield _rectangle("share", corner, (full * min(1.0, max(0.0, node.share)), 4), edge)
    if node.beside:
        yield _text("beside", _beside(box), box.top + height + 11, node.beside, _HALO)
    yield "</g>"


_CENTRED = 'text-anchor="middle"'
#: What crosses a text does not make it hard to read.
_HALO = f'font-size="12" fill="{_SOFT}" paint-order="stroke" stroke="{_GROUND}" stroke-width="4"'


def _beside(box: Spot) -> float:
    """Return where a text begins that stands beside all arrows which leave a box."""
    return box.middle + PORT_GAP * len(box.below) / 2


def _rectangle(
    kind: str, corner: Point, size: Point, fill: str, edge: str = "none", thick: int = 1
) -> str:
    (x, y), (width, height) = corner, size
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' rx="4" fill="{fill}" stroke="{edge}" stroke-width="{thick}"/>'
    )


def _text(kind: str, x: float, middle: float, text: str, more: str = "") -> str:
    # Not every viewer can put the middle of a line somewhere by itself.
    baseline = middle + 0.35 * _FONT_SIZE
    return f'<text class="{kind}" x="{x:.1f}" y="{baseline:.1f}" {more}>{escaped(text)}</text>'


def _title(text: str) -> str:
    """Return what is shown where a pointer rests on the element that this is the first of."""
    return f"<title>{escaped(text)}</title>"


def _box_width(node: Node) -> float:
    return max(_width(node.name), _CELL * cells(node.figures)) + 2 * _PADDING


def _width(name: str) -> float:
    return _CELL * cells(_shown(name))


def _shown(name: str) -> str:
    return shortened(name, _MOST_CELLS)


def styled(html: str) -> str:
    """Return a part of a page with the style that it needs."""
    return f'<div class="asyncloader"><style>{style()}</style>{html}</div>'


@cache
def style() -> str:
    """Return the style of all that is drawn on pages."""
    return (files("asyncloader.graph") / "style.css").read_text(encoding="utf-8")


#: What means something else in XML, and what may not be in it at all.
_CODES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_FORBIDDEN = (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
_ESCAPES = {**dict.fromkeys(_FORBIDDEN, "\N{REPLACEMENT CHARACTER}"), **str.maketrans(_CODES)}


def escaped(text: str) -> str:
    """Return a text as it may stand in XML.

    >>> escaped('a < "b"\\0')
    'a &lt; &quot;b&quot;\N{REPLACEMENT CHARACTER}'
    """
    return text.translate(_ESCAPES)


def cells(text: str) -> int:
    """Return how many places of a fixed width a text takes, at most.

    >>> cells("map"), cells("写真")
    (3, 4)
    """
    return sum(map(_cells_of, text))


def shortened(text: str, limit: int) -> str:
    """Return a text that takes ``limit`` places at most, without its middle if need be.

    A function or a path tells most at its ends.

    >>> shortened("open_files('/data/of/many/years/part-0001.tar')", 31)
    "open_files('/da…part-0001.tar')"
    """
    if cells(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{_beginning(text, half)}…{_beginning(text[::-1], half)[::-1]}"


def _beginning(text: str, limit: int) -> str:
    ends = accumulate(map(_cells_of, text))
    return text[: sum(end <= limit for end in ends)]


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
