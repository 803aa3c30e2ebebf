"""What the calls of a pass use together, such as a client with its connections.

This file is about ``resource``: a ``SharedResource`` is entered on the loop that makes the calls,
``opened_in_thread`` gives each thread its own, and a ``Keeper`` keeps those of a loop open over
many short passes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from asyncloader.arguments import checked_function, function_name
from asyncloader.datapipes.call import blame
from asyncloader.datapipes.running.bridge import taken_at
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.run_place import Home
from asyncloader.runtime import running_loop

T = TypeVar("T")

#: Returns an async context manager of what all calls of one pass share.
Resource = Callable[[], AbstractAsyncContextManager[Any]]

#: Returns a context manager of what the calls of one thread use.
ThreadResource = Callable[[], AbstractContextManager[Any]]


def checked_resource(resource: Any) -> Callable[[], Any]:
    """Return a resource; TypeError for one that was opened already."""
    kind = type(resource)
    if hasattr(kind, "__enter__") or hasattr(kind, "__aenter__"):
        raise TypeError(
            f"resource must be a function or class that gives a context manager, got a"
            f" {kind.__name__} that was made already, which can be entered only once; pass the"
            " function itself: resource=connect, not resource=connect()"
        )
    checked: Callable[[], Any] = checked_function("resource", resource)
    return checked


def with_last(function: Callable[..., T], shared: Any, *args: Any) -> T:
    """Call a function with one more argument, which is its last."""
    return function(*args, shared)


@contextlib.contextmanager
def opened_in_thread(make: ThreadResource, pipe: object) -> Iterator[Any]:
    """Give what the calls of this thread use; errors of opening and closing it name the pipe."""
    try:
        manager = make()
        kind = type(manager)
        if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
            raise TypeError(
                f"resource must return a context manager, got {kind.__name__} from"
                f" {function_name(make)}; the calls run in threads, so decorate a plain generator"
                " function with contextlib.contextmanager, or give a class with __enter__ and"
                " __exit__"
            )
        given = manager.__enter__()
    except BaseException as error:
        blame(error, pipe)
        raise
    try:
        yield given
    finally:
        try:
            manager.__exit__(None, None, None)
        except BaseException as error:
            blame(error, pipe)
            raise


class SharedResource:
    """A user's async context manager, which is created when it is entered."""

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
        # This may run after the loop was closed, when nothing can be awaited.
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


_KEEPER: ContextVar[Keeper | None] = ContextVar("asyncloader_keeper", default=None)


class Keeper:
    """Opens and closes resources in a task of its own, on the loop of a home.

    Iterate it there. It yields itself once it runs, and ends on ``end()`` or when its task
    is cancelled.
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
                    # The next caller tries again.
                    _fail(self._opened.pop(key), error)
        finally:
            self._is_open = False

    @contextlib.asynccontextmanager
    async def kept(
        self, key: object, manager: AbstractAsyncContextManager[Any]
    ) -> AsyncIterator[Any]:
        """Give the resource of a key, opening it on first use; on the keeper's loop."""
        if not self._is_open:
            raise _closed()
        if key not in self._opened:
            self._opened[key] = self.loop.create_future()
            self._wanted.put_nowait((key, manager))
        # Shielded: others share it, so one waiter's cancellation must not cancel the opening.
        yield await asyncio.shield(self._opened[key])

    def end(self) -> None:
        """Close everything; from any thread."""
        self.loop.call_soon_threadsafe(self._wanted.put_nowait, None)


@contextlib.contextmanager
def keeper_at(home: Home) -> Iterator[Keeper]:
    """Give a keeper for one pass."""
    keeper = Keeper()
    edge: Edge[Keeper] = Edge(keeper, RunTree())
    begun = taken_at(home, edge)
    with contextlib.closing(begun):
        yield next(begun)
        keeper.end()
        # A resource that fails to close is an error of this pass.
        for _ in begun:
            pass


@contextlib.contextmanager
def keeping(keeper: Keeper) -> Iterator[None]:
    """Let this keeper hold all resources that are opened in here."""
    token = _KEEPER.set(keeper)
    try:
        yield
    finally:
        _KEEPER.reset(token)


def kept(
    key: object, manager: AbstractAsyncContextManager[Any]
) -> AbstractAsyncContextManager[Any]:
    """Return the context manager itself, or one that takes the resource from the keeper."""
    keeper = _KEEPER.get()
    if keeper is None or keeper.loop is not running_loop():
        return manager
    return keeper.kept(key, manager)


def _fail(opened: asyncio.Future[Any], error: BaseException) -> None:
    opened.set_exception(error)
    # Mark it as seen: if nobody waits any more, asyncio would log a lost exception.
    opened.exception()


def _closed() -> RuntimeError:
    # Callers that are still here are being stopped; they must not see an end of the data.
    return RuntimeError("the pass over the cache is being closed")
