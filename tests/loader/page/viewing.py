"""Somebody who looks at a page, over real HTTP, and a loader to look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from asyncloader import DataLoader2

#: A busy machine takes its time.
SECONDS = 60.0


class Viewer:
    """A client that receives the page's events."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def panels(self) -> list[dict[str, Any]]:
        """Return the next panels."""
        data = []
        while line := (await self._content.readline()).decode().rstrip("\n"):
            data.append(line.removeprefix("data: "))
        if not data:
            raise EOFError("the page was closed")
        found: list[dict[str, Any]] = json.loads("\n".join(data))
        return found

    async def titles(self) -> list[str]:
        """Return the titles of the next panels."""
        return [panel["title"] for panel in await self.panels()]

    async def until(self, text: str) -> dict[str, Any]:
        """Return the first panel that has a text in it."""
        while True:
            for panel in await self.panels():
                if text in f"{panel['title']} {panel['summary']} {panel['html']}":
                    return panel

    async def until_closed(self) -> None:
        """Read until the page ends the answer."""
        while await self._content.readline():
            pass


@contextlib.asynccontextmanager
async def viewing(url: str) -> AsyncIterator[Viewer]:
    """Look at a page for the block."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{url}events") as answer,
    ):
        assert answer.status == 200
        yield Viewer(answer.content)


def listening(pid: int | str = "self") -> list[str]:
    """Return the addresses at which a process listens to TCP, as the kernel writes them."""
    with contextlib.suppress(FileNotFoundError):
        return _listening(pid)
    # It has ended, or is dead and was not reaped.
    return []


def _listening(pid: int | str) -> list[str]:
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # It may have been closed meanwhile.
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        for _, local, _, state, _, _, _, _, _, inode, *_ in map(str.split, rows):
            if state == "0A" and inode in inodes:
                found.append(local)
    return found


@contextlib.asynccontextmanager
async def training(graph: Any, service: Any) -> AsyncIterator[DataLoader2[Any]]:
    """Run a loader with a consumer that takes its time, until the end of the block."""
    async with DataLoader2(graph, reading_service=service) as loader:
        task = asyncio.create_task(_consume(loader))
        try:
            yield loader
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _consume(loader: DataLoader2[Any]) -> None:
    async for _ in loader:
        await asyncio.sleep(0.001)
