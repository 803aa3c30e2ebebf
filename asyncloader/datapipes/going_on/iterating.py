"""Iterators of either colour.

This file is about what all who drive an iterator have to do: take its items as
groups, and close it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from asyncloader.runtime import running_loop

T = TypeVar("T")


def groups_of(items: AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    """Yield an async iterable's items in lists: those it makes itself, or one by one."""
    groups: Callable[[], AsyncGenerator[list[T], None]] | None = getattr(items, "groups", None)
    return _one_by_one(items) if groups is None else groups()


async def _one_by_one(items: AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    iterator = aiter(items)
    try:
        async for item in iterator:
            group = [item]
            # Nothing handed out is kept alive here while the next is made.
            del item
            yield group
            del group
    finally:
        await aclose_items(iterator)


def close_items(iterator: Iterator[Any]) -> None:
    """Close an iterator that can be closed, as generators can."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


async def aclose_items(iterator: AsyncIterator[Any]) -> None:
    """Close an async iterator that can be closed, as async generators can."""
    aclose = getattr(iterator, "aclose", None)
    # A coroutine may be collected after its loop was closed: then nothing can be awaited.
    if aclose is not None and running_loop() is not None:
        await aclose()
