"""The seeds of random pipes.

This file is about ``set_seed`` and ``set_shuffle``. A seed is for the next pass; a pass
without a seed draws its own.
"""

from __future__ import annotations

import random
from typing import Self

from asyncloader.seeds import SeedStream, checked_seed, entropy

# The seed of the next pass is this far along the stream of the present pass's seed.
_NEXT_AT = 2**32


class Seeded:
    """A pipe whose order is drawn from a seed."""

    _seed: int | None = None
    _is_seeded = False

    def set_seed(self, seed: int) -> Self:
        """Draw the next pass from ``seed``, a number of 64 bits; return the pipe.

        The seeds of later passes, such as those of a cycle, follow from it.
        """
        self._seed = checked_seed(seed)
        self._is_seeded = True
        return self

    def next_seed(self) -> int:
        """Return the seed of the pass that begins now."""
        seed = self.fixed_seed()
        self.follow_seed(seed)
        return seed

    def follow_seed(self, seed: int) -> None:
        """Note the seed of the current pass; the seed of the next pass follows from it."""
        self._seed = SeedStream(seed, _NEXT_AT).draw() if self._is_seeded else None

    def fixed_seed(self) -> int:
        """Return the seed that the next pass will have, whenever it begins.

        If none was ever set, it is drawn from torch's global generator, or from Python's
        while torch is not imported.
        """
        seed = self.seed_to_come()
        self._seed = entropy(otherwise=lambda: random.getrandbits(64)) if seed is None else seed
        return self._seed

    def seed_to_come(self) -> int | None:
        """Return the seed of the next pass, or None if none was ever set."""
        return self._seed

    def settle_seed(self, seed: int) -> None:
        """Let the next pass draw from a seed."""
        self._seed = seed


class Shuffling(Seeded):
    """A pipe that changes the order of its source, unless it was told not to."""

    shuffles = True

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Say whether the passes from the next on are shuffled; return the pipe."""
        self.shuffles = shuffle
        return self
