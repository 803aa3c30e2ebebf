"""Items that are ready together.

This file is about ``InGroups``: what a pipe yields whose items may be had one by one, or, by
one who asks for no cursor in between, in lists of those that are ready.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import TypeVar

T = TypeVar("T")


class InGroups(AsyncIterator[T]):
    """The same items in two forms, of which one is to be read."""

    def __init__(
        self,
        items: Callable[[], AsyncGenerator[T, None]],
        groups: Callable[[], AsyncGenerator[list[T], None]],
    ) -> None:
        self._begin = items
        self._groups = groups

    @cached_property
    def _items(self) -> AsyncGenerator[T, None]:
        return self._begin()

    def __aiter__(self) -> AsyncIterator[T]:
        # An ``async for`` asks an iterator for its iterator, and has one step less this way.
        return self._items

    def __anext__(self) -> Awaitable[T]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        await self._items.aclose()

    def groups(self) -> AsyncGenerator[list[T], None]:
        """Yield the items in lists; where the pipe stands is known after each of them."""
        return self._groups()
