"""What streams are read from.

This file is about ``Wire``: a loop in a thread of its own that reads the bodies of some
streams, so that any thread may read a stream, also when the pass that opened it is over.

    a thread ──read──▶ BodyStream ──piece──▶ [ the wire's loop: HttpBody ◀── connection ]
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from asyncloader.datapipes.files.streams import BUFFER_BYTES
from asyncloader.datapipes.running.crossing import call_on
from asyncloader.datapipes.running.home import present_waiter
from asyncloader.runtime import LoopThread, begin_task
from asyncloader.waiting import call_soon

T = TypeVar("T")


class Body(Protocol):
    """What is read piece by piece on a loop."""

    url: str

    def open(self, session: Any) -> Awaitable[None]: ...

    def piece(self) -> Coroutine[Any, Any, bytes]: ...

    def close(self) -> None: ...


# A loop alone does not keep its tasks alive.
_running: set[Wire] = set()


class Wire:
    """A loop with a session, which are closed when the pass and all streams are over."""

    def __init__(self, open_session: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._open_session = open_session
        self._thread = LoopThread("asyncloader streams")
        self._open: set[Body] = set()
        self._is_left = False
        # What follows is made on the loop.
        self._session: asyncio.Future[Any]
        self._over: asyncio.Event
        self._task: asyncio.Task[None]
        _running.add(self)
        call_soon(self._thread.loop, self._begin)

    async def opened(self, body: Body) -> io.BufferedReader:
        """Open a body, and return the stream of its bytes; to be called on any loop."""
        stream = BodyStream(self, body)
        try:
            # No stream crosses as a result: the futures between two threads keep each other
            # alive until the garbage collector finds them.
            await self._there(self._opened(body))
        except BaseException:
            stream.close()
            raise
        return io.BufferedReader(stream, BUFFER_BYTES)

    async def leave(self) -> None:
        """Open no more; what is closed with the last stream, or now if there is none."""
        if await self._there(self._left()):
            await self._thread.aclose()

    def piece(self, body: Body) -> bytes:
        """Wait, in a thread, for what follows in a body; a close of the pass ends the wait."""
        return call_on(self._thread.loop, present_waiter(), body.piece)

    def let_go(self, body: Body) -> None:
        """Close a body; to be called from anywhere, also by the garbage collector."""
        call_soon(self._thread.loop, self._let_go, body)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._thread.loop))

    # On the wire's own loop ---------------------------------------------------------------

    def _begin(self) -> None:
        loop = self._thread.loop
        self._session = loop.create_future()
        self._over = asyncio.Event()
        self._task = begin_task(loop, self._run(), "asyncloader streams")
        self._task.add_done_callback(self._stop)

    def _stop(self, task: asyncio.Task[None]) -> None:
        _running.discard(self)
        self._thread.stop()

    async def _run(self) -> None:
        try:
            async with self._open_session() as session:
                self._session.set_result(session)
                await self._over.wait()
        except Exception as error:
            if self._session.done():
                raise
            # Whoever opens a stream raises it.
            self._session.set_exception(error)
            await self._over.wait()

    async def _opened(self, body: Body) -> None:
        self._open.add(body)
        try:
            # The session is there for the others too, whoever stops waiting for it.
            await body.open(await asyncio.shield(self._session))
        except BaseException:
            # Whoever stops waiting lets go, it may be before this has begun.
            self._let_go(body)
            raise

    def _let_go(self, body: Body) -> None:
        body.close()
        self._open.discard(body)
        self._end_if_idle()

    async def _left(self) -> bool:
        """Return whether nothing is open any more."""
        self._is_left = True
        self._end_if_idle()
        if self._over.is_set():
            await asyncio.wait([self._task])
        return self._over.is_set()

    def _end_if_idle(self) -> None:
        if self._is_left and not self._open:
            self._over.set()


class BodyStream(io.RawIOBase):
    """The bytes of a body, for one thread at a time; it closes when it is dropped."""

    def __init__(self, wire: Wire, body: Body) -> None:
        self.name = body.url
        self._wire = wire
        self._body = body
        self._rest = memoryview(b"")
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._piece())
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def readall(self) -> bytes:
        pieces = [bytes(self._rest)]
        self._rest = memoryview(b"")
        while piece := self._piece():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._rest = memoryview(b"")
            self._end()

    def _piece(self) -> bytes:
        if self._has_ended:
            return b""
        try:
            piece = self._wire.piece(self._body)
        except BaseException:
            # A piece may have been on its way: what is read after it would not follow.
            self.close()
            raise
        if not piece:
            self._end()
        return piece

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._wire.let_go(self._body)


@contextlib.asynccontextmanager
async def wired(
    open_session: Callable[[], AbstractAsyncContextManager[Any]],
) -> AsyncIterator[Wire]:
    """Give a wire for one pass."""
    wire = Wire(open_session)
    try:
        yield wire
    finally:
        await wire.leave()
