"""The seeds of random pipes, and what is drawn from them.

This file is about ``set_seed``, ``set_shuffle`` and ``fractions``, and about the seeds of several
pipes. A seed is for the next pass; a pass without a seed draws its own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, repeat, starmap
from random import Random
from typing import Annotated, Any, Self

from asyncloader.datapipes.running.cursor_forms import COUNT, SEED, list_of, row
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.seeds import SeedStream, checked_seed, entropy

# The seed of the next pass is this far along the stream of the present pass's seed.
_NEXT_AT = 2**32

#: So many fractions come from a generator of their own, so that any can be drawn without those
#: before it.
BLOCK = 4096


def fractions(seed: int, first: int = 0) -> Iterator[float]:
    """Return the endless random fractions of a seed, from number ``first`` on.

    >>> later = fractions(5, 10_000_000)
    >>> next(later) == next(fractions(5, 10_000_000))
    True
    """
    block, before = divmod(first, BLOCK)
    drawn = chain.from_iterable(_block(seed, number) for number in count(block))
    deque(islice(drawn, before), maxlen=0)
    return drawn


def _block(seed: int, number: int) -> Iterator[float]:
    return starmap(Random(seed << 64 | number).random, repeat((), BLOCK))


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

    def begin_at(self, state: Any) -> None:
        """Note the state from which the current pass resumes."""
        self.follow_seed(state.seed)

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


#: The seeds of pipes, by their numbers.
Seeds = dict[int | None, int]

SeedPairs = Annotated[list[Any], list_of(row(COUNT, SEED))]


def seeded_in(pipes: Iterable[Any]) -> list[Seeded]:
    return [pipe for pipe in pipes if isinstance(pipe, Seeded)]


def seeds_to_come(pipes: Iterable[Seeded]) -> Seeds:
    """Return the seeds that the next passes of these pipes will have."""
    seeds = [(number_of(pipe), pipe.seed_to_come()) for pipe in pipes]
    return {number: seed for number, seed in seeds if number is not None and seed is not None}


def set_seeds(pipes: Iterable[Seeded], seeds: Seeds) -> None:
    for pipe in pipes:
        seed = seeds.get(number_of(pipe))
        if seed is not None:
            pipe.set_seed(seed)


def in_pairs(seeds: Seeds) -> list[Any]:
    """Return them as they are in a state."""
    return [[number, seed] for number, seed in seeds.items() if number is not None]


class Shuffling(Seeded):
    """A pipe that changes the order of its source, unless it was told not to."""

    shuffles = True

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Say whether the passes from the next on are shuffled; return the pipe."""
        self.shuffles = shuffle
        return self
