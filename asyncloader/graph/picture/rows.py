"""A graph in rows.

This file is about ``Rows``: which pipes stand side by side, in which order, and where the
arrows pass between them.

    row 2    fork         A pipe stands in the row above the highest of those that read it.
             |  |         An arrow that goes past a row has a bend in it, so that it is not
    row 1  map  bend      drawn across a pipe.
             |  |
    row 0     zip
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from asyncloader.graph.walk import Wiring


@dataclass(eq=False)
class Spot:
    """A place in a row: that of a pipe, or of a bend."""

    above: list[Spot] = field(default_factory=list)
    below: list[Spot] = field(default_factory=list)


class Rows:
    """The rows of a graph and the arrows between them."""

    def __init__(self, wiring: Wiring) -> None:
        height = _heights(wiring)
        #: From the end of the graph up, each from left to right.
        self.rows: list[list[Spot]] = [[] for _ in range(1 + max(height.values()))]
        #: Each pipe and its place, breadth-first.
        self.pipes: list[tuple[Any, Spot]] = [(pipe, Spot()) for pipe in wiring.pipes]
        #: Each arrow's places, from the source down to the pipe that reads it.
        self.arrows: list[list[Spot]] = []
        spot = {id(pipe): spot for pipe, spot in self.pipes}
        for pipe, place in self.pipes:
            self.rows[height[id(pipe)]].append(place)
        for reader in wiring.pipes:
            for source in wiring.sources(reader):
                bends = self._bends(range(height[id(reader)] + 1, height[id(source)]))
                self.arrows.append([spot[id(source)], *bends, spot[id(reader)]])
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


def _heights(wiring: Wiring) -> dict[int, int]:
    height: dict[int, int] = {}
    for pipe in reversed(wiring.sources_first()):
        readers = wiring.readers(pipe)
        height[id(pipe)] = max((height[id(reader)] + 1 for reader in readers), default=0)
    return height
