"""What is read over HTTP.

This file is about read_from_http: many URLs at once, each body whole and checked
before it is handed on.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import time
import urllib.request
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from asyncloader.datapipes.arguments import checked_count
from asyncloader.datapipes.async_mapping import AsyncMapper
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.bodies import handed_on, whole_body
from asyncloader.datapipes.extras import imported
from asyncloader.datapipes.tolerance import OnError
from asyncloader.errors import HttpError, HttpUnavailable

#: A server that takes longer to accept a connection, or to send a next byte, is gone.
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0

#: Statuses of a server that may do better when it is asked again.
PASSING = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}


@functional_datapipe("read_from_http")
class HttpReader(AsyncMapper[Any]):
    """Yield ``(url, stream)`` for each URL, the stream holding the whole body.

    ``as_bytes=True`` yields ``(url, bytes)`` instead. Up to ``concurrency`` requests are
    under way, in the source's order or with ``ordered=False`` as they are ready, over
    connections that are kept for the pass and closed with it.

    An attempt may take ``timeout`` seconds; in any case a server is given up that takes
    30 s to accept a connection or is silent for 60 s. A server's 5xx and 429, lost
    connections, bodies cut short and timeouts are tried again up to ``retries`` times,
    first after ``backoff`` seconds, then twice as long each time, or as long as the server
    asks for (30 s at most). At most ``max_redirects`` redirects are followed. A body of
    more than ``max_bytes``, decompressed, is a ``ResourceExhausted``; any other
    failure is an ``HttpError``, or a ``TimeoutError``.

    ``on_error="skip"`` (or ``skip_on_error=True``) leaves out the URLs that fail, and a
    function ``on_error(error, url)`` answers for them, up to ``max_errors`` of them.
    ``request_settings`` go to aiohttp's ``ClientSession.get``: ``headers``, ``params``,
    ``auth`` (here also a tuple of user and password), ``proxy``, ``ssl``. Proxies of the
    environment are used. Needs aiohttp (the
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
        concurrency: int = 64,
        ordered: bool = True,
        retries: int = 3,
        backoff: float = 0.1,
        max_redirects: int = 10,
        max_bytes: int = 1 << 30,
        as_bytes: bool = False,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **request_settings: Any,
    ) -> None:
        if skip_on_error and on_error != "raise":
            raise ValueError('skip_on_error=True is on_error="skip"; give one of the two')
        self.skip_on_error = skip_on_error
        self.max_redirects = checked_count("max_redirects", max_redirects, at_least=0)
        self.max_bytes = checked_count("max_bytes", max_bytes, at_least=1)
        self.as_bytes = as_bytes
        # The request's settings may hold secrets, which are no matter for a fingerprint.
        super().__init__(
            source_datapipe,
            Get(self.max_redirects, self.max_bytes, as_bytes, request_settings),
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            retries=retries,
            retry_on=(HttpUnavailable, TimeoutError),
            backoff=backoff,
            resource=Sessions(concurrency),
            on_error="skip" if skip_on_error else on_error,
            max_errors=max_errors,
        )


class Sessions:
    """Opens sessions with up to so many connections."""

    def __init__(self, connections: int) -> None:
        self.connections = connections

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        aiohttp = await imported("aiohttp", "read_from_http")
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections),
            # What a server sets for one item must not change what another gets.
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            ),
            # Looking for proxies takes a thread for each request.
            trust_env=bool(urllib.request.getproxies_environment()),
        ) as session:
            yield session


class Get:
    """Reads one URL with a session."""

    def __init__(
        self, max_redirects: int, max_bytes: int, as_bytes: bool, settings: dict[str, Any]
    ) -> None:
        self.max_bytes = max_bytes
        self.as_bytes = as_bytes
        self.settings = {"max_redirects": max_redirects, **request_settings_of(settings)}

    async def __call__(self, url: str, session: Any) -> tuple[str, Any]:
        if not isinstance(url, str):
            raise TypeError(f"read_from_http reads URLs, got {type(url).__name__}")
        body = await self._body_of(url, session)
        return url, handed_on(body, self.as_bytes)

    async def _body_of(self, url: str, session: Any) -> bytes:
        import aiohttp

        try:
            async with session.get(url, **self.settings) as response:
                check_status(url, response)
                return await whole_body(response.content.iter_any(), shown(url), self.max_bytes)
        except HttpError:
            raise
        except TimeoutError as error:
            raise TimeoutError(f"{shown(url)}: {described(error)}") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise HttpUnavailable(f"{shown(url)}: {described(error)}", url=url) from error
        except aiohttp.ClientError as error:
            raise HttpError(f"{shown(url)}: {described(error)}", url=url) from error


def request_settings_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as aiohttp takes them: user and password become a header."""
    auth = settings.get("auth")
    if not isinstance(auth, tuple):
        return settings
    code = base64.b64encode(":".join(auth).encode()).decode()
    headers = {"Authorization": f"Basic {code}", **settings.get("headers", {})}
    others = {name: value for name, value in settings.items() if name != "auth"}
    return {**others, "headers": headers}


def check_status(url: str, response: Any) -> None:
    """Raise an HttpError for an answer that is none."""
    status = response.status
    if status < 400:
        return
    message = f"{shown(url)}: the server answered {status} {response.reason}"
    if status not in PASSING:
        raise HttpError(message, url=url, status=status)
    wait = seconds_of(response.headers.get("Retry-After", ""))
    raise HttpUnavailable(message, url=url, status=status, retry_after=wait)


def seconds_of(retry_after: str) -> float | None:
    """Return how long a server asks to wait, in seconds or until a date; None if it does not."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def shown(url: str) -> str:
    """Return a URL for a message, without what may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def described(error: BaseException) -> str:
    """Return what an error of aiohttp says, which may be nothing but its type."""
    redirects = getattr(error, "history", ())
    if redirects:
        return f"it was redirected too often ({len(redirects)} times)"
    return f"{type(error).__name__} {error}".rstrip()
