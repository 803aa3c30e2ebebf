from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader.datapipes.shuffling import GridPermutation, permutation
from tests.processes.scripts import run_script


@given(st.integers(1, 500), st.integers(0, 2**64 - 1))
def test_a_grid_maps_its_numbers_one_to_one(length: int, seed: int) -> None:
    order = GridPermutation(length, Random(seed))

    assert sorted(order) == list(range(length))


@settings(max_examples=5, deadline=None)
@given(st.integers(4000, 20_000), st.integers(0, 2**64 - 1))
def test_a_permutation_of_any_length_is_complete_and_repeats(length: int, seed: int) -> None:
    order = list(permutation(length, seed))

    assert sorted(order) == list(range(length))
    assert order == list(permutation(length, seed))


def test_the_order_at_the_end_of_a_billion_is_there_at_once() -> None:
    order = permutation(10**9, 1)

    assert 0 <= order[10**9 - 1] < 10**9
    assert len({order[n] for n in range(1000)}) == 1000


def test_a_position_outside_is_an_index_error() -> None:
    order = GridPermutation(100, Random(1))

    assert order[2:4] == [order[2], order[3]]
    for position in (-1, 100):
        with pytest.raises(IndexError):
            order[position]


def spread(counts: Counter[int], values: int) -> float:
    """Return how many standard deviations chi-squared is away from a uniform draw."""
    expected = counts.total() / values
    chi = sum((counts[value] - expected) ** 2 / expected for value in range(values))
    return abs(chi - values) / math.sqrt(2 * values)


@pytest.mark.parametrize("length", [97, 100])
def test_every_number_is_as_likely_at_every_place(length: int) -> None:
    orders = [GridPermutation(length, Random(seed)) for seed in range(4000)]

    for place in (0, length // 2, length - 1):
        assert spread(Counter(order[place] for order in orders), length) < 4


@pytest.mark.parametrize("length", [97, 100])
def test_neighbours_in_row_and_column_end_up_apart(length: int) -> None:
    orders = [GridPermutation(length, Random(seed)) for seed in range(4000)]

    for distance in (1, orders[0].width):
        gaps = Counter((order[distance] - order[0]) % length - 1 for order in orders)
        assert spread(gaps, length - 1) < 4


def test_a_long_order_rises_and_falls_like_a_random_one() -> None:
    order = list(GridPermutation(50_000, Random(3)))
    rises = sum(after > before for before, after in pairwise(order))

    # The standard deviation of the number of rises is sqrt(n / 12).
    assert abs(rises - 25_000) < 4 * math.sqrt(50_000 / 12)
    assert sum(place == number for place, number in enumerate(order)) < 8


@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 4097, 20_000])
def test_an_order_that_is_laid_out_at_once_is_the_one_that_is_computed(length):
    grid = GridPermutation(length, Random(length))
    assert list(grid.laid_out()) == list(grid) == list(grid.at(range(length)))


@pytest.mark.parametrize("length", [1, 5, 97, 10_000, 70_001, 3_000_017])
@pytest.mark.parametrize(
    "places",
    [
        lambda length: range(length),
        lambda length: range(length // 3, length, 7),
        lambda length: [length - 1, 0, length // 2],
        lambda length: (place for place in range(0, length, 3)),
        lambda length: [],
    ],
    ids=["all", "some", "a few", "as they come", "none"],
)
def test_numpy_computes_the_same_order(monkeypatch, length: int, places: Any) -> None:
    pytest.importorskip("numpy")
    order = GridPermutation(length, Random(length))
    together = [*islice(order.at(places(length)), 30_000)]
    monkeypatch.delitem(sys.modules, "numpy")
    assert together == [*islice(order.at(places(length)), 30_000)]
    assert {*map(type, together)} <= {int}


def test_numpy_finds_its_way_through_the_cells_beyond_the_length() -> None:
    pytest.importorskip("numpy")
    # A last row of one number only: most of it is beyond.
    order = GridPermutation(300 * 299 + 1, Random(1))
    assert sorted(order.at(range(len(order)))) == list(range(len(order)))


@pytest.mark.parametrize("which", ["numpy", "numpy.random"])
@given(st.integers(16_385**2 + 1, 10**10), st.integers(0, 2**64 - 1))
@settings(max_examples=5, deadline=None)
def test_numpy_draws_the_same_order(which: str, length: int, seed: int) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("numpy.random")
    places = [*range(500), *range(length - 500, length)]
    with pytest.MonkeyPatch.context() as patch:
        if which == "numpy":
            patch.delitem(sys.modules, "numpy.random")
        together = GridPermutation(length, Random(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numpy")
        alone = GridPermutation(length, Random(seed))
        expected = [alone[place] for place in places]
    assert sys.modules["numpy"] is numpy
    assert list(together.at(places)) == [together[place] for place in places] == expected


#: Prints whether the numbers of an order were drawn by NumPy, in a program and in its worker.
IMPORTED = """
import sys

import numpy

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.map import SequenceWrapper

def is_imported(item):
    return item, "numpy.random" in sys.modules

class Rows:
    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    for workers in (1, 0):
        pipe = SequenceWrapper(Rows(), deepcopy=False).shuffle().sharding_filter().map(is_imported)
        service = MultiProcessingReadingService(1) if workers else None
        with DataLoader2(pipe, None, service, seed=5) as loader:
            print(*next(iter(loader)))
"""


def test_only_a_program_imports_what_draws_the_order_of_a_trillion(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    done = run_script(tmp_path, IMPORTED)
    assert done.returncode == 0, done.stderr
    (number, in_worker), (same, in_program) = map(str.split, done.stdout.splitlines())
    assert number == same
    assert (in_worker, in_program) == ("False", "True")
