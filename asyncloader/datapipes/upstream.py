"""What is above a pipe.

This file is about ``pipes_from``, for pipes that have to know what they read from; whoever
has a whole graph walks it by ``asyncloader.graph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.base import is_pipe


def pipes_from(pipe: Any) -> Iterator[Any]:
    """Yield a pipe and all those above it, each once, from the last to the first."""
    waiting, seen = [pipe], {id(pipe)}
    while waiting:
        current = waiting.pop(0)
        yield current
        for source in sources_of(current):
            if id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)


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
