"""What the calls of many short passes share.

This file is about ``Keeper``: a pass that runs others again and again, each for one of its
items, keeps what those open, and closes it at its own end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import ContextVar
from typing import Any

from asyncloader.datapipes.pipe.run import Run, RunTree
from asyncloader.datapipes.running.crossing import taken_at
from asyncloader.datapipes.running.home import Home
from asyncloader.runtime import running_loop

_KEEPER: ContextVar[Keeper | None] = ContextVar("asyncloader_keeper", default=None)


class Keeper:
    """Opens and closes things in a task of its own, on the loop of a home.

    To be iterated there. It yields itself when it has begun, and ends when it is told to, or
    where its task is cancelled.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self._is_open = False
        self._opened: dict[object, asyncio.Future[Any]] = {}
        self._wanted: asyncio.Queue[tuple[object, AbstractAsyncContextManager[Any]] | None]

    async def __aiter__(self) -> AsyncIterator[Keeper]:
        self.loop = asyncio.get_running_loop()
        self._wanted = asyncio.Queue()
        self._is_open = True
        yield self
        try:
            async with AsyncExitStack() as stack:
                await self._open_what_is_wanted(stack)
        finally:
            for opened in self._opened.values():
                if not opened.done():
                    _fail(opened, _closed())

    async def _open_what_is_wanted(self, stack: AsyncExitStack) -> None:
        try:
            while (wanted := await self._wanted.get()) is not None:
                key, manager = wanted
                try:
                    self._opened[key].set_result(await stack.enter_async_context(manager))
                except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran; those who wait raise it
                    # Who comes next tries again.
                    _fail(self._opened.pop(key), error)
        finally:
            self._is_open = False

    @contextlib.asynccontextmanager
    async def kept(
        self, key: object, manager: AbstractAsyncContextManager[Any]
    ) -> AsyncIterator[Any]:
        """Give what the manager of a key gave when it was first asked for; on the keeper's loop."""
        if not self._is_open:
            raise _closed()
        if key not in self._opened:
            self._opened[key] = self.loop.create_future()
            self._wanted.put_nowait((key, manager))
        # It is there for the others too, whoever stops waiting for it.
        yield await asyncio.shield(self._opened[key])

    def end(self) -> None:
        """Close everything; from any thread."""
        self.loop.call_soon_threadsafe(self._wanted.put_nowait, None)


@contextlib.contextmanager
def keeper_at(home: Home) -> Iterator[Keeper]:
    """Give a keeper for one pass."""
    keeper = Keeper()
    run: Run[Keeper] = Run(keeper, RunTree())
    begun = taken_at(home, run)
    with contextlib.closing(begun):
        yield next(begun)
        keeper.end()
        # What fails to close is an error of this pass.
        for _ in begun:
            pass


@contextlib.contextmanager
def keeping(keeper: Keeper) -> Iterator[None]:
    """Let all that is opened in here be kept."""
    token = _KEEPER.set(keeper)
    try:
        yield
    finally:
        _KEEPER.reset(token)


def kept(
    key: object, manager: AbstractAsyncContextManager[Any]
) -> AbstractAsyncContextManager[Any]:
    """Return what gives a manager's thing: the manager, or a keeper that has it open."""
    keeper = _KEEPER.get()
    if keeper is None or keeper.loop is not running_loop():
        return manager
    return keeper.kept(key, manager)


def _fail(opened: asyncio.Future[Any], error: BaseException) -> None:
    opened.set_exception(error)
    # All who wanted it may have stopped waiting, and asyncio would report it as forgotten.
    opened.exception()


def _closed() -> RuntimeError:
    # Those who still ask are being stopped. They must not take it for the end of the data.
    return RuntimeError("the pass over the cache is being closed")
