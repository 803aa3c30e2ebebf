from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import IteratorInvalidated
from tests.datapipes.resuming import assert_goes_on, cursors_along, placed, plain, rest_of
from tests.datapipes.watched import Watched

HALVES = {"train": 0.5, "valid": 0.5}


@given(
    st.integers(0, 40),
    st.dictionaries(st.integers(), st.floats(0.01, 10), min_size=1, max_size=4),
    st.integers(),
)
def test_every_item_is_in_one_share(length: int, weights: dict[int, float], seed: int) -> None:
    shares = IterableWrapper(range(length)).random_split(weights, seed)

    parts = [list(share) for share in shares]
    assert sorted(item for part in parts for item in part) == list(range(length))
    assert all(part == sorted(part) for part in parts)
    assert [list(share) for share in shares] == parts
    for part, weight in zip(parts, weights.values(), strict=True):
        # Whoever gets a fraction of an item gets it whole, or not.
        expected = length * weight / sum(weights.values())
        assert expected - len(weights) < len(part) < expected + len(weights)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), st.integers())
def test_whole_numbers_give_just_these_lengths(counts: list[int], seed: int) -> None:
    shares = IterableWrapper(range(sum(counts))).random_split(dict(enumerate(counts)), seed)

    assert [len(list(share)) for share in shares] == counts
    assert [len(share) for share in shares] == counts


def test_large_whole_numbers_give_just_these_lengths() -> None:
    counts = {number: 10**9 + number for number in range(99)}
    total = sum(counts.values())
    shares = IterableWrapper(range(9)).random_split(counts, seed=0, total_length=total)

    assert [len(share) for share in shares] == list(counts.values())


def test_a_split_is_that_of_torchdata() -> None:
    # So that a model trained before is not validated by what it was trained on.
    train, valid = IterableWrapper(range(10)).random_split(HALVES, seed=0)

    assert list(train) == [2, 3, 5, 7, 8]
    assert list(valid) == [0, 1, 4, 6, 9]


def test_a_share_goes_on_behind_many_draws() -> None:
    def share() -> Any:
        return IterableWrapper(range(140_000)).random_split({0: 0.3, 1: 0.7}, 3, target=1)

    run = placed(share())
    items = list(islice(run.begin(), 80_000))
    cursors: dict[int, Any] = {}
    run.put_cursors(cursors)
    assert rest_of(share(), 80_000, plain(cursors)) == list(share())[len(items) :]


def test_one_share_may_be_asked_for() -> None:
    train, _ = IterableWrapper(range(10)).random_split(HALVES, 3)

    assert list(IterableWrapper(range(10)).random_split(HALVES, 3, target="train")) == list(train)
    with pytest.raises(KeyError, match="got 'test'"):
        IterableWrapper(range(10)).random_split(HALVES, 3, 10, "test")


def test_another_seed_splits_all_shares_in_another_way() -> None:
    train, valid = IterableWrapper(range(30)).random_split(HALVES, 3)
    before = list(train)

    assert train.override_seed(4) is train
    assert list(train) != before
    assert sorted([*train, *valid]) == list(range(30))


def test_a_pass_keeps_the_seed_it_began_with() -> None:
    train, _ = IterableWrapper(range(30)).random_split(HALVES, 3)
    expected = list(train)
    items = iter(train)
    begun = [next(items)]
    train.override_seed(4)

    assert [*begun, *items] == expected


def test_a_pass_over_one_share_invalidates_those_over_the_others() -> None:
    source = Watched(range(30))
    train, valid = source.random_split(HALVES, 3)
    items = iter(train)
    next(items)
    assert len(list(valid)) == 15

    with pytest.raises(IteratorInvalidated, match="iterator has been invalidated"):
        next(items)
    assert source.open == 0

    not_begun = iter(train)
    iter(valid)
    with pytest.raises(IteratorInvalidated, match="iterator has been invalidated"):
        next(not_begun)


def test_a_copy_of_a_share_is_split_by_itself() -> None:
    train, _ = IterableWrapper(range(30)).random_split(HALVES, 3)
    expected = list(train)
    other = copy.deepcopy(train)
    other.override_seed(4)

    assert list(train) == expected


def test_a_length_that_is_not_known_has_to_be_given() -> None:
    unknown = IterableWrapper(range(9)).filter(lambda n: n < 6)
    with pytest.raises(TypeError, match="pass total_length"):
        unknown.random_split(HALVES, 3)
    train, valid = unknown.random_split(HALVES, 3, 6)
    assert sorted([*train, *valid]) == list(range(6))


def test_more_items_than_total_length_are_an_error() -> None:
    train, _ = IterableWrapper(range(9)).random_split(HALVES, 3, 6)
    with pytest.raises(ValueError, match="has more than 6 items"):
        list(train)


def test_lengths_that_are_drawn_are_not_known_before() -> None:
    train, _ = IterableWrapper(range(9)).random_split(HALVES, 3)
    with pytest.raises(TypeError, match="set_length"):
        len(train)


@pytest.mark.parametrize(
    ("weights", "seed", "error", "message"),
    [
        ({}, 0, ValueError, "at least one key"),
        ({"a": -1, "b": 2}, 0, ValueError, "at least 0, got -1"),
        ({"a": 10**400}, 0, ValueError, "the weight of 'a' is too large"),
        ({"a": True}, 0, TypeError, "the weight of 'a' must be a number, got bool"),
        ({"a": 0}, 0, ValueError, "must not all be 0"),
        (HALVES, None, TypeError, "seed must be an integer, got NoneType"),
    ],
)
def test_what_cannot_be_split(
    weights: Any, seed: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        IterableWrapper(range(9)).random_split(weights, seed)


def test_a_split_is_read_through_its_shares() -> None:
    train, _ = IterableWrapper(range(9)).random_split(HALVES, 3)

    assert repr(train) == "random_split(seed=3, total_length=9)['train']"
    with pytest.raises(TypeError, match="iterate those"):
        iter(train.source)


def test_it_goes_on_from_any_place() -> None:
    def both() -> Any:
        odd = IterableWrapper(range(40)).filter(lambda n: n % 2 == 1)
        train, valid = odd.random_split(HALVES, 3, 20)
        return train.concat(valid)

    assert_goes_on(both)


def test_an_overridden_seed_travels_with_the_place() -> None:
    def share(seed: int) -> Any:
        return (
            IterableWrapper(range(40)).random_split(HALVES, 1, target="train").override_seed(seed)
        )

    items, along = cursors_along(share(9))
    assert rest_of(share(1), 7, along[7]) == items[7:]
