"""Many names in order, a few at a time."""

from __future__ import annotations

import random

import pytest

from asyncloader.datapipes.files.sorting import PIECE, in_order, sorted_pieces


def names_of(count: int) -> list[str]:
    return [f"{number:07d}" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7])
def test_names_come_in_order_in_pieces(count: int) -> None:
    expected = names_of(count)
    shuffled = random.Random(7).sample(expected, count)
    assert list(in_order(list(shuffled))) == expected
    for names in (shuffled, expected[::-1], expected):
        pieces = list(sorted_pieces(list(names)))
        assert [name for piece in pieces for name in piece] == expected
        assert max(map(len, pieces), default=0) <= 2 * PIECE


def test_a_name_may_come_many_times() -> None:
    names = ["b"] * 3 * PIECE + ["a"] * 2
    assert list(in_order(list(names))) == sorted(names)
