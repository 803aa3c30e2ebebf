from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper, SampleMultiplexer
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from tests.datapipes.resuming import (
    assert_goes_on,
    assert_goes_on_twice,
    cursors_along,
    rest_of,
)
from tests.datapipes.watched import Watched, WatchedAsync

PRICES = {"tea": 3, "bun": 2, "jam": 4}


def first(pair: Any) -> Any:
    return pair[0]


def itself(item: Any) -> Any:
    return item


def total(one: Any, other: Any) -> Any:
    return one[1] + other[1]


@given(st.permutations(range(8)), st.integers(1, 8))
def test_every_item_finds_its_partner_wherever_it_is(order: list[int], extra: int) -> None:
    refs = IterableWrapper([*order, *range(100, 100 + extra)])
    pipe = IterableWrapper(range(8)).zip_with_iter(refs, itself, buffer_size=8)

    assert list(pipe) == [(n, n) for n in range(8)]
    assert len(pipe) == 8


def test_functions_for_keys_and_results() -> None:
    left, right = IterableWrapper([("a", 1), ("b", 2)]), IterableWrapper([("b", 20), ("a", 10)])

    pipe = left.zip_with_iter(right, first, first, True, 10, total)
    assert list(pipe) == [("a", 11), ("b", 22)]


async def test_functions_may_be_async() -> None:
    async def key(item: int) -> int:
        return item % 10

    async def merge(one: int, other: int) -> int:
        return one + other

    left, right = IterableWrapper([1, 2]), IterableWrapper([12, 11])
    by_iter = left.zip_with_iter(right, key, merge_fn=merge)
    by_map = left.zip_with_map(SequenceWrapper([5, 6, 7]), key, merge)

    assert [item async for item in by_iter] == [12, 14]
    assert [item async for item in by_map] == [7, 9]


def test_an_item_without_a_partner_is_a_buffer_error() -> None:
    with pytest.raises(BufferError, match="no item with the key 3"):
        list(IterableWrapper([3]).zip_with_iter(IterableWrapper([1, 2]), itself))


def test_a_key_twice_among_those_that_wait_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="got the key 1 from its ref_datapipe twice"):
        list(IterableWrapper([3]).zip_with_iter(IterableWrapper([1, 1, 3]), itself))


def test_the_oldest_is_dropped_where_there_is_no_room() -> None:
    pipe = IterableWrapper([3, 2, 4, 1]).zip_with_iter(IterableWrapper([1, 2, 3, 4]), itself)
    assert len(list(pipe)) == 4

    pipe.buffer_size = 1
    items = iter(pipe)
    with pytest.warns(UserWarning, match="make buffer_size larger"):
        assert [next(items) for _ in range(3)] == [(3, 3), (2, 2), (4, 4)]
    with pytest.raises(BufferError, match="key 1"):
        next(items)


def test_no_more_than_the_buffer_waits() -> None:
    refs = Watched(range(100))
    pipe = IterableWrapper([0, 2, 4, 6]).zip_with_iter(refs, itself, buffer_size=4)
    RunTree([pipe])

    for _ in pipe:
        assert len(latest_pass(pipe).state._waiting) <= 4  # type: ignore[union-attr]
    assert refs.taken == 7
    assert refs.open == 0


def test_both_sources_are_closed_on_an_early_break() -> None:
    source, refs = Watched(range(9)), Watched(range(9))

    for _ in source.zip_with_iter(refs, itself):
        break

    assert (source.open, refs.open) == (0, 0)


def test_either_source_may_be_async() -> None:
    pipe = WatchedAsync(range(4)).zip_with_iter(WatchedAsync([3, 2, 1, 0]), itself)

    assert list(pipe) == [(n, n) for n in range(4)]


@pytest.mark.parametrize("size", [0, -1])
def test_a_buffer_holds_at_least_one(size: int) -> None:
    with pytest.raises(ValueError, match="buffer_size must be at least 1"):
        IterableWrapper([1]).zip_with_iter(IterableWrapper([1]), itself, buffer_size=size)


def test_items_are_looked_up() -> None:
    names = IterableWrapper(["bun", "tea"])

    assert list(names.zip_with_map(SequenceWrapper(PRICES), itself)) == [("bun", 2), ("tea", 3)]
    pipe = names.zip_with_map(SequenceWrapper(PRICES), itself, lambda name, price: price, True)
    assert list(pipe) == [("bun", 2), ("tea", 3)]
    assert len(pipe) == 2


@pytest.mark.parametrize("data", [PRICES, [1, 2, 3]])
def test_a_key_that_is_not_there_is_a_key_error(data: Any) -> None:
    with pytest.raises(KeyError, match="finds nothing under the key 9"):
        list(IterableWrapper([9]).zip_with_map(SequenceWrapper(data), itself))


def test_only_what_has_keys_is_looked_up_in() -> None:
    with pytest.raises(TypeError, match="looked up in map pipes, got int"):
        IterableWrapper([9]).zip_with_map(5, itself)  # type: ignore[arg-type]


def test_a_failing_function_names_its_pipe() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(IterableWrapper([0]).zip_with_map(SequenceWrapper([1]), lambda n: 1 // n))
    assert caught.value.__notes__ == ["raised in zip_with_map(key_fn=<lambda>)"]


def test_they_go_on_from_any_place() -> None:
    def evens(numbers: Any) -> Any:
        return IterableWrapper(numbers).filter(lambda n: n % 2 == 0)

    order = [6, 2, 40, 0, 4, 12, 8, 10, 14, 1, 16, 18, 22, 20]
    assert_goes_on(lambda: evens(range(23)).zip_with_iter(evens(order), itself))
    assert_goes_on(lambda: evens(range(23)).zip_with_map(SequenceWrapper(range(30)), itself))
    assert_goes_on(
        lambda: IterableWrapper(range(8)).zip_with_iter(
            WatchedAsync([3, 2, 1, 0, 7, 6, 5, 4]), itself
        )
    )


def joined() -> Any:
    """Return a graph that holds items while it is read."""
    refs = IterableWrapper(range(9)).batch(3).map(backwards).unbatch()
    return IterableWrapper(range(9)).zip_with_iter(refs, itself)


def backwards(batch: list[int]) -> list[int]:
    return batch[::-1]


def one() -> Any:
    return IterableWrapper([1]).flatmap(lambda number: [number])


#: Graphs of several sources, of which some wait, or have ended, while the others move on.
BESIDE: dict[str, Callable[[], Any]] = {
    "zip_longest": lambda: joined().zip_longest(one()),
    "zip": lambda: joined().zip(IterableWrapper(range(5)).mux(IterableWrapper(range(5)))),
    "mux_longest": lambda: joined().mux_longest(one()),
    "mix": lambda: SampleMultiplexer({joined(): 1, one(): 1}, seed=3),
    "zip_with_iter": lambda: IterableWrapper(range(8, -1, -1)).zip_with_iter(
        joined().map(first), itself
    ),
    "an ended source that waits": lambda: joined().concat(one().repeat(2)).zip_longest(one()),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", BESIDE)
def test_they_go_on_twice_beside_others(name: str) -> None:
    assert_goes_on_twice(BESIDE[name])


def test_going_on_reads_again_only_what_waits_and_what_follows() -> None:
    keyed: list[int] = []

    def key(number: int) -> int:
        keyed.append(number)
        return number

    def joined() -> Any:
        refs = IterableWrapper(range(1000)).batch(10).map(lambda b: b[::-1]).unbatch()
        return IterableWrapper(range(1000)).zip_with_iter(refs, itself, key)

    items, along = cursors_along(joined())
    keyed.clear()
    assert rest_of(joined(), 955, along[955]) == items[955:]
    assert min(keyed) >= 950
