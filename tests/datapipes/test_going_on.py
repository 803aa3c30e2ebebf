"""Pipes that run ahead go on where they were, with every item once."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import TooManyErrors

COUNT = 120


async def double(number):
    # As many turns of the loop as a number says, so that results come in no order.
    for _ in range(number * 7 % 11):
        await asyncio.sleep(0)
    return 2 * number


async def double_some(number):
    if number % 5 == 2:
        raise LookupError(number)
    return await double(number)


def plainly_double_some(number):
    if number % 5 == 2:
        raise LookupError(number)
    return 2 * number


def minus(error, number):
    return -number


def numbers(count=COUNT):
    return IterableWrapper(range(count)).shuffle(buffer_size=16)


GRAPHS = {
    "async_map": lambda: numbers().async_map(double, concurrency=8),
    "async_map, skip": lambda: numbers().async_map(double_some, concurrency=8, on_error="skip"),
    "async_map, answers": lambda: numbers().async_map(double_some, on_error=minus),
    "async_map, batches": lambda: numbers().async_map_batches(double, 8).batch(4),
    "async_map, lists": lambda: numbers().async_map_batches(double, 4, flatten=False),
    "thread_map": lambda: numbers().thread_map(str, concurrency=3),
    "thread_map, skip": lambda: numbers().thread_map(plainly_double_some, on_error="skip"),
    "threadpool_map": lambda: numbers().threadpool_map(str, max_workers=2).prefetch(3),
    "map_batches": lambda: numbers().map_batches(lambda some: [sum(some), len(some)], 7),
    "two windows": lambda: numbers().async_map(double_some, on_error="skip").async_map(double),
}

UNORDERED = {
    "async_map": lambda: numbers().async_map(double, concurrency=8, ordered=False),
    "async_map, skip": lambda: numbers().async_map(
        double_some, concurrency=8, ordered=False, on_error="skip"
    ),
    "async_map, then batches": lambda: (
        numbers().async_map(double, concurrency=8, ordered=False).map(abs).batch(3)
    ),
    "async_map, then prefetch": lambda: (
        numbers().async_map(double, concurrency=8, ordered=False).prefetch(5)
    ),
    "async_map, then shuffle": lambda: (
        numbers().async_map(double, concurrency=8, ordered=False).shuffle(buffer_size=20)
    ),
    "thread_map": lambda: numbers().thread_map(hash, concurrency=3, ordered=False),
    "thread_map, skip": lambda: numbers().thread_map(
        plainly_double_some, concurrency=3, ordered=False, on_error="skip"
    ),
}


async def all_of(graph, state=None):
    loader = DataLoader2(graph)
    loader.seed(5)
    if state is not None:
        loader.load_state_dict(state)
    async with loader:
        return [item async for item in loader]


async def part_of(graph, count, state=None):
    """Return the first ``count`` items from a state, and the state after them."""
    loader = DataLoader2(graph)
    loader.seed(5)
    if state is not None:
        loader.load_state_dict(state)
    async with loader:
        items = []
        async for item in loader:
            items.append(item)
            if len(items) == count:
                break
        return items, loader.state_dict(include_datapipe=False)


@pytest.mark.parametrize("name", GRAPHS)
async def test_in_order_what_follows_is_the_same(name):
    expected = await all_of(GRAPHS[name]())
    for count in [1, 2, 3, 5, 8, 12, len(expected) - 1]:
        items, state = await part_of(GRAPHS[name](), count)
        assert items + await all_of(GRAPHS[name](), state) == expected, count


@pytest.mark.sweep
@pytest.mark.parametrize("name", GRAPHS)
async def test_in_order_it_goes_on_again_and_again(name):
    expected = await all_of(GRAPHS[name]())
    steps = random.Random(1)
    items, state = await part_of(GRAPHS[name](), 1)
    for _ in range(6):
        more, state = await part_of(GRAPHS[name](), steps.randrange(1, 6), state)
        items += more
    assert items + await all_of(GRAPHS[name](), state) == expected


def flat(items):
    return sorted(each for item in items for each in (item if isinstance(item, list) else [item]))


@pytest.mark.parametrize("name", UNORDERED)
async def test_without_order_nothing_is_lost_and_nothing_comes_twice(name):
    expected = flat(await all_of(UNORDERED[name]()))
    for count in [1, 2, 3, 5, 8, 17, 35]:
        items, state = await part_of(UNORDERED[name](), count)
        rest = await all_of(UNORDERED[name](), state)
        assert flat(items + rest) == expected, count


@pytest.mark.sweep
@pytest.mark.parametrize("name", UNORDERED)
async def test_without_order_it_goes_on_again_and_again(name):
    expected = flat(await all_of(UNORDERED[name]()))
    steps = random.Random(1)
    items, state = await part_of(UNORDERED[name](), 1)
    for _ in range(6):
        more, state = await part_of(UNORDERED[name](), steps.randrange(1, 6), state)
        items += more
    assert flat(items + await all_of(UNORDERED[name](), state)) == expected


async def test_errors_are_counted_on():
    graph = numbers().async_map(double_some, on_error="skip", max_errors=23)
    _, state = await part_of(graph, 20)
    with pytest.raises(TooManyErrors) as caught:
        await all_of(graph, state)
    assert caught.value.errors == 24
    # A failed item was not handed out: the loader fails at it again.
