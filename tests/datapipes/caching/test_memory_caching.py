from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.prefetching import weight_of
from tests.datapipes.resuming import assert_goes_on, cursors_along, rest_of
from tests.datapipes.watched import Watched

MEGABYTE = 1024 * 1024


def test_items_are_made_once() -> None:
    source = Watched(range(5))
    cached = source.in_memory_cache()

    assert [list(cached) for _ in range(3)] == [list(range(5))] * 3
    assert source.taken == 5


def test_a_pass_that_was_not_read_to_its_end_keeps_nothing() -> None:
    source = Watched(range(5))
    cached = source.in_memory_cache()
    for _ in cached:
        break

    assert source.open == 0
    assert list(cached) == list(range(5))
    assert source.taken == 6


def test_the_last_items_are_kept_where_there_is_room_for_some() -> None:
    items = [bytes([n]) * (MEGABYTE // 4) for n in range(10)]
    source = Watched(items)
    cached = source.in_memory_cache(1)

    assert list(cached) == items
    assert list(cached) == items
    # Three of a quarter of a megabyte, and what an object takes beside.
    assert source.taken == 10 + 7
    assert source.open == 0


def test_nothing_is_kept_where_there_is_no_room() -> None:
    source = Watched(range(5))
    cached = source.in_memory_cache(size=0)

    assert list(cached) == list(cached) == list(range(5))
    assert source.taken == 10


def test_the_length_is_known_once_items_are_kept() -> None:
    cached = IterableWrapper(range(9)).filter(lambda n: n < 5).in_memory_cache()
    with pytest.raises(TypeError):
        len(cached)
    list(cached)

    assert len(cached) == 5


@pytest.mark.parametrize("twin_of", [copy.copy, lambda pipe: pickle.loads(pickle.dumps(pipe))])
def test_a_copy_begins_with_nothing(twin_of: Any) -> None:
    cached = IterableWrapper(list(range(5))).in_memory_cache()
    expected = list(cached)
    twin = twin_of(cached)

    assert twin.kept is None
    assert list(twin) == expected


def test_a_size_is_no_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="size must be at least 0, got -1"):
        IterableWrapper([1]).in_memory_cache(-1)


def test_it_goes_on_from_any_place_of_the_first_pass() -> None:
    assert_goes_on(lambda: IterableWrapper(range(9)).filter(lambda n: n != 4).in_memory_cache())


@pytest.mark.parametrize("size", [None, 0, 1])
def test_it_goes_on_from_any_place_of_a_later_pass(size: int | None) -> None:
    def cached() -> Any:
        items = IterableWrapper(range(12)).filter(lambda n: n != 4)
        return items.map(lambda n: bytes([n]) * (MEGABYTE // 4)).in_memory_cache(size)

    graph = cached()
    list(graph)
    items, along = cursors_along(graph)
    for position, cursors in enumerate(along):
        assert rest_of(cached(), position, cursors) == items[position:]


def test_a_lookup_is_made_once() -> None:
    looked_up: list[int] = []

    def double(number: int) -> int:
        looked_up.append(number)
        return 2 * number

    cached = SequenceWrapper([5, 6]).map(double).in_memory_cache()
    assert [cached[1], cached[1], cached[0]] == [12, 12, 10]
    assert looked_up == [6, 5]
    assert list(copy.copy(cached)) == [10, 12]
    assert looked_up == [6, 5, 5, 6]
    assert len(cached) == 2


class Untold:
    """Fails when it is asked for its size."""

    @property
    def nbytes(self) -> int:
        raise RuntimeError("nobody knows")

    def __sizeof__(self) -> int:
        raise RuntimeError("nobody knows")


@pytest.mark.parametrize(
    ("item", "bytes_in_it"),
    [
        (b"x" * 1000, 1000),
        ([b"x" * 1000, b"y" * 1000], 2000),
        ({"a": (b"x" * 1000,)}, 1000),
        (torch.zeros(1000, dtype=torch.float32), 4000),
        (torch.ones(1000, dtype=torch.float32).to_sparse(), 12000),
        ([Untold(), b"x" * 1000], 1000),
    ],
)
def test_the_weight_of_an_item_is_that_of_all_in_it(item: Any, bytes_in_it: int) -> None:
    assert bytes_in_it < weight_of(item) < bytes_in_it + 1000


def test_an_object_that_holds_itself_has_a_weight() -> None:
    item: list[Any] = []
    item.append(item)

    assert weight_of(item) > 0
