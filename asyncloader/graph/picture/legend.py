"""What the colours of a picture mean.

This file is about ``Legend``: the labels of a graph's pipes, with a colour for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, cycle

from asyncloader.graph.picture.shapes import Colours, rectangle, title, width_of, words

_SWATCH, _GAP, _APART, _HEIGHT = 14.0, 6.0, 24.0, 36.0

_PALETTE = (
    Colours("#cfe3f7", "#2a6cb0"),
    Colours("#fde2b8", "#b06f00"),
    Colours("#e3f3d3", "#4f8a2b"),
    Colours("#e5cfea", "#7d3c98"),
    Colours("#f6c9c5", "#b03a2e"),
)
_PLAIN = Colours("#ffffff", "#555555")


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
