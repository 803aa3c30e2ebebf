"""What the calls of one pass share.

This file is about ``SharedResource``: a client with its connections, say, opened on
the loop that runs the calls and closed there when the pass ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from asyncloader.datapipes.naming import function_name
from asyncloader.datapipes.pipe.function import blame
from asyncloader.runtime import running_loop

#: Makes what the calls of one pass share, as an async context manager.
Resource = Callable[[], AbstractAsyncContextManager[Any]]


class SharedResource:
    """An async context manager of the user's, made when it is entered."""

    def __init__(self, make: Resource, pipe: object) -> None:
        self._make = make
        self._pipe = pipe
        self._manager: AbstractAsyncContextManager[Any]

    async def __aenter__(self) -> Any:
        try:
            self._manager = self._made()
            return await self._manager.__aenter__()
        except BaseException as error:
            self._blame(error)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A coroutine may be collected after its loop was closed: then nothing can be awaited.
        if running_loop() is None:
            return
        try:
            await self._manager.__aexit__(kind, error, traceback)
        except BaseException as failure:
            if failure is not error:
                self._blame(failure)
            raise

    def _made(self) -> AbstractAsyncContextManager[Any]:
        manager = self._make()
        if not (hasattr(type(manager), "__aenter__") and hasattr(type(manager), "__aexit__")):
            raise TypeError(
                f"resource must return an async context manager, got {type(manager).__name__}"
                f" from {function_name(self._make)}; decorate an async generator function with"
                " contextlib.asynccontextmanager, or give a class with __aenter__ and __aexit__"
            )
        return manager

    def _blame(self, error: BaseException) -> None:
        if running_loop() is not None:
            blame(error, self._pipe)
