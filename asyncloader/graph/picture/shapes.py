"""What an SVG picture is made of.

This file is about shapes as lines of XML: the sheet, rectangles, texts and arrows. It knows
nothing of pipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from asyncloader.graph.picture.cells import cells, shortened

Point = tuple[float, float]

#: How wide a character is in the usual fonts of a fixed width, at this size.
_FONT_SIZE, _CELL = 13, 7.85
_MOST_CELLS = 45

_INK, _LINE = "#1a1a1a", "#555555"

#: What means something else in XML, and what may not be in it at all.
_CODES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_FORBIDDEN = (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
_ESCAPES = {**dict.fromkeys(_FORBIDDEN, "\N{REPLACEMENT CHARACTER}"), **str.maketrans(_CODES)}


@dataclass(frozen=True)
class Colours:
    """What an area is filled with, and its outline."""

    fill: str
    outline: str


def sheet(width: float, height: float, what: str) -> Iterator[str]:
    """Yield how a picture begins; it ends with ``</svg>``."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escaped(what)}"'
        f' font-family="monospace" font-size="{_FONT_SIZE}">'
    )
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        f' markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{_LINE}"/>'
        "</marker></defs>"
    )
    yield f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'


def rectangle(x: float, y: float, width: float, height: float, colours: Colours) -> str:
    """Return a rectangle whose corner at the top left is given."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{colours.fill}" stroke="{colours.outline}"/>'
    )


def words(x: float, middle: float, text: str, anchor: str = "start") -> str:
    """Return a text that begins at ``x``, or has its "middle" there; a long one is cut.

    The middle of its line is at ``middle``.
    """
    # Not every viewer can put the middle of a line somewhere by itself.
    baseline = middle + 0.35 * _FONT_SIZE
    shown = escaped(shortened(text, _MOST_CELLS))
    return (
        f'<text x="{x:.1f}" y="{baseline:.1f}" text-anchor="{anchor}" fill="{_INK}">{shown}</text>'
    )


def width_of(text: str) -> float:
    """Return how wide a text is, as ``words`` shows it."""
    return _CELL * min(cells(text), _MOST_CELLS)


def title(text: str) -> str:
    """Return what is shown where a pointer rests on the element that this is the first of."""
    return f"<title>{escaped(text)}</title>"


def arrow(points: Sequence[Point]) -> str:
    """Return an arrow; every other stretch of it may lead aside, the rest go straight on."""
    x, y = points[0]
    way = [f"M{x:.1f} {y:.1f}"]
    way += [_stretch(*ends) for ends in pairwise(points)]
    return (
        f'<path class="arrow" d="{" ".join(way)}" fill="none" stroke="{_LINE}"'
        ' stroke-width="1.3" marker-end="url(#head)"/>'
    )


def _stretch(start: Point, end: Point) -> str:
    (x, y), (to_x, to_y) = start, end
    if x == to_x:
        return f"L{to_x:.1f} {to_y:.1f}"
    # It leaves and arrives upright, and does not leave the space between the two rows.
    middle = (y + to_y) / 2
    return f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def escaped(text: str) -> str:
    """Return a text as it may stand in XML.

    >>> escaped('a < "b"\\0')
    'a &lt; &quot;b&quot;\N{REPLACEMENT CHARACTER}'
    """
    return text.translate(_ESCAPES)
