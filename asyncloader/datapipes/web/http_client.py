"""Requests over HTTP.

This file is about ``Client``, which asks for bodies over connections that are kept, and about what
aiohttp leaves to us: a server that answers without end, a URL whose escapes are part of its
signature, a compressed body that is cut off, and errors that say what failed and show no secret.
It imports aiohttp, and so it is imported when the first pass begins.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import functools
import re
import time
import urllib.request
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from datetime import UTC
from typing import Any, NoReturn
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientResponse, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from asyncloader.datapipes.web.bodies import too_large, whole_body
from asyncloader.errors import HttpError, HttpUnavailable

#: A server that takes longer to accept a connection, or to send a next byte, is gone.
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0

#: The statuses with which a server gives an answer: what is moved to nowhere, or not followed, is
#: none, and neither is another protocol (101).
GOOD = range(200, 300)
#: Statuses of a server that may do better when it is asked again.
PASSING = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}


@contextlib.asynccontextmanager
async def opened_client(
    settings: dict[str, Any], connections: int, encodings: str = "gzip, deflate"
) -> AsyncIterator[Client]:
    """Give a client with up to so many connections; 0 is without a limit.

    ``settings`` are those of aiohttp's ``ClientSession.get``, and ``encodings`` how bodies may be
    compressed where the settings do not say it.
    """
    async with aiohttp.ClientSession(
        response_class=Answer,
        requote_redirect_url=False,
        connector=connector(connections),
        # What a server sets for one item must not change what another gets.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        ),
        # Looking for proxies takes a thread for each request.
        trust_env=bool(urllib.request.getproxies_environment()),
        # Bodies are decompressed by ``Decoding``.
        auto_decompress=False,
    ) as session:
        yield Client(session, settings, encodings)


class Client:
    """Asks servers for bodies, each time with the same settings."""

    def __init__(self, session: Any, settings: dict[str, Any], encodings: str) -> None:
        self._session = session
        self._hands_on_as_sent = settings.get("auto_decompress") is False
        own = {"auth", "auto_decompress"}
        self._settings = {name: value for name, value in settings.items() if name not in own}
        if settings.get("auth") is not None:
            self._add_header("Authorization", credentials(settings["auth"]))
        if not self._skips("accept-encoding"):
            self._add_header("Accept-Encoding", encodings)

    async def answer(self, url: str, headers: dict[str, str]) -> Any:
        """Ask for a body, and wait for the head of the answer; the caller closes it.

        An answer without a body that was asked for is an HttpError.
        """
        asked_for: Any = url
        # aiohttp finds what is wrong with it, too, and says it in its own words.
        with contextlib.suppress(ValueError):
            asked_for = as_given(url)
        try:
            response = await self._session.get(asked_for, **with_headers(self._settings, headers))
        except Exception as error:  # noqa: BLE001 - aiohttp raised it
            raise_ours(error, url)
        if response.status not in GOOD:
            response.release()
            raise refused(url, response)
        return response

    async def body(self, url: str, max_bytes: float) -> bytes:
        """Return a whole body."""
        response = await self.answer(url, {})
        try:
            async with contextlib.aclosing(self._pieces(url, response, max_bytes)) as pieces:
                return await whole_body(pieces, shown(url), max_bytes)
        except Exception as error:  # noqa: BLE001 - aiohttp raised it
            raise_ours(error, url)
        finally:
            response.release()

    async def _pieces(
        self, url: str, response: Any, max_bytes: float
    ) -> AsyncGenerator[bytes, None]:
        decoding, sent = self.decoding_of(url, response), 0
        while not response.content.at_eof():
            came = await response.content.readany()
            sent += len(came)
            if sent > max_bytes:
                raise too_large(shown(url), max_bytes)
            for piece in decoding.pieces(came):
                yield piece
                if len(piece) == STEP_BYTES:
                    # A little may become very much, while others wait for the loop.
                    await asyncio.sleep(0)
        yield decoding.rest()

    def decoding_of(self, url: str, response: Any) -> Decoding:
        """Return what makes a body of what an answer sends; HttpError if nothing does.

        A body that is compressed in an unknown way, or twice, is an error, so that nothing takes it
        for data.
        """
        codings = codings_of(response.headers)
        if not codings or self._hands_on_as_sent:
            return Decoding(url, "")
        encoding = codings[0].removeprefix("x-")
        if len(codings) == 1 and encoding in ("gzip", "deflate"):
            return Decoding(url, encoding)
        # A server says what it likes, at any length.
        sent = " of ".join(reversed(codings))[:60]
        raise HttpError(
            f"{shown(url)}: the server sent {sent}, not gzip or deflate; pass auto_decompress=False"
            " for bodies as they are sent",
            url=url,
        )

    def _skips(self, header: str) -> bool:
        skipped = self._settings.get("skip_auto_headers") or ()
        return header in map(str.lower, skipped)

    def _add_header(self, name: str, value: str) -> None:
        self._settings = with_headers(self._settings, {name: value})


def credentials(auth: Any) -> str:
    """Return the header for a user and a password, or for aiohttp's own kind of those."""
    # aiohttp's own kind, which is a tuple too, knows how it is encoded.
    if hasattr(auth, "encode"):
        told: str = auth.encode()
        return told
    return "Basic " + base64.b64encode(":".join(auth).encode()).decode()


def with_headers(settings: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """Return settings that have these headers too, unless they are given already."""
    given = header_pairs(settings)
    names = {name.lower() for name, _ in given}
    added = [(name, value) for name, value in headers.items() if name.lower() not in names]
    return {**settings, "headers": added + given}


def header_pairs(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the headers that settings give, of which one may come several times."""
    given = settings.get("headers") or ()
    return list(given.items() if isinstance(given, Mapping) else given)


# Connections and URLs -------------------------------------------------------------------

#: A server that takes long may say a few times that it is still at work.
MAX_INTERIM_ANSWERS = 100

#: So much of what is no body is parsed at once: it may be hundreds of answers.
_STEP_BYTES = 1 << 12


def connector(limit: int) -> TCPConnector:
    """Return what opens up to so many connections, of the kind below."""
    made = TCPConnector(limit=limit)
    loop = asyncio.get_running_loop()
    made._factory = functools.partial(Connection, loop=loop)  # type: ignore[assignment]
    return made


class Connection(ResponseHandler):
    """A connection that is closed when more comes for a request than it should."""

    _answers = 0

    def set_response_params(self, **params: Any) -> None:
        """Begin a request."""
        self._answers = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        # Once a body has begun it is fed on whole, and what follows it is little.
        while len(data) > _STEP_BYTES and self._is_between_bodies():
            super().data_received(data[:_STEP_BYTES])
            data = data[_STEP_BYTES:]
        if self._answers <= MAX_INTERIM_ANSWERS + 1:
            super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Keep an answer for the request that waits for it."""
        self._answers += 1
        if self._answers <= MAX_INTERIM_ANSWERS + 1:
            super().feed_data(data, size)
        elif self._answers == MAX_INTERIM_ANSWERS + 2:
            told = f"the server sent more than {MAX_INTERIM_ANSWERS} interim answers"
            self.set_exception(HttpProcessingError(message=told))
            if self.transport is not None:
                self.transport.abort()

    def _is_between_bodies(self) -> bool:
        has_body = self._payload is not None and not self._payload.is_eof()
        return not has_body and self._answers <= MAX_INTERIM_ANSWERS + 1


#: What needs no escape, or is one. Brackets do, but for those of an address.
_ESCAPED = re.compile(r"(?:[\w.~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*", re.ASCII)


def as_given(url: str) -> URL:
    """Return the URL to request: unchanged if it has escapes, and otherwise escaped.

    Left to itself aiohttp writes an escape such as ``%2F`` as what it stands for, which breaks
    the signature of a URL. ValueError for what is no URL.
    """
    # URL() checks only what it escapes itself.
    seen = URL(url)
    return URL(url, encoded=True) if "%" in url and _ESCAPED.fullmatch(url) else seen


class Answer(ClientResponse):
    """An answer whose redirect, if it has one, is followed with the URL unchanged."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        headers = super().headers
        if "Location" not in headers:
            return headers
        changed = CIMultiDict(headers)
        with contextlib.suppress(ValueError):
            changed["Location"] = str(as_given(changed["Location"]))
        return CIMultiDictProxy(changed)


# Compressed bodies ----------------------------------------------------------------------

#: So much is unpacked at once.
STEP_BYTES = 1 << 18

_IS_GZIP = 16
_GZIP = b"\x1f\x8b"
#: What is in the first four bits of a deflate that has a header, as it should.
_WITH_HEADER = 8


def codings_of(headers: Any) -> list[str]:
    """Return how a body was encoded, step by step: none, or the names of compressions."""
    lines = [*headers.getall("Content-Encoding", ()), *headers.getall("Transfer-Encoding", ())]
    named = (name.strip().lower() for line in lines for name in line.split(","))
    # The chunks of a body are put together by aiohttp.
    return [name for name in named if name not in ("", "identity", "chunked")]


class Decoding:
    """A body that is compressed with gzip or deflate, or with nothing (``""``)."""

    def __init__(self, url: str, encoding: str) -> None:
        self._url = url
        self._encoding = encoding
        self._decoder: Any = None

    def pieces(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data in a piece of the body, a step at a time."""
        if not self._encoding:
            yield piece
            return
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


# Errors ---------------------------------------------------------------------------------


def refused(url: str, response: Any) -> HttpError:
    """Return the error for an answer that is none: its status is not ``GOOD``."""
    status = response.status
    message = f"{shown(url)}: the server answered {status} {response.reason}"
    if status not in PASSING:
        return HttpError(message, url=url, status=status)
    wait = seconds_of(response.headers.get("Retry-After", ""))
    return HttpUnavailable(message, url=url, status=status, retry_after=wait)


def seconds_of(retry_after: str) -> float | None:
    """Return how long a server asks to wait, in seconds or until a date; None if it does not."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    # A date that names no time zone is in UTC, and not in the zone of this machine.
    seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
    return max(0.0, seconds)


def raise_ours(error: Exception, url: str, where: str = "") -> NoReturn:
    """Raise, for an error of aiohttp's, one of ours that says of which URL, and ``where``.

    Others are raised as they are.
    """
    if isinstance(error, HttpError) or not isinstance(error, OSError | aiohttp.ClientError):
        raise error
    message = f"{shown(url)}{where}: {_described(error)}"
    if isinstance(error, TimeoutError):
        raise TimeoutError(message) from error
    if _may_pass(error):
        raise HttpUnavailable(message, url=url) from error
    # These show the URL whole, as causes too.
    raise HttpError(message, url=url) from None


def _may_pass(error: Exception) -> bool:
    passing = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)
    return isinstance(error, passing)


def _described(error: Exception) -> str:
    """Return what an error of aiohttp's says, which may be nothing but its type, without a URL."""
    if isinstance(error, aiohttp.TooManyRedirects):
        return f"it was redirected too often (more than max_redirects={len(error.history) - 1})"
    # Before aiohttp 3.10 both were the same.
    other_scheme = getattr(aiohttp, "NonHttpUrlClientError", aiohttp.InvalidURL)
    if isinstance(error, aiohttp.InvalidURL | other_scheme):
        return "this is no URL of HTTP: it must begin with http:// or https:// and name a server"
    # Before aiohttp 3.10 a connection that is not accepted was the same.
    if isinstance(error, getattr(aiohttp, "SocketTimeoutError", aiohttp.ServerTimeoutError)):
        return f"the server sent nothing for {SILENCE_SECONDS:g} s"
    told = str(error) if _may_pass(error) else _without_url(error)
    return f"{type(error).__name__} {told}".rstrip()


def _without_url(error: Exception) -> str:
    told: str = getattr(error, "message", None) or getattr(error, "description", None) or ""
    # After a colon it shows some of what came.
    return told.partition(":")[0]


def shown(url: str) -> str:
    """Return a URL for a message, without what may be secret: user, password, query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    if not parts.netloc:
        # What was meant for a server and its user may be in the path then.
        return parts.path.rpartition("@")[2] or "a URL without a server"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
