"""``python -m asyncloader why``: what the loaders of a running program wait for.

This file is about ``why``, which asks the live picture of a process for that.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException

from asyncloader.system import exists, finds_pages, page_of

#: A process that does not answer is asked in several ways, each for a second or two.
_ANSWER_SECONDS = 60.0


def why(target: str) -> str:
    """Return what the loaders of a process wait for, given its number or its page's address."""
    url = target if target.startswith("http://") else _page_of(target)
    # The page is on this machine, whatever proxy there is.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/why", timeout=_ANSWER_SECONDS) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"{url}: {error.read().decode(errors='replace')}") from None
    except (OSError, HTTPException) as error:
        raise ValueError(f"no answer from {url}: {error}") from None


def _page_of(number: str) -> str:
    if not number.isdecimal():
        raise ValueError(
            f"give the number of a process or the address of a live picture, got {number!r}"
        )
    if not exists(int(number)):
        raise ValueError(f"there is no process {number}")
    if not finds_pages():
        raise ValueError(
            "on this system a program cannot be found by its number: give the address of its live"
            " picture, which `python -m asyncloader watch` prints, and loader.watch().url is"
        )
    url = page_of(int(number))
    if not url:
        raise ValueError(
            f"process {number} has no live picture, or it belongs to another user. The live picture"
            " answers this: run the program with `python -m asyncloader watch`, or with"
            " ASYNCLOADER_WATCH=1, or call loader.watch() in it. Without it the log says what a"
            " consumer waits for once it has waited a minute"
        )
    return url
