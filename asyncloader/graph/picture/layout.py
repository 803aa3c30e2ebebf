"""Where everything stands in a drawing.

This file is about ``Layout``: a box for each pipe and a way for each arrow, so that no two
boxes touch and no arrow crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from asyncloader.graph.picture.rows import Rows, Spot, mean
from asyncloader.graph.picture.shapes import Point
from asyncloader.graph.walk import Wiring

BOX_HEIGHT, BOX_GAP = 30.0, 24.0
#: Between two arrows that begin or end at the same box.
PORT_GAP = 18.0
#: Between two rows: more where an arrow leads far aside, lest it become too flat.
ROW_GAP, WIDEST_ROW_GAP, ROW_GAP_SHARE = 30.0, 90.0, 0.1


@dataclass(frozen=True)
class Box:
    """The place of a pipe; ``x`` and ``y`` are its corner at the top left."""

    pipe: Any
    x: float
    y: float
    width: float
    height: float = BOX_HEIGHT


@dataclass(frozen=True)
class Arrow:
    """The way from a source's box down to that of a pipe that reads it.

    Every other stretch leads from one row to the next; those between them go straight down
    past the boxes of a row.
    """

    source: Any
    reader: Any
    points: tuple[Point, ...]


class Layout:
    """The boxes and arrows of a graph, sources above.

    A box is as wide as ``widths`` says, by the pipes' ids, or wider for many arrows.
    """

    def __init__(self, wiring: Wiring, widths: Mapping[int, float]) -> None:
        rows = Rows(wiring)
        pipe_at = {spot: pipe for pipe, spot in rows.pipes}
        self._width = {
            spot: max(widths[id(pipe)], PORT_GAP * len(spot.above), PORT_GAP * len(spot.below))
            for spot, pipe in pipe_at.items()
        }
        self._middle = self._middles(rows)
        self._top = self._tops(rows)
        self.boxes = [self._box(pipe, spot) for pipe, spot in rows.pipes]
        self.arrows = [
            Arrow(pipe_at[spots[0]], pipe_at[spots[-1]], tuple(self._points(spots)))
            for spots in rows.arrows
        ]
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
            top += BOX_HEIGHT + self._gap_below(row)
        return found

    def _gap_below(self, row: Sequence[Spot]) -> float:
        middle = self._middle
        aside = (abs(middle[spot] - middle[reader]) for spot in row for reader in spot.below)
        return min(ROW_GAP + ROW_GAP_SHARE * max(aside, default=0.0), WIDEST_ROW_GAP)

    def _half(self, spot: Spot) -> float:
        return self._width.get(spot, 0.0) / 2

    def _box(self, pipe: Any, spot: Spot) -> Box:
        return Box(pipe, self._middle[spot] - self._half(spot), self._top[spot], self._width[spot])

    def _points(self, spots: Sequence[Spot]) -> Iterator[Point]:
        for upper, lower in pairwise(spots):
            yield self._port(upper, lower, upper.below), self._top[upper] + BOX_HEIGHT
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
    """Return where a spot is wanted: in line with what nobody else reads, or where it is."""
    is_only_reader = all(len(source.below) == 1 for source in spot.above)
    return _among(spot.above if spot.above and is_only_reader else [spot], middles)


def _among(spots: Sequence[Spot], middles: Mapping[Spot, float]) -> float:
    return mean([middles[spot] for spot in spots])
