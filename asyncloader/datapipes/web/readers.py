"""What is read over a network, many at a time.

This file is about read_from_http and read_from_object_store, and about what they share: modules
that not everybody has installed, and bodies that are put together without stopping the loop.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Literal, SupportsInt

from asyncloader.arguments import checked_count
from asyncloader.datapipes.async_calls import AsyncMapper
from asyncloader.datapipes.attempts import Attempts
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.tolerance import OnError
from asyncloader.datapipes.web.bodies import too_large, whole_body
from asyncloader.errors import HttpUnavailable
from asyncloader.runtime import in_thread

#: How many requests are under way: for whole bodies, and for streams, of which one is read.
BODIES, STREAMS = 64, 2

#: The default limits of a whole body and of a stream.
MAX_BODY_BYTES = 1 << 30
MAX_STREAM_BYTES = 1 << 40

#: Errors that may pass, so that the request is worth another attempt.
PASSING_ERRORS = (HttpUnavailable, TimeoutError)


@functional_datapipe("read_from_http")
class HttpReader(AsyncMapper[Any]):
    """Yield ``(url, stream)`` for each URL, the stream holding the whole body.

    ``as_bytes=True`` yields ``(url, bytes)`` instead. Up to ``concurrency`` requests (64) run at a
    time. Their results come in the source's order, or with ``ordered=False`` as soon as they are
    ready. Connections are kept for the pass and closed with it. A URL that has escapes is
    requested unchanged, since it may be signed, and so is the URL of a redirect; other URLs are
    escaped where they need it.

    An attempt may take ``timeout`` seconds. In any case it fails if the server takes 30 s to
    accept a connection or sends nothing for 60 s. A status of 5xx or 429, a lost connection, a
    body that was cut short and a timeout are tried again up to ``retries`` times: first after
    ``backoff`` seconds, then after twice as long each time, or as long as the server asks for
    (30 s at most). At most ``max_redirects`` redirects are followed. A body of more than
    ``max_bytes``, decompressed, is a ``ResourceExhausted``; the default is 1 GiB, and 1 TiB for
    streams, and None is no limit. Any other failure is an ``HttpError`` or a ``TimeoutError``. It
    is an ``HttpError``, too, if a body is compressed by anything but one gzip or deflate
    (``auto_decompress=False`` yields it as it was sent), and if more than 100 interim answers
    (such as 103) come before an answer.

    ``stream=True`` is for bodies that are too large to hold, such as tars for load_from_tar. Each
    comes as soon as the server has answered, a few of them ahead (``concurrency`` is 2), and is
    read over the network while you read it; ``timeout`` and ``retries`` are for every step. After
    a lost connection the rest is requested, if the server tells this body from others: by a strong
    ETag, or a Last-Modified of more than a minute before. Otherwise, and if it was compressed, it
    is read again from its start, and what came before is compared and left out. A body that has
    changed is an ``HttpError`` of the read. A stream keeps its connection until it is at its end,
    closed, or dropped. Reading it blocks the thread, so in async code leave that to a pipe or to a
    thread.

    ``on_error="skip"`` (or ``skip_on_error=True``) leaves out the URLs that fail, and a function
    ``on_error(error, url)`` returns an item for them, up to ``max_errors`` of them.
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
            raise ValueError('skip_on_error=True means on_error="skip"; give one of the two')
        if stream and as_bytes:
            raise ValueError(
                "stream=True and as_bytes=True exclude each other; give one of the two"
            )
        self.skip_on_error = skip_on_error
        self.max_redirects = checked_count("max_redirects", max_redirects, at_least=0)
        self.max_bytes = _limit_of(max_bytes, stream)
        self.as_bytes = as_bytes
        self.stream = stream
        # The pipe itself does not keep the settings: they may hold secrets, and errors and
        # fingerprints show what it keeps.
        check_request_settings(request_settings)
        # aiohttp means by it the first redirect that is not followed, and by 0 no limit.
        settings = {"max_redirects": self.max_redirects + 1, **request_settings}
        if concurrency is None:
            concurrency = STREAMS if stream else BODIES
        self.attempts = Attempts(timeout, retries, PASSING_ERRORS, backoff, "read_from_http")
        read: Callable[..., Any] = partial(get_body, max_bytes=self.max_bytes, as_bytes=as_bytes)
        opened: Callable[[], Any] = partial(client_for, settings, concurrency)
        if stream:
            read = partial(open_stream, attempts=self.attempts, max_bytes=self.max_bytes)
            opened = partial(wire_for, settings)
        super().__init__(
            source_datapipe,
            read,
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            retries=retries,
            retry_on=PASSING_ERRORS,
            backoff=backoff,
            resource=opened,
            on_error="skip" if skip_on_error else on_error,
            max_errors=max_errors,
        )


def _limit_of(max_bytes: int | str | None, stream: bool) -> float:
    if max_bytes is None:
        return math.inf
    if max_bytes == "auto":
        return MAX_STREAM_BYTES if stream else MAX_BODY_BYTES
    return checked_count("max_bytes", max_bytes, at_least=1)


async def get_body(
    url: str, client: Any, *, max_bytes: float, as_bytes: bool
) -> tuple[str, bytes | io.BytesIO]:
    """Read the whole body of a URL, with a client."""
    check_url(url)
    body = await client.body(url, max_bytes)
    return url, body if as_bytes else io.BytesIO(body)


@contextlib.asynccontextmanager
async def client_for(settings: dict[str, Any], connections: int) -> AsyncIterator[Any]:
    """Give a client with up to so many connections, for a pass."""
    await imported("aiohttp", "read_from_http")
    from asyncloader.datapipes.web.http_client import opened_client

    async with opened_client(settings, connections) as client:
        yield client


async def open_stream(
    url: str, wire: Any, *, attempts: Attempts, max_bytes: float
) -> tuple[str, io.BufferedReader]:
    """Open the body of a URL, over a wire."""
    check_url(url)
    return url, await wire.opened(url, attempts, max_bytes)


@contextlib.asynccontextmanager
async def wire_for(settings: dict[str, Any]) -> AsyncIterator[Any]:
    """Give a wire, for a pass and for the streams that outlive it."""
    # In the wire's thread an error would have no caller to go to.
    await imported("aiohttp", "read_from_http")
    from asyncloader.datapipes.web.http_client import opened_client
    from asyncloader.datapipes.web.http_stream import wired

    # Each stream that is kept has a connection, so there is no limit. Parts of a body can be
    # asked for where it is not compressed on its way.
    async with wired(partial(opened_client, settings, 0, "identity")) as wire:
        yield wire


def check_url(url: Any) -> None:
    """Raise a TypeError for an item that is no URL."""
    if not isinstance(url, str):
        raise TypeError(f"read_from_http reads URLs, got {type(url).__name__}")


# What a request may be told -------------------------------------------------------------


def check_request_settings(settings: dict[str, Any]) -> None:
    """Raise TypeError or ValueError for a setting of a request that is none, or has a wrong value.

    This is where the pipe is made, without aiohttp, which would say it when the first request
    fails. No error shows what a setting holds: it may be secret.
    """
    for name, value in settings.items():
        if name not in _CHECKS:
            raise TypeError(
                f"a request has no setting {name!r}; it has {', '.join(sorted(_CHECKS))}"
            )
        if value is not None:
            _CHECKS[name](name, value)


def _check(is_right: bool, name: str, what: str, value: Any) -> None:
    if not is_right:
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def _anything(name: str, value: Any) -> None:
    """Only aiohttp can tell."""


def _text(name: str, value: Any) -> None:
    _check(isinstance(value, str), name, "text", value)


def _truth(name: str, value: Any) -> None:
    _check(isinstance(value, bool), name, "True or False", value)


def _size(name: str, value: Any) -> None:
    checked_count(name, value, at_least=1)


def _names(name: str, value: Any) -> None:
    is_right = isinstance(value, Iterable) and not isinstance(value, str) and _all_text(value)
    _check(is_right, name, "a list of names", value)


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _headers(name: str, value: Any) -> None:
    for key, text in _pairs(name, value):
        _check(isinstance(key, str), name, "named by text", key)
        _text(f"{name}[{key!r}]", text)
        # Another header would begin after the end of a line.
        if {"\r", "\n", "\0"} & {*key, *text}:
            raise ValueError(f"{name}[{key!r}] must be one line, and have no NUL")


def _params(name: str, value: Any) -> None:
    if isinstance(value, str):
        return
    for key, one in _pairs(name, value):
        is_list = isinstance(value, Mapping) and isinstance(one, list | tuple)
        for part in one if is_list else (one,):
            # Servers make different texts of truths.
            is_right = isinstance(part, str | SupportsInt) and not isinstance(part, bool)
            is_right = is_right and not (isinstance(part, float) and not math.isfinite(part))
            _check(is_right, f"{name}[{key!r}]", "text or a finite number", part)


def _pairs(name: str, value: Any) -> list[tuple[Any, Any]]:
    try:
        return [(key, one) for key, one in (value.items() if isinstance(value, Mapping) else value)]
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a dict or pairs of names and values, got {type(value).__name__}"
        ) from None


def _auth(name: str, value: Any) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and _all_text(value)
    is_right = is_pair or (hasattr(value, "encode") and not isinstance(value, str))
    _check(is_right, name, "a tuple of user and password, or aiohttp's BasicAuth", value)
    if is_pair and ":" in value[0]:
        raise ValueError(f"{name} must have no colon in the user: the password begins there")


def _proxy(name: str, value: Any) -> None:
    _check(isinstance(value, str) or hasattr(value, "raw_host"), name, "a URL", value)
    if str(value).partition("://")[0].lower() not in ("http", "https"):
        raise ValueError(f"{name} must be the URL of an http or https proxy")


def _ssl(name: str, value: Any) -> None:
    is_right = isinstance(value, bool | ssl.SSLContext) or hasattr(value, "fingerprint")
    _check(is_right, name, "True, False, an ssl.SSLContext or aiohttp's Fingerprint", value)


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "allow_redirects": _truth,
    "auth": _auth,
    "auto_decompress": _truth,
    "chunked": _truth,
    "compress": _anything,
    "cookies": _anything,
    "data": _anything,
    "expect100": _truth,
    "headers": _headers,
    "json": _anything,
    "max_field_size": _size,
    "max_headers": _size,
    "max_line_size": _size,
    "middlewares": _anything,
    "params": _params,
    "proxy": _proxy,
    "proxy_auth": _anything,
    "proxy_headers": _headers,
    "read_bufsize": _size,
    "read_until_eof": _truth,
    "server_hostname": _text,
    "skip_auto_headers": _names,
    "ssl": _ssl,
    "trace_request_ctx": _anything,
}


@functional_datapipe("read_from_object_store")
class ObjectStoreReader(AsyncMapper[Any]):
    """Yield ``(path, stream)`` for each path in a store, the stream holding the whole object.

    ``store`` is a URL (``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``file:///…``), for
    which a store is made with ``store_settings`` (``config``, ``client_options``,
    ``retry_config``, ``region`` …) on every pass in each process that reads; or a store of
    obstore's; or a function that makes one. ``as_bytes=True`` yields ``(path, bytes)``.

    Up to ``concurrency`` objects are read at a time, in the source's order, or with
    ``ordered=False`` as they are ready. An object may take ``timeout`` seconds; within
    them the store tries again by itself. One that is not there is a
    ``FileNotFoundError``, one of more than ``max_bytes`` a ``ResourceExhausted``.
    ``on_error`` and ``max_errors`` are those of ``async_map``. Needs obstore (the extra
    ``cloud``).

    >>> import pathlib, tempfile
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a").write_text("hello")
    ...     paths = IterableWrapper(["a"])
    ...     list(paths.read_from_object_store(f"file://{folder}", as_bytes=True))
    [('a', b'hello')]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        store: Any,
        *,
        concurrency: int = 64,
        ordered: bool = True,
        timeout: float | None = None,
        max_bytes: int = 1 << 30,
        as_bytes: bool = False,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **store_settings: Any,
    ) -> None:
        if store_settings and not isinstance(store, str):
            raise TypeError(
                f"{', '.join(store_settings)}: settings can only be given with the URL of a store,"
                f" and store is a {type(store).__name__}"
            )
        if not (isinstance(store, str) or callable(store) or hasattr(store, "get_async")):
            raise TypeError(
                "store must be the URL of a store, one of obstore's, or a function that makes one,"
                f" got {type(store).__name__}"
            )
        self.store = store
        self.max_bytes = checked_count("max_bytes", max_bytes, at_least=1)
        self.as_bytes = as_bytes
        # The pipe itself does not keep the store's settings: they may hold secrets.
        super().__init__(
            source_datapipe,
            partial(get_object, max_bytes=self.max_bytes, as_bytes=as_bytes),
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            resource=partial(store_for, store, store_settings),
            on_error=on_error,
            max_errors=max_errors,
        )


async def get_object(
    path: str, store: Any, *, max_bytes: int, as_bytes: bool
) -> tuple[str, bytes | io.BytesIO]:
    """Read one object of a store."""
    if not isinstance(path, str):
        raise TypeError(f"read_from_object_store reads paths, got {type(path).__name__}")
    found = await store.get_async(path)
    if found.meta["size"] > max_bytes:
        raise too_large(path, max_bytes)
    body = await whole_body(found.stream(), path, max_bytes)
    return path, body if as_bytes else io.BytesIO(body)


@contextlib.asynccontextmanager
async def store_for(store: Any, settings: dict[str, Any]) -> AsyncIterator[Any]:
    """Give a store for a pass: from a URL, by a function, or one that is there."""
    # A store has nothing to close: its connections end when it is dropped.
    obstore = await imported("obstore.store", "read_from_object_store")
    if isinstance(store, str):
        yield obstore.from_url(store, **settings)
    else:
        yield store() if callable(store) else store


#: What was imported to its end. What is being imported is among Python's modules already.
_imported: set[str] = set()


async def imported(name: str, needed_by: str) -> ModuleType:
    """Return a module; raise ModuleNotFoundError with what to install if it is not there."""
    if name not in _imported:
        try:
            await in_thread(importlib.import_module, name)
            _imported.add(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{needed_by} needs {name.partition('.')[0]}: pip install 'asyncloader[cloud]'",
                name=error.name,
            ) from error
    return sys.modules[name]
