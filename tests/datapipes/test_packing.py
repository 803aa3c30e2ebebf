from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import assert_goes_on, cursors_along, rest_of
from tests.datapipes.watched import Watched

SPLITS = ["never", "long", "always"]

lengths = st.lists(st.integers(0, 30), max_size=30)


def sequences_of(lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Return sequences of tokens that say which sequence they are of, and their place."""
    return [[(number, place) for place in range(n)] for number, n in enumerate(lengths)]


def packed(lengths: list[int], budget: int, **settings: Any) -> list[Any]:
    return list(IterableWrapper(sequences_of(lengths)).pack_sequences(budget, **settings))


@given(lengths, st.integers(1, 12), st.integers(1, 5), st.sampled_from(SPLITS))
def test_no_token_is_lost_or_doubled_and_no_pack_too_large(
    lengths: list[int], budget: int, open_packs: int, split: Any
) -> None:
    if split == "never":
        lengths = [length for length in lengths if length <= budget]
    packs = packed(lengths, budget, split=split, open_packs=open_packs)

    assert all(pack and sum(map(len, pack)) <= budget for pack in packs)
    pieces = [piece for pack in packs for piece in pack]
    tokens = [token for piece in pieces for token in piece]
    assert sorted(tokens) == [token for seq in sequences_of(lengths) for token in seq]
    assert sum(not piece for piece in pieces) == lengths.count(0)


@given(lengths, st.integers(1, 12), st.integers(1, 5))
def test_only_sequences_longer_than_the_budget_are_cut(
    lengths: list[int], budget: int, open_packs: int
) -> None:
    packs = packed(lengths, budget, split="long", open_packs=open_packs)

    pieces = [piece for pack in packs for piece in pack]
    for number, length in enumerate(lengths):
        parts = [piece for piece in pieces if piece and piece[0][0] == number]
        assert len(parts) == -(-length // budget)


@given(lengths, st.integers(1, 12))
def test_cutting_always_fills_all_packs_but_the_last_and_keeps_the_order(
    lengths: list[int], budget: int
) -> None:
    packs = packed(lengths, budget, split="always")

    tokens = [token for pack in packs for piece in pack for token in piece]
    assert tokens == [token for seq in sequences_of(lengths) for token in seq]
    filled = [sum(map(len, pack)) for pack in packs]
    assert filled[:-1] == [budget] * (len(packs) - 1)
    whole = packed(lengths, budget, split="always", drop_last=True)
    assert [sum(map(len, pack)) for pack in whole] == [budget] * (sum(lengths) // budget)


def test_a_sequence_goes_where_it_leaves_least_room() -> None:
    assert [[len(piece) for piece in pack] for pack in packed([4, 3, 2, 3, 1], 6)] == [
        [4, 2],
        [3, 3],
        [1],
    ]


def test_the_oldest_pack_makes_room_for_another() -> None:
    packs = packed([5, 4, 3, 3, 2, 1], 6, open_packs=2)
    assert [[len(piece) for piece in pack] for pack in packs] == [[5], [3, 3], [4, 2], [1]]


def test_a_piece_that_fills_a_pack_takes_no_place() -> None:
    packs = packed([5, 4, 13, 2, 1], 6, open_packs=2, split="long")
    assert [[len(piece) for piece in pack] for pack in packs] == [[6], [6], [5, 1], [4, 2], [1]]


def test_more_open_packs_leave_less_room_empty() -> None:
    lengths = [n * 7919 % 900 + 100 for n in range(500)]
    filled = {
        count: sum(lengths) / (len(packed(lengths, 2048, open_packs=count)) * 2048)
        for count in (1, 16)
    }

    assert filled[1] < 0.9
    assert filled[16] > 0.96


def test_what_is_left_open_at_the_end_may_be_left_out() -> None:
    assert packed([3, 6, 2], 6, drop_last=True) == [[sequences_of([3, 6, 2])[1]]]


def test_a_sequence_longer_than_the_budget_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r'a sequence of 7 tokens.*split="long"'):
        packed([3, 7], 6)


def test_a_pack_is_yielded_when_it_is_full() -> None:
    source = Watched([[1, 2, 3], [4, 5, 6], [7]])

    items = iter(source.pack_sequences(6))
    assert next(items) == [[1, 2, 3], [4, 5, 6]]
    assert source.taken == 2
    items.close()  # type: ignore[attr-defined]
    assert source.open == 0


def test_functions_say_how_long_a_sequence_is_and_how_to_cut_it() -> None:
    rows = [{"ids": list(range(n))} for n in (3, 5)]

    def cut(row: Any, start: int, stop: int) -> Any:
        return {"ids": row["ids"][start:stop]}

    pipe = IterableWrapper(rows).pack_sequences(
        4, len_fn=lambda row: len(row["ids"]), split="always", cut_fn=cut
    )
    assert [[row["ids"] for row in pack] for pack in pipe] == [[[0, 1, 2], [0]], [[1, 2, 3, 4]]]


async def test_functions_may_be_async() -> None:
    async def length(word: str) -> int:
        return len(word)

    async def cut(word: str, start: int, stop: int) -> str:
        return word[start:stop]

    pipe = IterableWrapper(["four", "letters"]).pack_sequences(
        6, len_fn=length, split="always", cut_fn=cut
    )
    assert [pack async for pack in pipe] == [["four", "le"], ["tters"]]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [(-1, ValueError, "at least 0, got -1"), ("3", TypeError, "an integer, got str")],
)
def test_lengths_are_whole_numbers(answer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(IterableWrapper([[1]]).pack_sequences(6, len_fn=lambda _: answer))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0}, "budget must be at least 1"),
        ({"budget": 4, "open_packs": 0}, "open_packs must be at least 1"),
        ({"budget": 4, "split": "some"}, "split must be .*, got 'some'"),
    ],
)
def test_settings_out_of_range(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterableWrapper([[1]]).pack_sequences(**settings)


@pytest.mark.sweep
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("drop_last", [True, False])
def test_it_goes_on_from_any_place(split: Any, drop_last: bool) -> None:
    def packs() -> Any:
        numbers = IterableWrapper(range(60)).filter(lambda n: n % 3 > 0)
        sequences = numbers.map(lambda n: [n] * (n * 7 % (31 if split != "never" else 10)))
        return sequences.pack_sequences(9, split=split, open_packs=3, drop_last=drop_last)

    assert_goes_on(packs)


def test_going_on_measures_nothing_again() -> None:
    measured: list[int] = []

    def length(number: int) -> int:
        measured.append(number)
        return number % 7 + 1

    def packs() -> Any:
        return IterableWrapper(range(2000)).pack_sequences(16, len_fn=length, open_packs=4)

    items, along = cursors_along(packs())
    held = max(number for pack in items[:200] for number in pack)
    measured.clear()
    assert rest_of(packs(), 200, along[200]) == items[200:]
    assert min(measured) > held - 16
