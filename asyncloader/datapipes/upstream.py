"""What is above a pipe.

This file is about ``pipes_from``, for pipes that have to know what they read from; whoever
has a whole graph walks it by ``asyncloader.graph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.base import DataPipe, is_pipe
from asyncloader.datapipes.cursors import Cursors, cursor_of, first_cursors, place_of


def pipes_from(pipe: Any, *, to_splitters: bool = False) -> Iterator[Any]:
    """Yield a pipe and all those above it, each once, from the last to the first.

    With ``to_splitters`` that goes only as far as they are read by nobody else.
    """
    waiting, seen = [pipe], {id(pipe)}
    while waiting:
        current = waiting.pop(0)
        if to_splitters and isinstance(current, DataPipe) and current.is_splitter():
            continue
        yield current
        for source in sources_of(current):
            if id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)


def beginning(source: Any) -> Cursors:
    """Return the cursors with which a source is to begin, as far as no others read the same.

    A splitter, which others read too, knows itself where it is to begin.
    """
    first = first_cursors(source)
    own = (pipe for pipe in pipes_from(source, to_splitters=True) if first)
    found = ((place_of(pipe), cursor_of(pipe, first)) for pipe in own)
    return {place: cursor for place, cursor in found if place is not None and cursor}


def sources_of(pipe: Any) -> list[Any]:
    """Return the pipes that a pipe reads, as far as it has them in its attributes."""
    if getattr(pipe, "edges", None) is not None:
        return list(pipe.edges)
    found: list[Any] = []
    for value in vars(pipe).values():
        found += _held_in(value)
    return [value for value in found if is_pipe(value)]


def _held_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | tuple) else [value]
