"""Which functions may be async, and what is said of those that only seem to be plain."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper


def numbers() -> Any:
    return IterableWrapper(range(6))


def rows() -> Any:
    return IterableWrapper([(n, n + 10) for n in range(4)])


def failing(number: int) -> None:
    raise ValueError(number)


#: Pipes that call a function where nothing can be awaited.
OF_PLAIN_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "wrapper_class": lambda function: numbers().batch(2, wrapper_class=function),
    "wrapper_class of a map pipe": lambda function: SequenceWrapper(range(6)).batch(
        2, wrapper_class=function
    ),
    "pin_memory_fn": lambda function: numbers().pin_memory(pin_memory_fn=function),
}

OF_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **OF_PLAIN_FUNCTIONS,
    "map": lambda function: numbers().map(function),
    "tolerant map": lambda function: numbers().map(function, on_error="skip"),
    "filter": lambda function: numbers().filter(function),
    "flatmap": lambda function: numbers().flatmap(function),
    "thread_map": lambda function: numbers().thread_map(function),
    "on_error": lambda function: numbers().map(failing, on_error=function),
    "columns of map": lambda function: rows().map(function, [0, 1], -1),
    "columns of map_batches": lambda function: rows().map_batches(function, 2, input_col=1),
    "group_key_fn": lambda function: numbers().groupby(function),
    "classifier_fn": lambda function: numbers().demux(2, function)[0],
    "joiner": lambda function: rows().lines_to_paragraphs(function),
    "filepath_fn": lambda function: rows().save_to_disk(filepath_fn=function),
    "key_value_fn": lambda function: numbers().to_map_datapipe(function).to_iter_datapipe(),
}


async def later(*args: Any) -> Any:
    return args


def seems_plain(*args: Any) -> Coroutine[Any, Any, Any]:
    return later(*args)


@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_a_plain_function_that_returns_a_coroutine_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"the function of \w+\(.*returned a coroutine"):
        list(OF_FUNCTIONS[name](seems_plain))


@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_of_a_refused_coroutine_nothing_else_is_said(name: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(TypeError, match="returned a coroutine"):
            list(OF_FUNCTIONS[name](seems_plain))
        gc.collect()
    assert [str(warning.message) for warning in told] == []


@pytest.mark.parametrize("name", OF_PLAIN_FUNCTIONS)
def test_an_async_one_is_refused_where_nothing_can_be_awaited(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name.split()[0]} must be a plain function.*async later"):
        OF_PLAIN_FUNCTIONS[name](later)


async def total(column: list[int]) -> list[int]:
    return [sum(column)]


def test_map_batches_awaits_a_function_of_columns_too() -> None:
    assert list(rows().map_batches(total, 2, input_col=1)) == [21, 25]


class Asked:
    """An object that is called asynchronously, which making it is not."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def __call__(self, number: int) -> int:
        return self.number + number


def test_a_class_is_plain_and_its_objects_are_not() -> None:
    assert [made.number for made in numbers().map(Asked)] == list(range(6))
    assert list(numbers().map(Asked(10))) == list(range(10, 16))


class Retried:
    """An object that awaits the plain function it holds in an attribute of a partial's name."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    async def __call__(self, item: Any) -> Any:
        return self.func(item)


class Timed(Retried):
    """An object that calls the async function it holds, and waits for it by itself."""

    def __call__(self, item: Any) -> Any:  # type: ignore[override]
        return asyncio.run(self.func(item))


async def successor(number: int) -> int:
    return number + 1


def test_an_object_is_as_async_as_its_own_call() -> None:
    awaited = Retried(int)

    assert list(numbers().map(awaited)) == list(range(6))
    assert list(numbers().map(functools.partial(awaited))) == list(range(6))
    assert list(numbers().async_map(awaited)) == list(range(6))
    assert list(numbers().map(Timed(successor))) == list(range(1, 7))


class Twice:
    """An object whose call is an async generator."""

    async def __call__(self, items: Any) -> AsyncIterator[Any]:
        yield items
        yield items


def test_async_generators_of_objects_are_collected() -> None:
    pipe = IterableWrapper([1, 2])
    for twice in (Twice(), functools.partial(Twice()), Twice().__call__):
        assert list(pipe.flatmap(twice)) == [1, 1, 2, 2]


def test_map_batches_collects_async_generators_of_columns_too() -> None:
    pipe = IterableWrapper([("a", 1), ("b", 2), ("c", 3)])
    assert list(pipe.map_batches(Twice(), 2, input_col=1)) == [[1, 2], [1, 2], [3], [3]]
