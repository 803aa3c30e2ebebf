"""Requests over HTTP, and what is said when they fail.

This file is about what aiohttp is asked with, and about ``raise_ours``, which makes our errors
of its own: those that may pass (``HttpUnavailable``, ``TimeoutError``) and those that will
not.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from datetime import UTC
from typing import Any, NoReturn
from urllib.parse import urlsplit

from asyncloader.datapipes.web.extras import imported
from asyncloader.errors import HttpError, HttpUnavailable

#: A server that takes longer to accept a connection, or to send a next byte, is gone.
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0

#: The statuses with which a server gives an answer: what is moved to nowhere, or not followed, is
#: none, and neither is another protocol (101).
GOOD = range(200, 300)
#: Statuses of a server that may do better when it is asked again.
PASSING = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}


class Sessions:
    """Opens sessions with up to so many connections; 0 is without a limit.

    They give up a server that is silent for so many ``seconds``; None leaves that to others.
    """

    def __init__(self, connections: int, seconds: float | None = SILENCE_SECONDS) -> None:
        self.connections = connections
        self.seconds = seconds

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        aiohttp = await imported("aiohttp", "read_from_http")
        from asyncloader.datapipes.web.http_connections import Connector
        from asyncloader.datapipes.web.http_urls import Answer

        async with aiohttp.ClientSession(
            response_class=Answer,
            requote_redirect_url=False,
            connector=Connector(limit=self.connections),
            # What a server sets for one item must not change what another gets.
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=self.seconds
            ),
            # Looking for proxies takes a thread for each request.
            trust_env=bool(urllib.request.getproxies_environment()),
        ) as session:
            yield session


def asked(session: Any, url: str, settings: dict[str, Any]) -> Any:
    """Return a request of a session, which is made when it is awaited or entered."""
    from asyncloader.datapipes.web.http_urls import as_given

    asked_for: Any = url
    # aiohttp finds what is wrong with it, too, and says it in its own words.
    with contextlib.suppress(ValueError):
        asked_for = as_given(url)
    return session.get(asked_for, **settings)


def raise_ours(error: Exception, url: str, where: str = "") -> NoReturn:
    """Raise, for an error of aiohttp's, one of ours that says of which URL, and ``where``.

    Others are raised as they are.
    """
    import aiohttp

    if isinstance(error, HttpError) or not isinstance(error, OSError | aiohttp.ClientError):
        raise error
    message = f"{shown(url)}{where}: {described(error)}"
    if isinstance(error, TimeoutError):
        raise TimeoutError(message) from error
    if _may_pass(error):
        raise HttpUnavailable(message, url=url) from error
    # These show the URL whole, as causes too.
    raise HttpError(message, url=url) from None


def _may_pass(error: Exception) -> bool:
    import aiohttp

    passing = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)
    return isinstance(error, passing)


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


def shown(url: str) -> str:
    """Return a URL for a message, without what may be secret: user, password, query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be taken apart"
    if not parts.netloc:
        # What was meant for a server and its user may be in the path then.
        return parts.path.rpartition("@")[2] or "a URL without a server"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def described(error: Exception) -> str:
    """Return what an error of aiohttp's says, which may be nothing but its type, without a URL."""
    import aiohttp

    if isinstance(error, aiohttp.TooManyRedirects):
        return f"it was redirected too often (more than max_redirects={len(error.history) - 1})"
    # Before aiohttp 3.10 both were the same.
    other_scheme = getattr(aiohttp, "NonHttpUrlClientError", aiohttp.InvalidURL)
    if isinstance(error, aiohttp.InvalidURL | other_scheme):
        return "this is no URL of HTTP, which begins with http:// or https:// and names a server"
    told = str(error) if _may_pass(error) else _without_url(error)
    return f"{type(error).__name__} {told}".rstrip()


def _without_url(error: Exception) -> str:
    told: str = getattr(error, "message", None) or getattr(error, "description", None) or ""
    # After a colon it shows some of what came.
    return told.partition(":")[0]
