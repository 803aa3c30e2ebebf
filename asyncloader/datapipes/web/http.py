"""What is read over HTTP.

This file is about read_from_http: many URLs at once, each body whole and checked
before it is handed on, or as a stream that is read as it is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from asyncloader.datapipes.calls.async_mapping import AsyncMapper
from asyncloader.datapipes.calls.attempts import Attempts
from asyncloader.datapipes.pipe.arguments import checked_count
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError
from asyncloader.datapipes.web.bodies import LARGE, form_of, joined, too_large
from asyncloader.datapipes.web.extras import imported
from asyncloader.datapipes.web.http_body import HttpBody
from asyncloader.datapipes.web.http_decoding import STEP_BYTES, Decodings
from asyncloader.datapipes.web.http_requests import (
    GOOD,
    SILENCE_SECONDS,
    Sessions,
    asked,
    raise_ours,
    refused,
    shown,
)
from asyncloader.datapipes.web.listening import Listeners, Listening
from asyncloader.datapipes.web.request_settings import request_settings_of
from asyncloader.datapipes.web.wire import Wire, wired
from asyncloader.errors import HttpUnavailable

#: How many requests are under way: for whole bodies, and for streams, of which one is read.
BODIES, STREAMS = 64, 2

#: No whole body and no stream is larger, unless it is said.
MAX_BODY_BYTES = 1 << 30
MAX_STREAM_BYTES = 1 << 40

#: Errors of a server that may do better when it is asked again.
PASSING_ERRORS = (HttpUnavailable, TimeoutError)


@functional_datapipe("read_from_http")
class HttpReader(AsyncMapper[Any]):
    """Yield ``(url, stream)`` for each URL, the stream holding the whole body.

    ``as_bytes=True`` yields ``(url, bytes)`` instead. Up to ``concurrency`` requests (64)
    are under way, in the source's order or with ``ordered=False`` as they are ready, over
    connections that are kept for the pass and closed with it. A URL that has escapes is asked
    for to the letter, as it may be signed, and so is one that a server redirects to; what
    needs an escape otherwise is given one.

    An attempt may take ``timeout`` seconds; in any case a server is given up that takes
    30 s to accept a connection or is silent for 60 s. A server's 5xx and 429, lost
    connections, bodies cut short and timeouts are tried again up to ``retries`` times,
    first after ``backoff`` seconds, then twice as long each time, or as long as the server
    asks for (30 s at most). At most ``max_redirects`` redirects are followed. A body of
    more than ``max_bytes``, decompressed, is a ``ResourceExhausted``: 1 GiB, and for streams
    1 TiB, unless another limit is given, or None for no limit. Any other
    failure is an ``HttpError``, or a ``TimeoutError``. So are a body that is compressed by
    anything but one gzip or deflate (``auto_decompress=False`` hands it on as it is sent), and
    more than 100 interim answers (such as 103) before an answer.

    ``stream=True`` is for bodies too large to hold, such as tars for load_from_tar. Each
    comes as soon as the server has answered, a few of them ahead (``concurrency`` is 2),
    and is read over the network as it is read here, where ``timeout`` and ``retries`` are
    for every step. After a lost connection the rest is asked for; a server that does not
    send it, of the same version, makes an ``HttpError`` of the read, and so does one that
    compresses unasked and breaks off. A stream keeps its connection until it is at its end,
    closed, or dropped. Reading one blocks its thread, so on a loop leave it to a pipe or to a
    thread.

    ``on_error="skip"`` (or ``skip_on_error=True``) leaves out the URLs that fail, and a
    function ``on_error(error, url)`` answers for them, up to ``max_errors`` of them.
    ``request_settings`` go to aiohttp's ``ClientSession.get``: ``headers``, ``params``,
    ``auth`` (here also a tuple of user and password), ``proxy``, ``ssl``; a wrong one is an
    error when the pipe is made. Proxies of the environment are used. Needs aiohttp (the
    extra ``cloud``).

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> urls = IterableWrapper(["http://127.0.0.1:9/none"])
    >>> list(urls.read_from_http(timeout=5, retries=0, on_error="skip"))
    []
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        retries: int = 3,
        backoff: float = 0.1,
        max_redirects: int = 10,
        max_bytes: int | Literal["auto"] | None = "auto",
        as_bytes: bool = False,
        stream: bool = False,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **request_settings: Any,
    ) -> None:
        if skip_on_error and on_error != "raise":
            raise ValueError('skip_on_error=True is on_error="skip"; give one of the two')
        if stream and as_bytes:
            raise ValueError("stream=True and as_bytes=True are two forms; give one of the two")
        self.skip_on_error = skip_on_error
        self.max_redirects = checked_count("max_redirects", max_redirects, at_least=0)
        self.max_bytes = _limit_of(max_bytes, stream)
        self.as_bytes = as_bytes
        self.stream = stream
        # The request's settings may hold secrets, which are no matter for a fingerprint.
        settings = request_settings_of(request_settings)
        # aiohttp means by it the first redirect that is not followed, and by 0 no limit.
        settings = {"max_redirects": self.max_redirects + 1, **settings}
        if concurrency is None:
            concurrency = STREAMS if stream else BODIES
        self.attempts = Attempts(timeout, retries, PASSING_ERRORS, backoff)
        super().__init__(
            source_datapipe,
            OpenStream(settings, self.attempts, self.max_bytes)
            if stream
            else GetBody(settings, self.max_bytes, as_bytes),
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            retries=retries,
            retry_on=PASSING_ERRORS,
            backoff=backoff,
            resource=Wires() if stream else Clients(concurrency),
            on_error="skip" if skip_on_error else on_error,
            max_errors=max_errors,
        )


def _limit_of(max_bytes: int | str | None, stream: bool) -> float:
    if max_bytes is None:
        return math.inf
    if max_bytes == "auto":
        return MAX_STREAM_BYTES if stream else MAX_BODY_BYTES
    return checked_count("max_bytes", max_bytes, at_least=1)


@dataclass(frozen=True)
class Client:
    """A session, and those who wait for what it is answered."""

    session: Any
    listeners: Listeners


class Clients:
    """Opens clients with up to so many connections."""

    def __init__(self, connections: int) -> None:
        self.connections = connections

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Client]:
        async with Sessions(self.connections, seconds=None)() as session:
            with contextlib.closing(Listeners(SILENCE_SECONDS)) as listeners:
                yield Client(session, listeners)


class GetBody:
    """Reads the whole body of a URL, with a client."""

    def __init__(self, settings: dict[str, Any], max_bytes: float, as_bytes: bool) -> None:
        self.decodings = Decodings(settings)
        self.max_bytes = max_bytes
        self.form = form_of(as_bytes)

    async def __call__(self, url: str, client: Client) -> tuple[str, Any]:
        check_url(url)
        try:
            with Listening(client.listeners) as listening:
                async with asked(client.session, url, self.decodings.settings) as response:
                    if response.status not in GOOD:
                        raise refused(url, response)
                    body = await self._body(url, response, listening)
            return url, self.form(body)
        except Exception as error:  # noqa: BLE001 - aiohttp raised it
            raise_ours(error, url)

    async def _body(self, url: str, response: Any, listening: Listening) -> bytes:
        held, sent, size = [], 0, 0
        decoding = self.decodings.of(url, response)
        while not response.content.at_eof():
            listening.heard_at = monotonic()
            came = await response.content.readany()
            sent += len(came)
            for piece in decoding.pieces(came):
                size += len(piece)
                if max(sent, size) > self.max_bytes:
                    raise too_large(shown(url), self.max_bytes)
                held.append(piece)
                if len(piece) == STEP_BYTES:
                    # A little may become very much, while others wait for the loop.
                    await asyncio.sleep(0)
        held.append(decoding.rest())
        return b"".join(held) if size < LARGE else await joined(held)


class OpenStream:
    """Opens the body of a URL, over a wire."""

    def __init__(self, settings: dict[str, Any], attempts: Attempts, max_bytes: float) -> None:
        # Parts of a body can be asked for where it is not compressed on its way.
        self.decodings = Decodings(settings, asked="identity")
        self.attempts = attempts
        self.max_bytes = max_bytes

    async def __call__(self, url: str, wire: Wire) -> tuple[str, Any]:
        check_url(url)
        body = HttpBody(url, self.decodings, self.attempts, self.max_bytes)
        return url, await wire.opened(body)


class Wires:
    """Opens a wire whose session is without a limit: who holds streams holds connections."""

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Wire]:
        # In the wire's thread there would be nobody to hear that it is not installed.
        await imported("aiohttp", "read_from_http")
        async with wired(Sessions(0)) as wire:
            yield wire


def check_url(url: Any) -> None:
    """Raise a TypeError for an item that is no URL."""
    if not isinstance(url, str):
        raise TypeError(f"read_from_http reads URLs, got {type(url).__name__}")
