"""Where the boxes and arrows of a drawn graph stand, sources above.

This file is about ``Layout``, which knows of a graph who reads whom and how wide the boxes are.

    row 2    fork         A box stands in the row above the highest of its readers.
             |  |         An arrow that goes past a row has a bend in it, so that it is
    row 1  map  bend      not drawn across a box.
             |  |
    row 0     zip
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import accumulate, chain, pairwise

#: For each box the numbers of those that it reads from; box 0 is the end of the graph.
Reads = Sequence[Sequence[int]]

#: The corners of an arrow, x and y.
Point = tuple[float, float]

_BOX_GAP = 24.0

#: Between two arrows that begin or end at the same box.
PORT_GAP = 18.0

#: Between two rows there is more if an arrow goes far to the side, so that it is not too flat.
_WIDEST_ROW_GAP, _ROW_GAP_SHARE = 90.0, 0.1


@dataclass(eq=False)
class Spot:
    """A place in a row: that of a box, or of a bend, which has no width."""

    above: list[Spot] = field(default_factory=list)
    below: list[Spot] = field(default_factory=list)
    width: float = 0.0
    middle: float = 0.0
    top: float = 0.0

    @property
    def left(self) -> float:
        """Where it begins; the leftmost begins at 0."""
        return self.middle - self.width / 2


class Layout:
    """The boxes and arrows of a graph, its boxes all of one height.

    A box is as wide as ``widths`` says, or wider for many arrows.
    """

    def __init__(self, reads: Reads, widths: Sequence[float], height: float, gap: float) -> None:
        self.boxes = [Spot() for _ in reads]
        # From the end of the graph up, and each from left to right.
        rows, ways = _joined(self.boxes, reads)
        for box, width in zip(self.boxes, widths, strict=True):
            box.width = max(width, PORT_GAP * len(box.above), PORT_GAP * len(box.below))
        _order(rows)
        _set_middles(rows)
        self.height = _set_tops(rows, height, gap)
        self.width = max(spot.left + spot.width for spot in chain(*rows))
        #: The corners of each arrow, from a source's box down to the box of its reader. Every
        #: other stretch leads from one row to the next, and the rest straight down past a row.
        self.arrows = [list(_corners(way, height)) for way in ways]


def _joined(boxes: Sequence[Spot], reads: Reads) -> tuple[list[list[Spot]], list[list[Spot]]]:
    """Return the rows, and the spots of each arrow from the source down; they are joined."""
    row_of = _rows_of(reads)
    rows: list[list[Spot]] = [[] for _ in range(1 + max(row_of))]
    for box, row in zip(boxes, row_of, strict=True):
        rows[row].append(box)
    ways = []
    for reader, sources in enumerate(reads):
        for source in sources:
            way = [boxes[source]]
            for row in range(row_of[source] - 1, row_of[reader], -1):
                way.append(Spot())
                rows[row].append(way[-1])
            way.append(boxes[reader])
            for upper, lower in pairwise(way):
                upper.below.append(lower)
                lower.above.append(upper)
            ways.append(way)
    return rows, ways


def _rows_of(reads: Reads) -> list[int]:
    """Return the row of each box, from the end up; ValueError where they form a circle."""
    row_of = [0] * len(reads)
    for reader in reversed([*TopologicalSorter(dict(enumerate(reads))).static_order()]):
        for source in reads[reader]:
            row_of[source] = max(row_of[source], row_of[reader] + 1)
    return row_of


def _order(rows: Sequence[list[Spot]]) -> None:
    """Let sources stand from left to right as they are read."""
    for lower, upper in pairwise(rows):
        links = ((reader, source) for reader in lower for source in reader.above)
        place = {link: at for at, link in enumerate(links)}
        upper.sort(key=lambda spot: mean([place[reader, spot] for reader in spot.below]))


def _set_middles(rows: Sequence[Sequence[Spot]]) -> None:
    for row in rows:
        _set_apart(row, [_among(spot.below) for spot in row])
    for row in reversed(rows):
        _set_apart(row, [_below_its_sources(spot) for spot in row])
    left = min(spot.left for spot in chain(*rows))
    for spot in chain(*rows):
        spot.middle -= left


def _set_apart(row: Sequence[Spot], wanted: Sequence[float]) -> None:
    middles = apart(wanted, [spot.width for spot in row])
    for spot, middle in zip(row, middles, strict=True):
        spot.middle = middle


def apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the middles of boxes side by side, as near as can be to where they are wanted.

    >>> apart([0, 0, 500], [100, 100, 100])
    [-62.0, 62.0, 500.0]
    """
    steps = ((left + right) / 2 + _BOX_GAP for left, right in pairwise(widths))
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


def _below_its_sources(spot: Spot) -> float:
    """Return where a spot is wanted: in line with sources that only it reads, or where it is."""
    is_only_reader = all(len(source.below) == 1 for source in spot.above)
    return _among(spot.above if spot.above and is_only_reader else [spot])


def _among(spots: Iterable[Spot]) -> float:
    return mean([spot.middle for spot in spots])


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of some numbers, and 0 of none."""
    # What the standard library has for it takes longer to import than this to draw.
    return sum(numbers) / max(1, len(numbers))


def _set_tops(rows: Sequence[Sequence[Spot]], height: float, gap: float) -> float:
    """Stack the rows, and return how high all of them are."""
    top = 0.0
    for row in reversed(rows):
        for spot in row:
            spot.top = top
        aside = (abs(spot.middle - reader.middle) for spot in row for reader in spot.below)
        below = gap + _ROW_GAP_SHARE * max(aside, default=0.0)
        top += height + min(below, _WIDEST_ROW_GAP)
    return rows[0][0].top + height


def _corners(way: Sequence[Spot], height: float) -> Iterator[Point]:
    for upper, lower in pairwise(way):
        yield _port(upper, lower, upper.below), upper.top + height
        yield _port(lower, upper, lower.above), lower.top


def _port(spot: Spot, other: Spot, others: Iterable[Spot]) -> float:
    """Return where on its edge a spot has the arrow to another, among those to others."""
    in_order = sorted(others, key=lambda each: each.middle)
    return spot.middle + PORT_GAP * (in_order.index(other) - (len(in_order) - 1) / 2)
