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

_ASKED = "gzip, deflate"
_IS_GZIP = 16
_GZIP = b"\x1f\x8b"
#: What is in the first four bits of a deflate that has a header, as it should.
_WITH_HEADER = 8


class Decodings:
    """Who decodes the bodies that are asked for: we, unless a user's settings leave it to others.

    ``asked`` is how bodies should come, where the settings do not say it.
    """

    def __init__(self, settings: dict[str, Any], asked: str = "") -> None:
        self._are_ours = _are_left_to_us(settings)
        if asked or self._are_ours:
            settings = with_headers(settings, {"Accept-Encoding": asked or _ASKED})
        #: What a request is made with.
        self.settings = {**settings, "auto_decompress": False} if self._are_ours else settings

    def of(self, url: str, response: Any) -> AsItIs | Decoding:
        """Return what makes a body of what an answer sends.

        HttpError for a compression that nobody asked for and that is not known here.
        """
        if not self._are_ours:
            return AsItIs()
        encoding = response.headers.get("Content-Encoding", "").lower().removeprefix("x-")
        if encoding in ("gzip", "deflate"):
            return Decoding(url, encoding)
        if encoding in ("br", "zstd"):
            raise HttpError(f"{shown(url)}: the server sent {encoding}, not {_ASKED}", url=url)
        return AsItIs()


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
