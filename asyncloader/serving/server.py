"""Answering requests in the background.

This file is about ``Server``: what ``feed.serve(loader)`` returns. It iterates a loader
whose graph makes the answers, from ``async with`` to the end of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol, Self

from asyncloader.datapipes.running.home import cancelled
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


class Claim(Protocol):
    """The one right to answer a feed's requests."""

    def take(self) -> None:
        """Take it; LoaderError where somebody has it."""

    #: What ended the reading, once something has.
    failure: BaseException | None

    def give_up(self, reason: BaseException) -> None:
        """Fail all that is pending with the reason, and refuse what comes."""


class Server:
    """Answers a feed's requests from entering to leaving; then all of them have an answer."""

    def __init__(
        self, feed: Fed, claim: Claim, loader: Loader, drain_timeout: float | None
    ) -> None:
        self._feed = feed
        self._claim = claim
        self._loader = loader
        self._drain_timeout = drain_timeout
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._claim.take()
        try:
            await self._loader.start()
        except BaseException as error:
            self._claim.give_up(LoaderClosed(f"the loader could not be started: {error!r}"))
            raise
        work = self._answer()
        self._task = begin_task(asyncio.get_running_loop(), work, "asyncloader serving")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._feed.drain(self._drain_timeout)
        finally:
            await self._close()
        # What kept the loader from answering is raised here. Closing it is no failure.
        failure = self._claim.failure
        if failure is not None and not isinstance(failure, LoaderClosed):
            raise failure

    async def _close(self) -> None:
        assert self._task is not None
        try:
            await self._loader.aclose()
        finally:
            await cancelled([self._task])

    async def _answer(self) -> None:
        reason: Exception = LoaderClosed(
            "the loader of this feed hands out no more; it was closed, paused, or is at a limit"
        )
        try:
            async for unanswered in self._loader:
                unanswered.answer()
                del unanswered
        except Exception as error:  # noqa: BLE001 - user code ran; whoever leaves raises it
            reason = error
        finally:
            # Nobody waits for answers that will not come.
            self._claim.give_up(reason)
