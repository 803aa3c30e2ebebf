"""Bodies that are read over HTTP as they are wanted.

This file is about ``Wire``: a loop in a thread of its own that reads the bodies of some streams, so
that any thread may read a stream, also when the pass that opened it is over; and about
``HttpBody``, which lives on that loop. No more of a body is read ahead than what its connection
holds, and where the connection is lost the rest is asked for, or read again.

    a thread ──read──▶ BodyStream ──piece──▶ [ the wire's loop: HttpBody ◀── connection ]
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from asyncloader.datapipes.attempts import Attempts
from asyncloader.datapipes.files.streams import BUFFER_BYTES
from asyncloader.datapipes.running.bridge import call_on
from asyncloader.datapipes.running.run_place import present_waiter
from asyncloader.datapipes.web.bodies import too_large
from asyncloader.datapipes.web.http_client import (
    Client,
    Decoding,
    codings_of,
    raise_ours,
    shown,
)
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
    """The body of one URL, piece by piece.

    Where its connection is lost, and a validator tells this body from any other of the URL, the
    rest is asked for. Else it is read again from its start, and what was read before is compared
    by its hash and left out.
    """

    def __init__(self, url: str, attempts: Attempts, max_bytes: float) -> None:
        self.url = url
        self._next_piece = attempts.of(self._read)
        self._retries = attempts.retries
        self._max_bytes = max_bytes
        self._client: Client
        self._response: Any = None
        self._decoding: Decoding
        # What is there of the piece that came last.
        self._pieces: Iterator[bytes] = iter(())
        self._lost: Exception | None = None
        #: How often the connection was lost since something new came.
        self._losses = 0
        self._version: Version
        #: The hash of what was read, where no validator can be trusted.
        self._digest: Any = None
        #: How many bytes will come once more, and the hash of those that did.
        self._behind = 0
        self._digest_again: Any = None
        #: How many bytes were read.
        self.place = 0

    async def open(self, client: Client) -> None:
        """Ask for the body, and wait for the head of the answer."""
        self._client = client
        self._response = await self._begun()

    async def piece(self) -> bytes:
        """Return what follows, some bytes at least; none at the end."""
        while (piece := await self._next_piece(None)) is None:
            pass
        return piece

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    async def _read(self, _: None) -> bytes | None:
        """Return what follows, or None for something that was read before."""
        try:
            if self._response is None:
                self._response = await (self._begun_again() if self.place else self._begun())
            piece = await self._next()
            if self._behind:
                piece = self._unread(piece)
                if not piece:
                    return None
        except BaseException as error:
            # There may be more of the answer in that connection.
            self.close()
            self._lost = error if isinstance(error, Exception) else None
            raise
        self.place += len(piece)
        self._losses = 0
        if self._digest is not None:
            self._digest.update(piece)
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

    def _unread(self, piece: bytes) -> bytes:
        """Return what of a piece was not read before."""
        if not piece:
            raise self._cut("it is shorter now")
        again = piece[: self._behind]
        self._behind -= len(again)
        if self._digest is not None:
            self._digest_again.update(again)
            if not self._behind and self._digest_again.digest() != self._digest.digest():
                raise self._cut("what the server sends now begins in another way")
        return piece[len(again) :]

    async def _begun(self) -> Any:
        response = await self._asked({})
        self._version = version_of(response)
        self._digest = None if self._version.is_known else hashlib.sha256()
        return response

    async def _begun_again(self) -> Any:
        self._losses += 1
        if self._losses > self._retries:
            raise self._cut("again before anything new came")
        before = self._version
        response = await self._asked(before.header_for_rest(self.place))
        now = version_of(response)
        # The beginning was not compressed, so the rest may not be.
        is_rest = now.is_rest_of(before, self.place)
        if not is_rest and not now.is_again(before, is_compared=self._digest is not None):
            response.close()
            raise self._cut(f"the server did not send the rest (it answered {response.status})")
        self._behind = 0 if is_rest else self.place
        self._digest_again = hashlib.sha256()
        return response

    async def _asked(self, headers: dict[str, str]) -> Any:
        response = await self._client.answer(self.url, headers)
        try:
            self._decoding = self._client.decoding_of(self.url, response)
        except HttpError:
            response.close()
            raise
        self._pieces = iter(())
        return response

    def _cut(self, why: str) -> HttpError:
        error = HttpError(
            f"{shown(self.url)}: the connection was lost after {self.place} bytes, and {why}",
            url=self.url,
        )
        error.__cause__ = self._lost
        return error


@dataclass(frozen=True)
class Version:
    """What an answer says of which body it has."""

    status: int
    #: Where it came from after redirects, without the query, which may be a signature.
    place: str
    #: What changes with every byte of the body (RFC 9110, 8.8.1); or ``""``.
    validator: str
    #: The whole size, where it was said.
    size: str
    #: Which part it is, where it is one.
    part: str
    codings: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        return self.validator != ""

    def header_for_rest(self, begin: int) -> dict[str, str]:
        """Return the headers that ask for what follows, if that can be asked for."""
        # A compressed body cannot be continued at one of its bytes.
        if self.status != WHOLE or self.codings or not self.is_known:
            return {}
        return {"Range": f"bytes={begin}-", "If-Range": self.validator}

    def is_rest_of(self, before: Version, begin: int) -> bool:
        """Whether an answer has what follows in the same body."""
        return (
            (before.status, self.status) == (WHOLE, PART)
            and self.part.startswith(f"bytes {begin}-")
            and self._is_same_as(before)
            and not self.codings
        )

    def is_again(self, before: Version, *, is_compared: bool) -> bool:
        """Whether an answer has the same body from its start, or one that is to be compared."""
        is_alike = (self.status, self.part) == (before.status, before.part)
        return is_alike and (is_compared or self._is_same_as(before))

    def _is_same_as(self, before: Version) -> bool:
        # A validator is one of the bodies of its own URL.
        is_same = (self.place, self.validator) == (before.place, before.validator)
        # What comes in chunks does not say its size.
        is_as_long = "" in (self.size, before.size) or self.size == before.size
        return is_same and self.is_known and is_as_long


def version_of(response: Any) -> Version:
    """Return what an answer says of which body it has."""
    headers = response.headers
    part: str = headers.get("Content-Range", "")
    size: str = part.partition("/")[2] if part else headers.get("Content-Length", "")
    return Version(
        response.status,
        str(response.url.with_query(None)),
        validator_of(headers),
        "" if size == "*" else size,
        part,
        tuple(codings_of(headers)),
    )


#: A server's clock that stamps files may differ from the one that stamps its answers.
_CLOCKS_DIFFER = timedelta(seconds=60)


def validator_of(headers: Any) -> str:
    """Return what is another for every other body, byte for byte; or ``""``.

    It is a strong ETag, or where there is none a date of change that is so long ago that the body
    cannot have changed twice on it (RFC 9110, 8.8.2.2 and 13.1.5).
    """
    tag: str = headers.get("ETag", "")
    if tag:
        return tag if tag.startswith('"') else ""
    changed: str = headers.get("Last-Modified", "")
    try:
        age = parsedate_to_datetime(headers.get("Date", "")) - parsedate_to_datetime(changed)
    except (TypeError, ValueError, OverflowError):
        return ""
    return changed if age >= _CLOCKS_DIFFER else ""
