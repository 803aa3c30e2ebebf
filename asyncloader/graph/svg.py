"""A graph as an SVG picture.

This file is about ``picture``. Top-down: the picture, where its boxes and arrows stand
(``PictureLayout``, from ``Rows``), the legend, the SVG elements, and the width of texts.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, pairwise

#: Who reads whom, by the numbers or the ids of the pipes; the end of the graph comes first.
Reads = Mapping[int, Sequence[int]]

#: The corners of an arrow, x and y.
Point = tuple[float, float]

#: What an area is filled with, and its outline.
Colours = tuple[str, str]

_PADDING, _MARGIN = 12.0, 20.0


def picture(reads: Reads, names: Mapping[int, str], labels: Mapping[int, str]) -> Iterator[str]:
    """Yield the boxes and arrows of one graph, with a legend above them, line by line.

    Not every pipe has a label.
    """
    widths = {pipe: width_of(name) + 2 * _PADDING for pipe, name in names.items()}
    layout = PictureLayout(reads, widths)
    as_read = sorted(layout.boxes, key=lambda box: (box.y, box.x))
    legend = Legend(labels.get(box.pipe, "") for box in as_read)
    width = max(layout.width, legend.width)
    height = legend.height + layout.height
    about = f"A graph of {len(names)} pipes"
    yield from sheet(width + 2 * _MARGIN, height + 2 * _MARGIN, about)
    yield from _moved((width - legend.width) / 2, 0.0, legend.lines())
    graph = _graph(layout, names, labels, legend)
    yield from _moved((width - layout.width) / 2, legend.height, graph)
    yield "</svg>"


def _graph(
    layout: PictureLayout, names: Mapping[int, str], labels: Mapping[int, str], legend: Legend
) -> Iterator[str]:
    for points in layout.arrows:
        yield arrow(points)
    for box in layout.boxes:
        name, label = names[box.pipe], labels.get(box.pipe, "")
        yield '<g class="pipe">'
        yield title(f"{name} | {label}" if label else name)
        yield rectangle(box.x, box.y, box.width, box.height, legend.colours_of(label))
        yield words(box.x + box.width / 2, box.y + box.height / 2, name, "middle")
        yield "</g>"


def _moved(x: float, y: float, lines: Iterator[str]) -> Iterator[str]:
    yield f'<g transform="translate({_MARGIN + x:.1f} {_MARGIN + y:.1f})">'
    yield from lines
    yield "</g>"


BOX_HEIGHT, BOX_GAP = 30.0, 24.0

#: Between two arrows that begin or end at the same box.
PORT_GAP = 18.0

#: Between two rows: more if an arrow goes far to the side, so that it is not too flat.
ROW_GAP, WIDEST_ROW_GAP, ROW_GAP_SHARE = 30.0, 90.0, 0.1


@dataclass(frozen=True)
class Box:
    """The place of a pipe; ``x`` and ``y`` are its corner at the top left."""

    pipe: int
    x: float
    y: float
    width: float
    height: float


class PictureLayout:
    """The boxes and arrows of a graph, sources above.

    A box is as wide as ``widths`` says, or wider for many arrows.
    """

    def __init__(
        self,
        reads: Reads,
        widths: Mapping[int, float],
        height: float = BOX_HEIGHT,
        row_gap: float = ROW_GAP,
    ) -> None:
        rows = Rows(reads)
        self._height, self._row_gap = height, row_gap
        pipe_at = {spot: pipe for pipe, spot in rows.pipes}
        self._width = {
            spot: max(widths[pipe], PORT_GAP * len(spot.above), PORT_GAP * len(spot.below))
            for spot, pipe in pipe_at.items()
        }
        self._middle = self._middles(rows)
        self._top = self._tops(rows)
        self.boxes = [self._box(pipe, spot) for pipe, spot in rows.pipes]
        #: The corners of each arrow, from a source's box down to the box of its reader. Every
        #: other stretch leads from one row to the next, and the rest straight down past a row.
        self.arrows = [list(self._points(spots)) for spots in rows.arrows]
        self.width = max(middle + self._half(spot) for spot, middle in self._middle.items())
        self.height = max(box.y + box.height for box in self.boxes)

    def _middles(self, rows: Rows) -> dict[Spot, float]:
        """Return where in its row each spot has its middle, the leftmost edge being 0."""
        found: dict[Spot, float] = {}
        for row in rows.rows:
            found |= self._placed(row, [_among(spot.below, found) for spot in row])
        for row in reversed(rows.rows):
            found |= self._placed(row, [_below_its_sources(spot, found) for spot in row])
        left = min(middle - self._half(spot) for spot, middle in found.items())
        return {spot: middle - left for spot, middle in found.items()}

    def _placed(self, row: Sequence[Spot], wanted: Sequence[float]) -> dict[Spot, float]:
        widths = [2 * self._half(spot) for spot in row]
        return dict(zip(row, apart(wanted, widths), strict=True))

    def _tops(self, rows: Rows) -> dict[Spot, float]:
        found: dict[Spot, float] = {}
        top = 0.0
        for row in reversed(rows.rows):
            found |= dict.fromkeys(row, top)
            top += self._height + self._gap_below(row)
        return found

    def _gap_below(self, row: Sequence[Spot]) -> float:
        middle = self._middle
        aside = (abs(middle[spot] - middle[reader]) for spot in row for reader in spot.below)
        return min(self._row_gap + ROW_GAP_SHARE * max(aside, default=0.0), WIDEST_ROW_GAP)

    def _half(self, spot: Spot) -> float:
        return self._width.get(spot, 0.0) / 2

    def _box(self, pipe: int, spot: Spot) -> Box:
        left = self._middle[spot] - self._half(spot)
        return Box(pipe, left, self._top[spot], self._width[spot], self._height)

    def _points(self, spots: Sequence[Spot]) -> Iterator[Point]:
        for upper, lower in pairwise(spots):
            yield self._port(upper, lower, upper.below), self._top[upper] + self._height
            yield self._port(lower, upper, lower.above), self._top[lower]

    def _port(self, spot: Spot, other: Spot, others: Sequence[Spot]) -> float:
        """Return where on its edge a spot has the arrow to another, among those to others."""
        in_order = sorted(others, key=self._middle.__getitem__)
        return self._middle[spot] + PORT_GAP * (in_order.index(other) - (len(others) - 1) / 2)


def apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the middles of boxes side by side, as near as can be to where they are wanted.

    >>> apart([0, 0, 500], [100, 100, 100])
    [-62.0, 62.0, 500.0]
    """
    steps = ((left + right) / 2 + BOX_GAP for left, right in pairwise(widths))
    offsets = list(accumulate(steps, initial=0.0))
    # Boxes that stand close to one another, by where each wants the first of all to stand.
    groups: list[list[float]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        groups.append([want - offset])
        while len(groups) > 1 and mean(groups[-2]) > mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    firsts = [mean(group) for group in groups for _ in group]
    return [first + offset for first, offset in zip(firsts, offsets, strict=True)]


def _below_its_sources(spot: Spot, middles: Mapping[Spot, float]) -> float:
    """Return where a spot is wanted: in line with sources that only it reads, or where it is."""
    is_only_reader = all(len(source.below) == 1 for source in spot.above)
    return _among(spot.above if spot.above and is_only_reader else [spot], middles)


def _among(spots: Sequence[Spot], middles: Mapping[Spot, float]) -> float:
    return mean([middles[spot] for spot in spots])


@dataclass(eq=False)
class Spot:
    """A place in a row: that of a pipe, or of a bend."""

    above: list[Spot] = field(default_factory=list)
    below: list[Spot] = field(default_factory=list)


class Rows:
    """Which pipes stand side by side, in which order, and the arrows between the rows.

    row 2    fork         A pipe stands in the row above the highest of its readers.
             |  |         An arrow that goes past a row has a bend in it, so that it is
    row 1  map  bend      not drawn across a pipe.
             |  |
    row 0     zip
    """

    def __init__(self, reads: Reads) -> None:
        height = _heights(reads)
        #: From the end of the graph up, each from left to right.
        self.rows: list[list[Spot]] = [[] for _ in range(1 + max(height.values()))]
        #: Each pipe and its place, breadth-first.
        self.pipes = [(pipe, Spot()) for pipe in reads]
        #: Each arrow's places, from the source down to the pipe that reads it.
        self.arrows: list[list[Spot]] = []
        spot = dict(self.pipes)
        for pipe, place in self.pipes:
            self.rows[height[pipe]].append(place)
        for reader, sources in reads.items():
            for source in sources:
                bends = self._bends(range(height[reader] + 1, height[source]))
                self.arrows.append([spot[source], *bends, spot[reader]])
        self._join()
        self._order()

    def _bends(self, rows: Iterable[int]) -> list[Spot]:
        bends = []
        for row in rows:
            bend = Spot()
            self.rows[row].append(bend)
            bends.append(bend)
        return bends[::-1]

    def _join(self) -> None:
        for arrow in self.arrows:
            for upper, lower in pairwise(arrow):
                upper.below.append(lower)
                lower.above.append(upper)

    def _order(self) -> None:
        for lower, upper in pairwise(self.rows):
            links = ((reader, source) for reader in lower for source in reader.above)
            place = {link: at for at, link in enumerate(links)}
            upper.sort(key=lambda spot: mean([place[reader, spot] for reader in spot.below]))


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of some numbers, and 0 of none."""
    # What the standard library has for it takes longer to import than this to draw.
    return sum(numbers) / max(1, len(numbers))


def _heights(reads: Reads) -> dict[int, int]:
    """Return the row of each pipe, from the end up; ValueError where they form a circle."""
    height = dict.fromkeys(reads, 0)
    unread = Counter(source for sources in reads.values() for source in sources)
    settled = [pipe for pipe in reads if not unread[pipe]]
    for reader in settled:  # it grows while it is read
        for source in reads[reader]:
            height[source] = max(height[source], height[reader] + 1)
            unread[source] -= 1
            if not unread[source]:
                settled.append(source)
    if len(settled) < len(reads):
        raise ValueError("pipes must not read from one another in a circle")
    return height


_SWATCH, _GAP, _APART, _HEIGHT = 14.0, 6.0, 24.0, 36.0

_PALETTE = (
    ("#cfe3f7", "#2a6cb0"),
    ("#fde2b8", "#b06f00"),
    ("#e3f3d3", "#4f8a2b"),
    ("#e5cfea", "#7d3c98"),
    ("#f6c9c5", "#b03a2e"),
)
_PLAIN = ("#ffffff", "#555555")


class Legend:
    """The labels of a picture in a row, in the order they come in; nothing without labels."""

    def __init__(self, labels: Iterable[str]) -> None:
        present = [label for label in dict.fromkeys(labels) if label]
        self._colours = dict(zip(present, cycle(_PALETTE), strict=False))
        widths = (_SWATCH + _GAP + width_of(label) + _APART for label in present)
        self._places = list(accumulate(widths, initial=0.0))
        self.width = max(0.0, self._places[-1] - _APART)
        self.height = _HEIGHT if present else 0.0

    def colours_of(self, label: str) -> Colours:
        """Return the colours of the pipes with a label, or with "" for none."""
        return self._colours.get(label, _PLAIN)

    def lines(self) -> Iterator[str]:
        """Yield the legend, line by line."""
        for (label, colours), x in zip(self._colours.items(), self._places, strict=False):
            yield '<g class="label">'
            yield title(label)
            yield rectangle(x, 0.0, _SWATCH, _SWATCH, colours)
            yield words(x + _SWATCH + _GAP, _SWATCH / 2, label)
            yield "</g>"


#: How wide a character is in the usual fonts of a fixed width, at this size.
_FONT_SIZE, _CELL = 13, 7.85
_MOST_CELLS = 45
_INK, _LINE = "#1a1a1a", "#555555"

#: What means something else in XML, and what may not be in it at all.
_CODES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_FORBIDDEN = (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
_ESCAPES = {**dict.fromkeys(_FORBIDDEN, "\N{REPLACEMENT CHARACTER}"), **str.maketrans(_CODES)}


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
    fill, outline = colours
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{fill}" stroke="{outline}"/>'
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
    return (
        f'<path class="arrow" d="{way_along(points)}" fill="none" stroke="{_LINE}"'
        ' stroke-width="1.3" marker-end="url(#head)"/>'
    )


def way_along(points: Sequence[Point]) -> str:
    """Return the path of an arrow, as SVG writes it."""
    x, y = points[0]
    return " ".join([f"M{x:.1f} {y:.1f}", *(_stretch(*ends) for ends in pairwise(points))])


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


def cells(text: str) -> int:
    """Return how many places of a fixed width a text takes, at most.

    >>> cells("map"), cells("写真")
    (3, 4)
    """
    return sum(_cells_of(character) for character in text)


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
    taken = 0
    for place, character in enumerate(text):
        taken += _cells_of(character)
        if taken > limit:
            return text[:place]
    return text


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
