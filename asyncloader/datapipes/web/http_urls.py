"""URLs as they are asked for.

This file is about ``as_given``, for the URLs of a source, and ``Answer``, for those that
servers redirect to. Left to itself aiohttp writes an escape such as ``%2F`` as what it stands
for, which breaks the signature of a URL. It is imported with this file.
"""

from __future__ import annotations

import contextlib
import re

from aiohttp import ClientResponse
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

#: What needs no escape, or is one. Brackets do, but for those of an address.
_ESCAPED = re.compile(r"(?:[\w.~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*", re.ASCII)


def as_given(url: str) -> URL:
    """Return what is asked for: the URL to the letter, or escaped where it was not yet.

    ValueError for what is no URL.
    """
    # What is to the letter is not looked at.
    seen = URL(url)
    return URL(url, encoded=True) if "%" in url and _ESCAPED.fullmatch(url) else seen


class Answer(ClientResponse):
    """An answer that redirects, if it does, to a URL that is asked for to the letter."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        headers = super().headers
        if "Location" not in headers:
            return headers
        changed = CIMultiDict(headers)
        with contextlib.suppress(ValueError):
            changed["Location"] = str(as_given(changed["Location"]))
        return CIMultiDictProxy(changed)
