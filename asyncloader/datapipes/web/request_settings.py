"""What a request may be told.

This file is about the settings of aiohttp's ``ClientSession.get`` that read_from_http takes.
They are looked at where the pipe is made, without aiohttp. No error shows what a setting
holds: it may be secret.
"""

from __future__ import annotations

import base64
import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsInt

from asyncloader.datapipes.pipe.arguments import checked_count
from asyncloader.datapipes.web.http_requests import with_headers


def request_settings_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as aiohttp takes them: user and password become a header.

    TypeError or ValueError for one that there is not, and for a value that it cannot have.
    """
    for name, value in settings.items():
        if name not in _CHECKS:
            raise TypeError(
                f"{name!r} is no setting of a request; there are {', '.join(sorted(_CHECKS))}"
            )
        if value is not None:
            _CHECKS[name](name, value)
    auth = settings.get("auth")
    if auth is None:
        return settings
    others = {name: value for name, value in settings.items() if name != "auth"}
    return with_headers(others, {"Authorization": _credentials(auth)})


def _credentials(auth: Any) -> str:
    # aiohttp's own kind, which is a tuple too, knows how it is encoded.
    if hasattr(auth, "encode"):
        told: str = auth.encode()
        return told
    return "Basic " + base64.b64encode(":".join(auth).encode()).decode()


def _anything(name: str, value: Any) -> None:
    """Only aiohttp can tell."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _check(is_right: bool, name: str, what: str, value: Any) -> None:
    if not is_right:
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def _text(name: str, value: Any) -> None:
    _check(_is_text(value), name, "text", value)


def _truth(name: str, value: Any) -> None:
    _check(isinstance(value, bool), name, "True or False", value)


def _bytes(name: str, value: Any) -> None:
    checked_count(name, value, at_least=1)


def _pairs(name: str, value: Any) -> list[tuple[Any, Any]]:
    try:
        return [(key, one) for key, one in _items(value)]
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a dict or pairs of names and values, got {type(value).__name__}"
        ) from None


def _items(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else iter(value)


#: What a header must not hold: another would begin after it.
_ENDS_OF_LINES = {"\r", "\n", "\0"}


def _headers(name: str, value: Any) -> None:
    for key, text in _pairs(name, value):
        _check(_is_text(key), name, "named by text", key)
        _check(_is_text(text), f"{name}[{key!r}]", "text", text)
        if _ENDS_OF_LINES & {*key, *text}:
            raise ValueError(f"{name}[{key!r}] must be one line, and have no NUL")


def _names(name: str, value: Any) -> None:
    is_right = not _is_text(value) and isinstance(value, Iterable) and all(map(_is_text, value))
    _check(is_right, name, "a list of names", value)


def _params(name: str, value: Any) -> None:
    if _is_text(value):
        return
    may_be_lists = isinstance(value, Mapping)
    for key, one in _pairs(name, value):
        for part in one if may_be_lists and isinstance(one, list | tuple) else (one,):
            _check(_is_param(part), f"{name}[{key!r}]", "text or a finite number", part)


def _is_param(value: Any) -> bool:
    # aiohttp takes no truths, of which servers make different texts.
    if isinstance(value, bool | float):
        return not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, str | SupportsInt)


def _auth(name: str, value: Any) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_text, value))
    is_right = is_pair or (hasattr(value, "encode") and not _is_text(value))
    _check(is_right, name, "a tuple of user and password, or aiohttp's BasicAuth", value)
    if is_pair and ":" in value[0]:
        raise ValueError(f"{name} must have a user without a colon, where the password begins")


def _proxy(name: str, value: Any) -> None:
    _check(_is_text(value) or hasattr(value, "raw_host"), name, "a URL", value)
    scheme = str(value).partition("://")[0]
    if scheme.lower() not in ("http", "https"):
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
    "max_field_size": _bytes,
    "max_headers": _bytes,
    "max_line_size": _bytes,
    "middlewares": _anything,
    "params": _params,
    "proxy": _proxy,
    "proxy_auth": _anything,
    "proxy_headers": _headers,
    "read_bufsize": _bytes,
    "read_until_eof": _truth,
    "server_hostname": _text,
    "skip_auto_headers": _names,
    "ssl": _ssl,
    "trace_request_ctx": _anything,
}
