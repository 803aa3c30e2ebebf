"""Items on their way to a device, until the consumer takes them.

This file is about ``Flight``: the copies of such an item may still run, and only the thread that
will use it can say which of its streams has to wait for them. So a pipe that ``hands_over`` yields
items in flight, and whoever gives items to the consumer calls ``hand_over`` at that moment:

    to_device ──Flight──▶ Exchange ──▶ HandedOver ──item──▶ the consumer
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Protocol

from asyncloader.datapipes.running.cursors import aclose_items


class Flight(Protocol):
    """An item whose copies have begun."""

    def hand_over(self) -> Any:
        """Return the item, in the thread that uses it; calling this again is harmless."""
        ...


class HandedOver(Iterator[Any]):
    """Items in flight, each of which is handed over when it is taken.

    Taken items are forgotten: they hold the device's memory.
    """

    def __init__(self, flights: Iterable[Flight]) -> None:
        self._untaken = [*flights]
        self._untaken.reverse()

    def __next__(self) -> Any:
        untaken = self._untaken
        for flight in untaken[-1:]:
            # An interrupt in here loses no item, and an error lasts.
            item = flight.hand_over()
            # Nothing is called from here on, so no interrupt comes in between. Another thread may
            # have drained this meanwhile: the item comes again, then.
            if untaken and untaken[-1] is flight:
                del untaken[-1]
                return item
        raise StopIteration

    def __length_hint__(self) -> int:
        return len(self._untaken)

    def drain(self) -> list[Flight]:
        """Take out what nobody has taken, still in flight."""
        drained = []
        while self._untaken:
            drained.append(self._untaken.pop())
        return drained


async def handed_over(flights: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the items of a pipe that is read in a thread, handed over in the present one."""
    iterator = aiter(flights)
    try:
        async for flight in iterator:
            item = flight.hand_over()
            del flight
            yield item
            del item
    finally:
        await aclose_items(iterator)


def current_device() -> int:
    """Return the index of the GPU that is current in this thread.

    Each thread has its own, and a program sets it in the thread that trains.
    """
    torch: Any = sys.modules.get("torch")
    # To set another one than the first initializes CUDA.
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())
