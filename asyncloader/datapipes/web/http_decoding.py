"""Bodies that are compressed on their way.

This file is about ``Decodings``, which finds the ``Decoding`` of an answer. aiohttp takes a
gzip that is cut off for a whole one; where a server does not say how long its answer is
nothing else tells.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.web.http_requests import header_pairs, shown, with_headers
from asyncloader.errors import HttpError, HttpUnavailable

#: So much is unpacked at once.
STEP_BYTES = 1 << 18

_ASKED = "gzip or deflate"
_IS_GZIP = 16
_GZIP = b"\x1f\x8b"
#: What is in the first four bits of a deflate that has a header, as it should.
_WITH_HEADER = 8


class Decodings:
    """Who decodes the bodies that are asked for: we, unless a user's settings leave it to others.

    What neither we nor aiohttp decode is an HttpError, so that nobody takes it for data;
    ``auto_decompress=False`` hands on what comes as it is.

    ``asked`` is how bodies should come, where the settings do not say it.
    """

    def __init__(self, settings: dict[str, Any], asked: str = "") -> None:
        self._are_ours = _are_left_to_us(settings)
        self._are_anybodys = settings.get("auto_decompress", True)
        if asked or self._are_ours:
            settings = with_headers(settings, {"Accept-Encoding": asked or "gzip, deflate"})
        #: What a request is made with.
        self.settings = {**settings, "auto_decompress": False} if self._are_ours else settings

    def of(self, url: str, response: Any) -> AsItIs | Decoding:
        """Return what makes a body of what an answer sends; HttpError if nothing does."""
        codings = codings_of(response.headers)
        if not codings or not self._are_anybodys:
            return AsItIs()
        if not self._are_ours and aiohttp_decodes(codings, response.headers):
            return AsItIs()
        encoding = codings[0].removeprefix("x-")
        if len(codings) == 1 and encoding in ("gzip", "deflate"):
            return Decoding(url, encoding)
        # A server says what it likes, at any length.
        sent = " of ".join(reversed(codings))[:60]
        raise HttpError(
            f"{shown(url)}: the server sent {sent}, not {_ASKED}; pass auto_decompress=False"
            " for bodies as they are sent",
            url=url,
        )


def codings_of(headers: Any) -> list[str]:
    """Return how a body was encoded, step by step: none, or the names of compressions."""
    lines = [*headers.getall("Content-Encoding", ()), *headers.getall("Transfer-Encoding", ())]
    named = (name.strip().lower() for line in lines for name in line.split(","))
    # The chunks of a body are put together by aiohttp.
    return [name for name in named if name not in ("", "identity", "chunked")]


def aiohttp_decodes(codings: list[str], headers: Any) -> bool:
    """Whether aiohttp decodes a body, or raises an error where a package is missing for that."""
    from aiohttp import http_parser

    # Before aiohttp 3.12 zstd was unknown to it.
    known = {"gzip", "deflate", "br"} | ({"zstd"} if hasattr(http_parser, "HAS_ZSTD") else set())
    return len(codings) == 1 and headers.get("Content-Encoding", "").lower() in known


def _are_left_to_us(settings: dict[str, Any]) -> bool:
    named = [name for name, _ in header_pairs(settings)]
    named += settings.get("skip_auto_headers") or ()
    return "auto_decompress" not in settings and "accept-encoding" not in map(str.lower, named)


class AsItIs:
    """A body that is not compressed."""

    def pieces(self, piece: bytes) -> tuple[bytes, ...]:
        """Return what a piece of the body stands for."""
        return (piece,)

    def rest(self) -> bytes:
        """Return what is left at the end; raise HttpUnavailable where something is missing."""
        return b""


class Decoding:
    """A body that is compressed with gzip or deflate."""

    def __init__(self, url: str, encoding: str) -> None:
        self._url = url
        self._encoding = encoding
        self._decoder: Any = None

    def pieces(self, piece: bytes) -> Iterator[bytes]:
        """Yield what a piece of the body stands for, a step at a time."""
        try:
            while piece:
                if self._decoder is None:
                    self._decoder = zlib.decompressobj(self._window_of(piece))
                yield self._decoder.decompress(piece, STEP_BYTES)
                piece = self._left()
        except zlib.error as error:
            raise self._error("is damaged") from error

    def rest(self) -> bytes:
        """Return what is left at the end; raise HttpUnavailable where something is missing."""
        if self._decoder is None:
            return b""
        try:
            rest: bytes = self._decoder.flush()
        except zlib.error as error:
            raise self._error("is damaged") from error
        if not self._decoder.eof:
            raise self._error("was cut short")
        return rest

    def _left(self) -> bytes:
        """Return what is to be unpacked yet of a piece."""
        tail: bytes = self._decoder.unconsumed_tail
        if not self._decoder.eof:
            return tail
        more: bytes = self._decoder.unused_data
        # What follows may be one more gzip; anything else is of no meaning.
        if self._encoding == "deflate" or not more.startswith(_GZIP):
            return b""
        self._decoder = None
        return more

    def _window_of(self, piece: bytes) -> int:
        if self._encoding == "gzip":
            return _IS_GZIP + zlib.MAX_WBITS
        return zlib.MAX_WBITS if piece[0] & 0xF == _WITH_HEADER else -zlib.MAX_WBITS

    def _error(self, what: str) -> HttpUnavailable:
        return HttpUnavailable(f"{shown(self._url)}: its {self._encoding} {what}", url=self._url)
