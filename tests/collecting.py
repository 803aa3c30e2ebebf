"""Taking everything out of a loader and closing it."""

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
