from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from tests.datapipes.resuming import assert_goes_on, cursors_along, rest_of
from tests.datapipes.watched import Watched

nested = st.lists(st.integers(0, 6), max_size=20)


def parts_of(lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Return lists of items that say which list they are of, and their place in it."""
    return [[(number, place) for place in range(n)] for number, n in enumerate(lengths)]


@given(nested, st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_no_item_is_lost_and_every_expansion_keeps_its_order(
    lengths: list[int], buffer_size: int, seed: int
) -> None:
    pipe = IterableWrapper(parts_of(lengths)).shuffled_flatmap(buffer_size=buffer_size)
    items = list(pipe.set_seed(seed))

    for number, length in enumerate(lengths):
        assert [place for n, place in items if n == number] == list(range(length))
    assert list(pipe.set_seed(seed)) == items
    assert len(pipe) == len(items)


@given(nested, st.integers(1, 5))
def test_no_more_than_the_buffer_are_mixed(lengths: list[int], buffer_size: int) -> None:
    pipe = IterableWrapper(parts_of(lengths)).shuffled_flatmap(buffer_size=buffer_size)

    begun: set[int] = set()
    ended: set[int] = set()
    for number, place in pipe:
        begun.add(number)
        assert len(begun - ended) <= buffer_size
        if place == lengths[number] - 1:
            ended.add(number)


def test_other_seeds_mix_in_another_way() -> None:
    pipe = IterableWrapper(parts_of([9] * 9)).shuffled_flatmap()

    assert list(pipe.set_seed(1)) != list(pipe.set_seed(2))
    assert list(pipe) != list(pipe)


class Loading:
    """Knows how many lists it has, and would have to load them to know how long they are."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        raise AssertionError("they are loaded")


def test_a_length_is_told_only_of_what_is_in_memory() -> None:
    with pytest.raises(TypeError, match="cannot say how many"):
        len(IterableWrapper(Loading()).shuffled_flatmap())


def test_without_shuffling_it_is_flatmap() -> None:
    pipe = IterableWrapper(range(5)).shuffled_flatmap(lambda n: [n] * n).set_shuffle(False)

    assert list(pipe) == [n for n in range(5) for _ in range(n)]
    with pytest.raises(TypeError, match="cannot say how many"):
        len(pipe)


async def test_functions_of_all_kinds() -> None:
    def generated(number: int) -> Iterator[int]:
        yield from range(number)

    async def awaited(number: int) -> list[int]:
        return list(range(number))

    async def generated_async(number: int) -> AsyncIterator[int]:
        for n in range(number):
            yield n

    source = IterableWrapper([("a", 2), ("b", 3)])
    for function in (generated, awaited, generated_async):
        pipe = source.shuffled_flatmap(function, input_col=1, buffer_size=2)
        assert sorted([n async for n in pipe]) == [0, 0, 1, 1, 2]


def test_nothing_is_taken_before_there_is_room_for_it() -> None:
    source = Watched([[n] * 3 for n in range(50)])

    items = iter(source.shuffled_flatmap(buffer_size=4))
    next(items)
    assert source.taken == 4
    items.close()  # type: ignore[attr-defined]
    assert source.open == 0


def test_expansions_that_are_open_are_closed_on_an_early_break() -> None:
    opened: list[int] = []

    def generated(number: int) -> Iterator[int]:
        opened.append(number)
        try:
            yield from range(number)
        finally:
            opened.remove(number)

    pipe = IterableWrapper(range(5, 9)).shuffled_flatmap(generated, buffer_size=3)
    items = iter(pipe)
    for _ in range(4):
        next(items)
    assert opened
    items.close()  # type: ignore[attr-defined]
    assert opened == []


def test_what_cannot_be_taken_apart_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="something to iterate, got int"):
        list(IterableWrapper([1]).shuffled_flatmap())
    with pytest.raises(ValueError, match="buffer_size must be at least 1"):
        IterableWrapper([[1]]).shuffled_flatmap(buffer_size=0)


@pytest.mark.parametrize("shuffles", [True, False])
def test_it_goes_on_from_any_place(shuffles: bool) -> None:
    def mixed() -> Any:
        numbers = IterableWrapper(range(20)).filter(lambda n: n % 3 > 0)
        pipe = numbers.shuffled_flatmap(lambda n: [n] * (n % 5), buffer_size=3)
        return pipe.set_shuffle(shuffles).set_seed(4)

    assert_goes_on(mixed)


def test_going_on_expands_again_only_what_is_open() -> None:
    expanded: list[int] = []

    def expand(number: int) -> list[int]:
        expanded.append(number)
        return [number] * 4

    def mixed() -> Any:
        return IterableWrapper(range(1000)).shuffled_flatmap(expand, buffer_size=5).set_seed(4)

    items, along = cursors_along(mixed())
    expanded.clear()
    assert rest_of(mixed(), 2000, along[2000]) == items[2000:]
    # One that is open may have nothing left, which shows when it is drawn.
    assert len(expanded) <= len(set(items[2000:])) + 5


def test_a_state_is_loaded_where_its_reader_has_ended_before_it() -> None:
    def graph() -> Any:
        mixed = IterableWrapper([[1, 2, 3], [4, 5, 6]]).shuffled_flatmap(buffer_size=2)
        return IterableWrapper("ab").zip(mixed).mux_longest(IterableWrapper(range(4)))

    with noting_at_every_item(), DataLoader2(graph(), seed=1) as loader:
        along = [(item, loader.state_dict()) for item in loader]
    items = [item for item, _ in along]
    for step, (_, state) in enumerate(along, 1):
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            assert list(loader) == items[step:]
