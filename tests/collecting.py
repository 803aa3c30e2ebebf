"""Taking everything out of a loader and closing it."""

import asyncio
import random
from typing import Any

from asyncloader import DataLoader2


def drain(loader: DataLoader2[Any]) -> list[Any]:
    """Return one epoch's items, by ``for``, and shut the loader down."""
    with loader:
        return list(loader)


async def drain_async(loader: DataLoader2[Any]) -> list[Any]:
    """Return one epoch's items, by ``async for``, and shut the loader down."""
    async with loader:
        return [item async for item in loader]


async def drain_with_cancels(loader: DataLoader2[Any], chance: random.Random) -> list[Any]:
    """Return one epoch's items; about every twentieth ``anext`` is cancelled at some moment."""
    stream, items = aiter(loader), []
    while True:
        taking = asyncio.ensure_future(anext(stream, None))
        if chance.random() < 0.05:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            taking.cancel()
        try:
            item = await taking
        except asyncio.CancelledError:
            continue
        if item is None:
            return items
        items.append(item)
