"""Cursors, which are positions in a stream as plain data, and helpers that drive an iterator.

A cursor is a pipe's position in its stream, and ``Cursors`` holds those of a graph by the numbers
of its pipes. They are read between two items, and a later pass resumes from them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import aclosing
from itertools import islice
from typing import Any, TypeVar

from asyncloader.errors import SnapshotError
from asyncloader.runtime import running_loop

T = TypeVar("T")


class LastingError:
    """An error that can be raised many times, each time with its first traceback."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._traceback = error.__traceback__

    def again(self) -> BaseException:
        """Return the error, to be raised."""
        return self._error.with_traceback(self._traceback)


def groups_of(items: AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    """Yield an async iterable's items in lists: those it makes itself, or one by one."""
    groups: Callable[[], AsyncGenerator[list[T], None]] | None = getattr(items, "groups", None)
    return _one_by_one(items) if groups is None else groups()


async def _one_by_one(items: AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    iterator = aiter(items)
    try:
        async for item in iterator:
            group = [item]
            # Do not keep the yielded item alive while the next one is made.
            del item
            yield group
            del group
    finally:
        await aclose_items(iterator)


async def items_of(groups: AsyncGenerator[list[T], None]) -> AsyncIterator[T]:
    """Yield the items of lists one by one, and close what yields the lists."""
    async with aclosing(groups):
        async for group in groups:
            # Keep no yielded item alive while waiting for the next.
            while group:
                yield group.pop(0)


def close_items(iterator: Iterator[Any]) -> None:
    """Close an iterator that can be closed, as generators can."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


async def aclose_items(iterator: AsyncIterator[Any]) -> None:
    """Close an async iterator that can be closed, as async generators can."""
    aclose = getattr(iterator, "aclose", None)
    # This may run after the loop was closed, when nothing can be awaited.
    if aclose is not None and running_loop() is not None:
        await aclose()


#: The position of a pass: whole numbers, booleans, texts, and lists and dicts of those.
Cursor = dict[str, Any]

#: The cursors of a graph, by the numbers of its pipes.
Cursors = dict[int, Cursor]

# The number that a loader gives to each pipe of its copy of the graph. It is pickled with the pipe.
_NUMBER = "_number_in_graph"


def set_numbers(pipes: Iterable[Any]) -> None:
    """Give the pipes of a graph their numbers, in this order."""
    for number, pipe in enumerate(pipes):
        object.__setattr__(pipe, _NUMBER, number)


def number_of(pipe: Any) -> int | None:
    """Return a pipe's number in its graph, or None where no loader gave it one."""
    number: int | None = vars(pipe).get(_NUMBER)
    return number


def take_number_of(pipe: Any, other: Any) -> None:
    """Give a pipe the number of another, which it replaces."""
    object.__setattr__(pipe, _NUMBER, number_of(other))


def cursor_of(pipe: Any, cursors: Cursors) -> Cursor | None:
    """Return a pipe's own cursor, or None where it has none."""
    number = number_of(pipe)
    return None if number is None else cursors.get(number)


def put_cursor(pipe: Any, cursor: Cursor, into: Cursors) -> None:
    """Add a pipe's own cursor; a pipe in no loader's graph adds none, as nothing resumes it."""
    number = number_of(pipe)
    if number is not None and cursor:
        into[number] = cursor


def cursors_of(pipes: Iterable[Any], cursors: Cursors) -> Cursors:
    """Return the cursors of these pipes only."""
    own: Cursors = {}
    for pipe in pipes:
        put_cursor(pipe, cursor_of(pipe, cursors) or {}, own)
    return own


def dropped(items: Iterator[T], count: int) -> Iterator[T]:
    """Return an iterator without its first ``count`` items, which are made when it is read."""
    if count == 0:
        return items
    _check_behind(count)
    return _dropped(items, count)


def _dropped(items: Iterator[T], count: int) -> Iterator[T]:
    try:
        deque(islice(items, min(count, sys.maxsize)), maxlen=0)
        yield from items
    finally:
        close_items(items)


def _check_behind(count: int) -> None:
    """Raise SnapshotError for a pipe that is further than its reader."""
    if count < 0:
        raise SnapshotError(
            f"the state contradicts itself: a pipe had yielded {-count} items more than its reader"
            " had taken"
        )


def picked(items: Iterator[T], positions: list[int]) -> Iterator[T]:
    """Yield the items at these ascending positions; those between are made and dropped."""
    at = 0
    try:
        for position in positions:
            found = list(islice(items, position - at, position - at + 1))
            if not found:
                return
            at = position + 1
            yield found[0]
    finally:
        close_items(items)


def adropped(items: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    """Return an async iterator without its first ``count`` items, which are made and dropped."""
    _check_behind(count)
    return _adropped(items, count) if count > 0 else items


async def _adropped(items: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    try:
        async for item in items:
            if count > 0:
                count -= 1
            else:
                yield item
    finally:
        await aclose_items(items)
