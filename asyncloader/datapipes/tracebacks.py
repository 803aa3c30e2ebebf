"""Which frames an error's traceback shows.

This file is about ``trim_tracebacks``: what asyncloader did between two pieces of the user's code
says nothing to the user, so its own frames are left out, unless debug mode is on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType

from asyncloader.datapipes.call import is_debug
from asyncloader.errors import LoaderError
from asyncloader.safe_error_text import notes_of

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def trim_tracebacks(error: BaseException) -> None:
    """Leave the frames of asyncloader out of the tracebacks of an error and of its causes.

    Where it was raised by asyncloader, and neither its class nor a note says why, the frames that
    lead there stay: that may be a mistake of ours. A bare ``raise`` in an ``except`` block adds no
    frame of its own function then.
    """
    if is_debug():
        return
    for each in _with_causes(error):
        explains_itself = isinstance(each, LoaderError) or bool(notes_of(each))
        # The user's class may refuse attributes.
        BaseException.with_traceback(each, _trimmed(each.__traceback__, explains_itself))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and once each of those that are printed with it."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions


def _trimmed(traceback: TracebackType | None, without_last: bool) -> TracebackType | None:
    entries = list(_entries(traceback))
    others = [each for each in entries if not _is_own(each)]
    if not without_last:
        others += _last_own(entries)
    if len(others) == len(entries):
        return traceback
    shortened = None
    for each in reversed(others):
        shortened = TracebackType(shortened, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shortened


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _last_own(entries: list[TracebackType]) -> list[TracebackType]:
    """Return the frames of ours after the last one that is not."""
    count = next((n for n, each in enumerate(reversed(entries)) if not _is_own(each)), len(entries))
    return entries[len(entries) - count :]


def _is_own(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)
