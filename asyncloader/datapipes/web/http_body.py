"""A body that is read over HTTP as it is wanted.

This file is about ``HttpBody``, which lives on the loop that reads it. No more of it is
read ahead than what its connection holds, and where the connection is lost the rest is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.calls.attempts import Attempts
from asyncloader.datapipes.web.bodies import too_large
from asyncloader.datapipes.web.http_decoding import AsItIs, Decoding, Decodings, codings_of
from asyncloader.datapipes.web.http_requests import (
    GOOD,
    asked,
    raise_ours,
    refused,
    shown,
    with_headers,
)
from asyncloader.errors import HttpError

#: Statuses of an answer that has all of a body, and of one that has a part of it.
WHOLE, PART = 200, 206


class HttpBody:
    """The body of one URL, piece by piece."""

    def __init__(
        self, url: str, decodings: Decodings, attempts: Attempts, max_bytes: float
    ) -> None:
        self.url = url
        self._decodings = decodings
        self._next_piece = attempts.of(self._read)
        self._max_bytes = max_bytes
        self._session: Any
        self._response: Any = None
        self._decoding: AsItIs | Decoding
        # What is there of the piece that came last.
        self._pieces: Iterator[bytes] = iter(())
        self._lost: Exception | None = None
        #: What tells this body from a later one of the same URL, and its size.
        self._version = ""
        self._size = ""
        self._has_parts = False
        #: How many bytes were read.
        self.place = 0

    async def open(self, session: Any) -> None:
        """Ask for the body, and wait for the head of the answer."""
        self._session = session
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
            # Nobody knows what is still in that connection.
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
        response = await self._answer({})
        headers = response.headers
        self._size = headers.get("Content-Length", "")
        self._version = version_of(headers)
        # Of what is compressed on its way nobody knows which byte is where.
        self._has_parts = response.status == WHOLE and not codings_of(headers)
        try:
            self._decoding = self._decodings.of(self.url, response)
        except HttpError:
            response.close()
            raise
        return response

    async def _asked_for_rest(self) -> Any:
        if not self._has_parts:
            raise self._cut("it cannot be asked for from there on")
        headers = {"Range": f"bytes={self.place}-"}
        if self._version:
            headers["If-Range"] = self._version
        response = await self._answer(headers)
        if not self._goes_on(response):
            response.close()
            raise self._cut(f"the server does not go on from there (it answered {response.status})")
        return response

    def _goes_on(self, response: Any) -> bool:
        """Whether an answer is the rest of the same body."""
        begin, _, size = response.headers.get("Content-Range", "").partition("/")
        # What comes in chunks does not say its size.
        is_as_long = size in (self._size or size, "*")
        same = version_of(response.headers) == self._version and is_as_long
        is_known = bool(self._version) or (size == self._size != "")
        begins = begin.startswith(f"bytes {self.place}-")
        # The rest of what came as it is comes as it is.
        is_plain = not codings_of(response.headers)
        return response.status == PART and begins and same and is_known and is_plain

    def _cut(self, why: str) -> HttpError:
        error = HttpError(
            f"{shown(self.url)}: the connection was lost after {self.place} bytes, and {why}",
            url=self.url,
        )
        error.__cause__ = self._lost
        return error

    async def _answer(self, headers: dict[str, str]) -> Any:
        settings = with_headers(self._decodings.settings, headers)
        try:
            response = await asked(self._session, self.url, settings)
        except Exception as error:  # noqa: BLE001 - aiohttp raised it
            raise_ours(error, self.url)
        if response.status not in GOOD:
            response.close()
            raise refused(self.url, response)
        return response


def version_of(headers: Any) -> str:
    """Return what tells one version of a body from another, byte for byte; or ``""``."""
    tag: str = headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    changed: str = headers.get("Last-Modified", "")
    return changed
