"""A random order of ``0 … n-1`` that need not be stored.

This file is about permutations that are looked up: where the order goes at any
position is computed from a seed, so going on at position n takes no longer than
beginning at 0.

Up to 4,096 numbers are simply shuffled. More are laid out in a grid of about
√n rows by √n columns; every row is rotated by a random distance, then every column, three times
over. Rotations lose nothing and double nothing, and their distances are 6 √n
numbers where the order itself would be n: a grid over a million takes half a
millisecond to set up. The few cells by which the grid is larger than n are walked
through until the way leads back to one of the n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import overload

STORED = 4096
ROUNDS = 3


def permutation(length: int, seed: int) -> Sequence[int]:
    """Return the numbers from 0 to ``length - 1`` in an order drawn from a seed."""
    random = Random(seed)
    if length <= STORED:
        return random.sample(range(length), length)
    return GridPermutation(length, random)


class GridPermutation(Sequence[int]):
    """A permutation by rotating the rows and columns of a grid."""

    def __init__(self, length: int, random: Random) -> None:
        self.length = length
        self.width = math.isqrt(length - 1) + 1
        self.height = -(-length // self.width)
        self.rounds = [self._draw_round(random) for _ in range(ROUNDS)]

    def _draw_round(self, random: Random) -> tuple[list[int], list[int]]:
        width, height = self.width, self.height
        # A product with a fraction is six times faster than randrange, and its bias
        # is of the order of width / 2**53.
        of_rows = [int(random.random() * width) for _ in range(height)]
        of_columns = [int(random.random() * height) for _ in range(width)]
        return of_rows, of_columns

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self[index] for index in range(*position.indices(self.length))]
        if not 0 <= position < self.length:
            raise IndexError(f"position {position} is out of range for {self.length} numbers")
        cell = self._moved(position)
        while cell >= self.length:
            cell = self._moved(cell)
        return cell

    def _moved(self, cell: int) -> int:
        width, height = self.width, self.height
        row, column = divmod(cell, width)
        for of_rows, of_columns in self.rounds:
            column = (column + of_rows[row]) % width
            row = (row + of_columns[column]) % height
        return row * width + column
