"""Where pipes get their seeds.

This file is about ``set_seed`` and ``set_shuffle``: a seed that was set counts for
the next pass, and a pass for which none was set draws its own.
"""

from __future__ import annotations

import random
from typing import Self

from asyncloader.seeds import checked_seed, entropy


class Seeded:
    """A pipe whose order is drawn from a seed."""

    _seed: int | None = None

    def set_seed(self, seed: int) -> Self:
        """Draw the next pass from ``seed``, a number of 64 bits; return the pipe."""
        self._seed = checked_seed(seed)
        return self

    def next_seed(self) -> int:
        """Return the seed of the pass that begins now.

        Where none was set since the last one it is drawn from torch's global
        generator, or from Python's while torch is not imported.
        """
        seed, self._seed = self._seed, None
        return entropy(otherwise=lambda: random.getrandbits(64)) if seed is None else seed


class Shuffling(Seeded):
    """A pipe that changes the order of its source, unless it was told not to."""

    shuffles = True

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Say whether the passes from the next on are shuffled; return the pipe."""
        self.shuffles = shuffle
        return self
