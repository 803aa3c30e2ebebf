"""One share of many of a stream.

This file is about ``Share``: the positions of the items that one of several instances is to
make, said to pipes that look items up by their position and can leave the others alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple


class Share(NamedTuple):
    """``width`` items from ``start`` on, and again so many after each ``step``.

    >>> list(Share(start=1, step=3).positions(8))
    [1, 4, 7]
    >>> list(Share(start=1, step=3).of_batches(2).positions(10))
    [2, 3, 8, 9]
    """

    start: int
    step: int
    width: int = 1

    @property
    def before(self) -> int:
        """How many items of the share come before its start, where an earlier pass had them."""
        return self.start // self.step * self.width

    def of_batches(self, size: int) -> Share:
        """Return where the items are of which the share's batches of ``size`` are made."""
        return Share(self.start * size, self.step * size, self.width * size)

    def positions(self, length: int) -> Iterable[int]:
        """Return the positions in a stream of so many items."""
        starts = range(self.start, length, self.step)
        if self.width == 1:
            return starts
        return chain.from_iterable(range(at, min(at + self.width, length)) for at in starts)
