"""Bodies that are read over HTTP as they are wanted.

This file is about ``Wire``: a loop in a thread of its own that reads the bodies of some streams, so
that any thread may read a stream, also when the pass that opened it is over; and about
``HttpBody``, which lives on that loop. No more of a body is read ahead than what its connection
holds, and where the connection is lost the rest is asked for.

    a thread ──read──▶ BodyStream ──piece──▶ [ the wire's loop: HttpBody ◀── connection ]
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from asyncloader.datapipes.async_calls import Attempts
from asyncloader.datapipes.bridge import call_on
from asyncloader.datapipes.files.streams import BUFFER_BYTES
from asyncloader.datapipes.run_place import present_waiter
from asyncloader.datapipes.web.http_client import (
    Client,
    Decoding,
    codings_of,
    raise_ours,
    shown,
)
from asyncloader.datapipes.web.readers import too_large
from asyncloader.errors import HttpError
from asyncloader.runtime import LoopThread, begin_task
from asyncloader.waiting import call_soon

T = TypeVar("T")

# A loop alone does not keep its tasks alive.
_running: set[Wire] = set()


@contextlib.asynccontextmanager
async def wired(
    open_client: Callable[[], AbstractAsyncContextManager[Client]],
) -> AsyncIterator[Wire]:
    """Give a wire for one pass."""
    wire = Wire(open_client)
    try:
        yield wire
    finally:
        await wire.leave()


class Wire:
    """A loop with a client, which are closed when the pass and all streams are over."""

    def __init__(self, open_client: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._open_client = open_client
        self._thread = LoopThread("asyncloader streams")
        self._open: set[HttpBody] = set()
        self._is_left = False
        # What follows is made on the loop.
        self._client: asyncio.Future[Client]
        self._over: asyncio.Event
        self._task: asyncio.Task[None]
        _running.add(self)
        call_soon(self._thread.loop, self._begin)

    async def opened(self, url: str, attempts: Attempts, max_bytes: float) -> io.BufferedReader:
        """Open a body, and return the stream of its bytes; to be called on any loop."""
        body = HttpBody(url, attempts, max_bytes)
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

    def piece(self, body: HttpBody) -> bytes:
        """Wait, in a thread, for what follows in a body; a close of the pass ends the wait."""
        return call_on(self._thread.loop, present_waiter(), body.piece)

    def let_go(self, body: HttpBody) -> None:
        """Close a body; to be called from anywhere, also by the garbage collector."""
        call_soon(self._thread.loop, self._let_go, body)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._thread.loop))

    # On the wire's own loop ---------------------------------------------------------------

    def _begin(self) -> None:
        loop = self._thread.loop
        self._client = loop.create_future()
        self._over = asyncio.Event()
        self._task = begin_task(loop, self._run(), "asyncloader streams")
        self._task.add_done_callback(self._stop)

    def _stop(self, task: asyncio.Task[None]) -> None:
        _running.discard(self)
        self._thread.stop()

    async def _run(self) -> None:
        try:
            async with self._open_client() as client:
                self._client.set_result(client)
                await self._over.wait()
        except Exception as error:
            if self._client.done():
                raise
            # It is raised where a stream is opened.
            self._client.set_exception(error)
            await self._over.wait()

    async def _opened(self, body: HttpBody) -> None:
        self._open.add(body)
        try:
            # The other bodies need the client too, when one stops waiting for it.
            await body.open(await asyncio.shield(self._client))
        except BaseException:
            # The caller may have stopped waiting before this began.
            self._let_go(body)
            raise

    def _let_go(self, body: HttpBody) -> None:
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

    def __init__(self, wire: Wire, body: HttpBody) -> None:
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


#: Statuses of an answer that has all of a body, and of one that has a part of it.
WHOLE, PART = 200, 206


class HttpBody:
    """The body of one URL, piece by piece."""

    def __init__(self, url: str, attempts: Attempts, max_bytes: float) -> None:
        self.url = url
        self._next_piece = attempts.of(self._read)
        self._max_bytes = max_bytes
        self._client: Client
        self._response: Any = None
        self._decoding: Decoding
        # What is there of the piece that came last.
        self._pieces: Iterator[bytes] = iter(())
        self._lost: Exception | None = None
        #: What tells this body from a later one of the same URL, and its size.
        self._version = ""
        self._size = ""
        self._has_parts = False
        #: How many bytes were read.
        self.place = 0

    async def open(self, client: Client) -> None:
        """Ask for the body, and wait for the head of the answer."""
        self._client = client
        self._response = await self._asked()

    async def piece(self) -> bytes:
        """Return what follows, some bytes at least; none at the end."""
        return await self._next_piece(None)

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    async def _read(self, _: None) -> bytes:
        try:
            if self._response is None:
                self._response = await (self._asked_for_rest() if self.place else self._asked())
            piece = await self._next()
        except BaseException as error:
            # There may be more of the answer in that connection.
            self.close()
            self._lost = error if isinstance(error, Exception) else None
            raise
        self.place += len(piece)
        if self.place > self._max_bytes:
            raise too_large(shown(self.url), self._max_bytes)
        return piece

    async def _next(self) -> bytes:
        while True:
            for piece in self._pieces:
                if piece:
                    return piece
            came = await self._came()
            if not came:
                return self._decoding.rest()
            self._pieces = iter(self._decoding.pieces(came))

    async def _came(self) -> bytes:
        try:
            came: bytes = await self._response.content.readany()
        except Exception as error:  # noqa: BLE001 - aiohttp raised it
            raise_ours(error, self.url, f" after {self.place} bytes")
        return came

    async def _asked(self) -> Any:
        response = await self._client.answer(self.url, {})
        headers = response.headers
        self._size = headers.get("Content-Length", "")
        self._version = version_of(headers)
        # A compressed body cannot be continued at one of its bytes.
        self._has_parts = response.status == WHOLE and not codings_of(headers)
        try:
            self._decoding = self._client.decoding_of(self.url, response)
        except HttpError:
            response.close()
            raise
        return response

    async def _asked_for_rest(self) -> Any:
        if not self._has_parts:
            raise self._cut("the server cannot send the rest")
        headers = {"Range": f"bytes={self.place}-"}
        if self._version:
            headers["If-Range"] = self._version
        response = await self._client.answer(self.url, headers)
        if not self._goes_on(response):
            response.close()
            raise self._cut(f"the server did not send the rest (it answered {response.status})")
        return response

    def _goes_on(self, response: Any) -> bool:
        """Whether an answer is the rest of the same body."""
        begin, _, size = response.headers.get("Content-Range", "").partition("/")
        # What comes in chunks does not say its size.
        is_as_long = size in (self._size or size, "*")
        same = version_of(response.headers) == self._version and is_as_long
        is_known = bool(self._version) or (size == self._size != "")
        begins = begin.startswith(f"bytes {self.place}-")
        # The beginning was not compressed, so the rest may not be.
        is_plain = not codings_of(response.headers)
        return response.status == PART and begins and same and is_known and is_plain

    def _cut(self, why: str) -> HttpError:
        error = HttpError(
            f"{shown(self.url)}: the connection was lost after {self.place} bytes, and {why}",
            url=self.url,
        )
        error.__cause__ = self._lost
        return error


def version_of(headers: Any) -> str:
    """Return what tells one version of a body from another, byte for byte; or ``""``."""
    tag: str = headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    changed: str = headers.get("Last-Modified", "")
    return changed
