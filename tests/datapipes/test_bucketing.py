from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.grouping import MaxTokenBucketizer
from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import assert_goes_on, cursors_along, rest_of
from tests.datapipes.watched import Watched

WORDS = ["1", "11", "1", "1111", "111", "1", "11", "11", "111"]

words = st.lists(st.text("ab", max_size=8), max_size=40)


def seeded(pipe: Any) -> Any:
    """Give all shufflers of a bucketbatch a seed."""
    while hasattr(pipe, "source"):
        if hasattr(pipe, "set_seed"):
            pipe.set_seed(6)
        pipe = pipe.source
    return pipe


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_bucketbatch_has_every_item_in_batches_of_neighbours(
    count: int, batch_size: int, batch_num: int, bucket_num: int, in_batch: bool
) -> None:
    numbers = [n * 7 % count if count % 7 else n for n in range(count)]
    batches = list(
        IterableWrapper(numbers).bucketbatch(
            batch_size, False, batch_num, bucket_num, sorted, in_batch
        )
    )

    assert sorted(n for batch in batches for n in batch) == list(range(count))
    assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1)


def test_a_bucket_is_sorted_within_itself() -> None:
    numbers = IterableWrapper([5, 3, 9, 1, 7, 2, 8, 4])

    batches = list(numbers.bucketbatch(2, batch_num=2, sort_key=sorted))
    assert batches == [[1, 3], [5, 9], [2, 4], [7, 8]]
    assert list(numbers.bucketbatch(3, True, 1, 1, sorted)) == [[3, 5, 9], [1, 2, 7]]


async def test_buckets_may_be_sorted_by_an_async_function() -> None:
    async def backwards(bucket: list[int]) -> list[int]:
        return sorted(bucket, reverse=True)

    pipe = IterableWrapper(range(4)).bucketbatch(2, sort_key=backwards)
    assert [batch async for batch in pipe] == [[3, 2], [1, 0]]


def test_without_a_sort_key_items_are_shuffled_and_their_number_is_known() -> None:
    pipe = IterableWrapper(range(20)).bucketbatch(3)
    with pytest.raises(TypeError):
        len(pipe)
    through_a_buffer = IterableWrapper(range(20)).bucketbatch(3, use_in_batch_shuffle=False)

    assert len(through_a_buffer) == len(list(through_a_buffer)) == 7
    assert sorted(n for batch in pipe for n in batch) == list(range(20))


@pytest.mark.parametrize("name", ["batch_size", "batch_num", "bucket_num"])
def test_sizes_of_buckets_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        IterableWrapper([1]).bucketbatch(**{"batch_size": 2, name: 0})


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("sort_key", [None, sorted])
def test_bucketbatch_goes_on_from_any_place(in_batch: bool, sort_key: Any) -> None:
    def batches() -> Any:
        odd = IterableWrapper(range(50)).filter(lambda n: n % 2 == 1)
        pipe = odd.bucketbatch(2, False, 2, 3, sort_key, in_batch)
        seeded(pipe)
        return pipe

    assert_goes_on(batches)


# max_token_bucketize --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_token_count": 5}, [["1", "1", "1", "11"], ["11", "11"], ["111"], ["111"], ["1111"]]),
        (
            {"max_token_count": 4, "buffer_size": 4},
            [["1", "1", "1"], ["11", "11"], ["11"], ["111"], ["111"], ["1111"]],
        ),
        (
            {"max_token_count": 4, "min_len": 2, "max_len": 3},
            [["11", "11"], ["11"], ["111"], ["111"]],
        ),
        (
            {"max_token_count": 6, "include_padding": True},
            [["1", "1", "1"], ["11", "11", "11"], ["111", "111"], ["1111"]],
        ),
    ],
)
def test_batches_are_those_of_torchdata(settings: Any, expected: Any) -> None:
    assert list(IterableWrapper(WORDS).max_token_bucketize(**settings)) == expected


@given(words, st.integers(8, 20), st.integers(1, 12), st.booleans())
def test_no_item_is_lost_and_no_batch_too_large(
    items: list[str], tokens: int, buffer_size: int, include_padding: bool
) -> None:
    pipe = IterableWrapper(items).max_token_bucketize(
        tokens, buffer_size=buffer_size, include_padding=include_padding
    )
    batches = list(pipe)

    assert sorted(item for batch in batches for item in batch) == sorted(items)
    for batch in batches:
        padded = len(batch) * max(map(len, batch))
        assert (padded if include_padding else sum(map(len, batch))) <= tokens


def test_items_of_one_length_keep_their_order() -> None:
    pairs = [(1, n) for n in range(9)]

    batches = IterableWrapper(pairs).max_token_bucketize(3, len_fn=lambda pair: pair[0])
    assert [pair for batch in batches for pair in batch] == pairs


def test_a_long_item_comes_before_the_end_of_a_long_source() -> None:
    pipe = IterableWrapper([9, *[1] * 5000]).max_token_bucketize(
        10, len_fn=lambda n: n, buffer_size=4
    )

    assert next(place for place, batch in enumerate(pipe) if 9 in batch) <= 101


def test_items_are_alike_all_along_a_long_source() -> None:
    lengths = [n * 7919 % 100 + 1 for n in range(20_000)]
    pipe = IterableWrapper(lengths).max_token_bucketize(
        2000, len_fn=lambda n: n, include_padding=True
    )
    batches = list(pipe)

    padding = sum(len(batch) * max(batch) - sum(batch) for batch in batches)
    assert padding < 0.15 * sum(lengths)


def test_no_more_than_the_buffer_and_a_batch_are_taken_ahead() -> None:
    source = Watched(["a"] * 50)

    items = iter(source.max_token_bucketize(2, buffer_size=5))
    next(items)
    assert source.taken == 7
    items.close()  # type: ignore[attr-defined]
    assert source.open == 0


async def test_lengths_may_come_from_an_async_function() -> None:
    async def length(word: str) -> int:
        return len(word)

    pipe = IterableWrapper(WORDS).max_token_bucketize(5, length)
    assert [batch async for batch in pipe] == list(IterableWrapper(WORDS).max_token_bucketize(5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_token_count": 5, "min_len": -1}, "min_len must be at least 0"),
        ({"max_token_count": 5, "min_len": 3, "max_len": 2}, "max_len must be at least 3, got 2"),
        ({"max_token_count": 5, "min_len": 6}, "max_token_count must be at least 6, got 5"),
        ({"max_token_count": 5, "max_len": 6}, r"at most max_token_count \(5\), got 6"),
        ({"max_token_count": 5, "buffer_size": 0}, "buffer_size must be at least 1"),
    ],
)
def test_limits_must_fit_one_another(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterableWrapper(WORDS).max_token_bucketize(**settings)


def test_max_token_bucketize_goes_on_from_any_place() -> None:
    def batches() -> Any:
        lengths = IterableWrapper(range(60)).filter(lambda n: n % 3 > 0).map(lambda n: n * 7 % 20)
        return lengths.max_token_bucketize(40, len_fn=lambda n: n, buffer_size=5)

    assert_goes_on(batches)


def test_it_goes_on_in_every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaxTokenBucketizer, "section", 7)
    test_max_token_bucketize_goes_on_from_any_place()


def test_going_on_makes_a_section_again_and_no_more() -> None:
    measured: list[int] = []

    def length(number: int) -> int:
        measured.append(number)
        return 1

    def batches() -> Any:
        return IterableWrapper(range(3000)).max_token_bucketize(10, length, buffer_size=4)

    items, along = cursors_along(batches())
    measured.clear()
    assert rest_of(batches(), 250, along[250]) == items[250:]
    assert min(measured) == 2000
