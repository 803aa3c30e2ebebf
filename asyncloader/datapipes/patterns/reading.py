"""How a pipe reads its source.

This file is about ``begin`` and ``abegin``, by which a pipe of ours iterates what it
reads: from the first item, or from where ``resume`` said, and in either colour.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from typing import Any

from asyncloader.datapipes.going_on.cursors import (
    Cursors,
    astarted,
    pick,
    picks,
    resume,
    set_crossing,
    started,
)
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import is_async_pipe, waits
from asyncloader.datapipes.pipe.share import Share
from asyncloader.datapipes.running.crossing import crossing_of, from_loop, from_thread
from asyncloader.errors import SnapshotError


def begin(source: Any) -> Iterator[Any]:
    """Iterate a source in this thread; one that waits crosses from a loop."""
    if not (is_async_pipe(source) and waits(source)):
        set_crossing(source, None)
        return started(source)
    crossing = crossing_of(source)
    set_crossing(source, crossing)
    return from_loop(source, crossing)


def abegin(source: Any) -> AsyncIterable[Any]:
    """Iterate a source on the running loop; one that computes crosses from a thread."""
    if is_async_pipe(source):
        set_crossing(source, None)
        return astarted(source)
    crossing = crossing_of(source)
    set_crossing(source, crossing)
    return from_thread(source, crossing)


def begin_share(source: Any, share: Share, cursors: Cursors) -> Iterator[Any]:
    """Iterate one share of a source that ``can_share``."""
    set_crossing(source, None)
    items: Iterator[Any] = source.iter_share(share, cursors)
    return items


def begin_with(
    source: Any, held: list[int], taken: int, cursors: Cursors
) -> tuple[list[Any], Iterator[Any]]:
    """Return the items at the ascending positions ``held``, and what follows the first ``taken``.

    Only what is held is made once more where the source can pick it; otherwise all from
    the first held item on, for which ``cursors`` have to be old enough.
    """
    if not held:
        if taken:
            resume(source, taken, cursors)
        return [], begin(source)
    if picks(source):
        pick(source, held)
        items = list(begin(source))
        _check_whole(source, held, items)
        resume(source, taken, cursors)
        return items, begin(source)
    first = held[0]
    resume(source, first, cursors)
    following, wanted = begin(source), set(held)
    again = zip(range(first, taken), following, strict=False)
    items = [item for position, item in again if position in wanted]
    _check_whole(source, held, items)
    return items, following


def _check_whole(source: Any, held: list[int], items: list[Any]) -> None:
    if len(items) < len(held):
        raise SnapshotError(
            f"the state does not fit the data: item {held[len(items)]} of {stage_name(source)} was"
            " held, and there is none now"
        )
