"""Answering requests in the background.

This file is about ``Server``: what ``feed.serve(loader)`` returns. It iterates a loader
whose graph makes the answers, from ``async with`` to the end of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol, Self

from asyncloader.errors import LoaderClosed
from asyncloader.runtime import begin_task


class Loader(Protocol):
    """What of a DataLoader2 is needed."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


class Fed(Protocol):
    """What of a Feed is needed."""

    async def drain(self, timeout: float | None = None) -> None: ...


class Server:
    """Answers a feed's requests from entering to leaving; then all of them have an answer."""

    def __init__(self, feed: Fed, loader: Loader, drain_timeout: float | None) -> None:
        self._feed = feed
        self._loader = loader
        self._drain_timeout = drain_timeout
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._loader.start()
        work = self._answer()
        self._task = begin_task(asyncio.get_running_loop(), work, "asyncloader serving")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._feed.drain(self._drain_timeout)
        finally:
            await self._loader.aclose()
        # What kept the loader from answering is raised here. Closing it is no failure.
        if self._task is not None:
            with contextlib.suppress(LoaderClosed):
                await self._task

    async def _answer(self) -> None:
        async for unanswered in self._loader:
            unanswered.answer()
            del unanswered
