"""Running ahead: prefetch."""

import asyncio
import functools
from collections import Counter, OrderedDict, UserDict, defaultdict

import pytest

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.prefetching import pinned


class Counting(IterDataPipe[int]):
    """An async pipe that tells how many items were taken from it."""

    def __init__(self, make=int) -> None:
        self.make = make
        self.taken: list[int] = []

    async def __aiter__(self):
        for number in range(100):
            self.taken.append(number)
            yield self.make(number)


async def test_prefetch_holds_a_buffer_and_no_more():
    source = Counting()
    stream = aiter(source.prefetch(5))
    assert await anext(stream) == 0
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(source.taken) <= 1 + 5 + 1
    assert [number async for number in stream] == list(range(1, 100))


async def test_prefetch_reads_no_further_while_it_holds_so_many_bytes():
    source = Counting(lambda _: bytes(1000))
    stream = aiter(source.prefetch(50, buffer_bytes=3500))
    for taken in range(1, 4):
        await anext(stream)
        for _ in range(50):
            await asyncio.sleep(0)
        # Four are held, which are the first to take as much, and one may be on its way.
        assert taken + 4 <= len(source.taken) <= taken + 5
    assert len([item async for item in stream]) == 97


async def test_an_error_comes_after_the_items_before_it():
    def fails_at_7(number):
        if number == 7:
            raise LookupError(number)
        return number

    stream = aiter(IterableWrapper(range(9)).map(fails_at_7).prefetch(20))
    assert [await anext(stream) for _ in range(7)] == list(range(7))
    with pytest.raises(LookupError):
        await anext(stream)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_a_buffer_size_is_a_count(size, error):
    with pytest.raises(error, match="buffer_size must be"):
        IterableWrapper([]).prefetch(size)


def test_pin_memory_takes_a_function():
    with pytest.raises(TypeError, match="pin_memory_fn must be callable, got int"):
        IterableWrapper([]).pin_memory(pin_memory_fn=3)


class Pinnable:
    """Stands for a tensor; no accelerator is needed to see what is asked of it."""

    def pin_memory(self):
        return "pinned"


@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, UserDict, functools.partial(defaultdict, list)]
)
def test_whatever_is_used_like_a_dict_is_pinned_through(kind):
    item = kind({"a": Pinnable(), "b": [Pinnable(), 1]})
    found = pinned(item)
    assert type(found) is type(item)
    assert found == kind({"a": "pinned", "b": ["pinned", 1]})
    assert isinstance(item["a"], Pinnable), "the item may be somebody else's too"


def test_a_device_is_given_to_no_pin_memory_method():
    assert pinned([Pinnable()], "cuda:1") == ["pinned"]


def test_what_counts_keeps_its_counts():
    assert pinned(Counter("aab")) == Counter("aab")
