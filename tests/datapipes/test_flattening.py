from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from tests.datapipes.resuming import place_of
from tests.datapipes.watched import Watched

NESTED: list[Any] = [[[0, 1], [2]], [[3, 4], [5]], [[6]]]


@pytest.mark.parametrize("level", [-1, 0, 1, 2])
def test_unbatch_goes_as_deep_as_torch(level: int) -> None:
    ours = IterableWrapper(NESTED).unbatch(level)

    assert list(ours) == list(torch_iter.IterableWrapper(NESTED).unbatch(level))


def test_unbatch_goes_no_deeper_than_there_are_lists() -> None:
    with pytest.raises(IndexError, match="unbatch_level=3 goes deeper"):
        list(IterableWrapper(NESTED).unbatch(3))
    with pytest.raises(ValueError, match="unbatch_level must be at least -1, got -2"):
        IterableWrapper(NESTED).unbatch(-2)


def test_a_pass_knows_its_place_inside_a_batch() -> None:
    pipe = IterableWrapper([[1, 2], [], [3]]).unbatch()
    RunTree([pipe])

    assert [(n, *place_of(pipe, "taken", "offset")) for n in pipe] == [
        (1, 1, 1),
        (2, 1, 2),
        (3, 3, 1),
    ]


def test_flatmap_yields_the_items_of_each_result() -> None:
    pipe = IterableWrapper([1, 0, 2]).flatmap(lambda n: [n] * n)
    RunTree([pipe])

    assert [(n, *place_of(pipe, "taken", "offset")) for n in pipe] == [
        (1, 1, 1),
        (2, 3, 1),
        (2, 3, 2),
    ]


def test_flatmap_reads_columns_and_flattens_without_a_function() -> None:
    assert list(IterableWrapper([[1, 2], (3,)]).flatmap()) == [1, 2, 3]
    assert list(IterableWrapper([(1, "ab")]).flatmap(list, 1)) == ["a", "b"]


def test_a_generator_is_read_only_as_far_as_it_is_asked() -> None:
    made = []

    def numbers(item: int) -> Iterator[int]:
        try:
            for number in range(5):
                made.append(number)
                yield number
        finally:
            made.append("closed")

    iterator = iter(Watched([1]).flatmap(numbers))
    next(iterator)
    assert made == [0]
    del iterator
    assert made == [0, "closed"]


async def test_flatmap_awaits_async_functions_and_async_generators() -> None:
    async def twice(item: int) -> list[int]:
        return [item, item]

    async def both(item: int) -> AsyncIterator[int]:
        yield item
        yield -item

    source = IterableWrapper([1, 2])
    assert [n async for n in source.flatmap(twice)] == [1, 1, 2, 2]
    assert [n async for n in source.flatmap(both)] == [1, -1, 2, -2]


def test_an_error_while_a_result_is_read_names_the_pipe_too() -> None:
    def fails(item: int) -> Iterator[int]:
        yield item
        raise KeyError("late")

    seen = []
    with pytest.raises(KeyError) as caught:
        seen.extend(IterableWrapper([1]).flatmap(fails))
    assert caught.value.__notes__ == ["raised in flatmap(fails)"]


def test_what_cannot_be_iterated_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"got int from the function of flatmap"):
        list(IterableWrapper([1]).flatmap(lambda n: n))


TUPLES = [(1, 2, [3, 4]), (5, 6, [7, 8])]


@pytest.mark.parametrize(
    ("columns", "items"),
    [
        ((0, 2), [1, [3, 4], 5, [7, 8]]),
        ([2, 0], [[3, 4], 1, [7, 8], 5]),
        ((2,), [3, 4, 7, 8]),
        (2, [3, 4, 7, 8]),
        ((), []),
    ],
)
def test_without_a_function_an_item_is_taken_apart_into_its_columns(columns, items) -> None:
    pipe = IterableWrapper(TUPLES)

    assert list(pipe.flatmap(input_col=columns)) == items
    shuffled = pipe.shuffled_flatmap(input_col=columns)
    assert list(shuffled.set_shuffle(False)) == items
    with pytest.raises(TypeError, match="cannot say how many"):
        len(shuffled)
