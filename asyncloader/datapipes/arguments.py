"""What pipes may be made of.

This file is about the arguments of constructors: they are checked when a pipe is
made, where the traceback still shows the line to change, and not when it runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import AsyncIterable, Iterable
from typing import Any


def checked_count(name: str, value: Any, *, at_least: int) -> int:
    """Return an integer that is large enough; raise TypeError or ValueError otherwise."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value}")
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from None
    if count < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {count}")
    return count


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0; raise TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be more than 0 seconds, and finite, got {value}")
    return value


def checked_function(name: str, value: Any) -> Any:
    """Return something that can be called; raise TypeError otherwise."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    return value


def iterable_source(value: Any) -> Any:
    """Return the pipe that reads ``value``, or ``value`` where it is one; TypeError otherwise."""
    from asyncloader.datapipes.base import is_pipe
    from asyncloader.datapipes.sources import IterableWrapper

    if is_pipe(value):
        return value
    if isinstance(value, Iterable):
        return IterableWrapper(value, deepcopy=False)
    if hasattr(type(value), "__getitem__"):
        return value
    if isinstance(value, AsyncIterable):
        raise TypeError(
            f"an async iterable ({type(value).__name__}) is read through IterableWrapper(...)"
        )
    raise TypeError(f"a pipe reads from pipes and iterables, got {type(value).__name__}")


def checked_length(value: Any) -> int:
    """Return the number of items that a pipe is said to have, -1 for one that nobody knows."""
    return checked_count("length", value, at_least=-1)


def iterable_sources(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one or more things a pipe can read from; raise an error otherwise."""
    if not values:
        raise ValueError("at least one source is needed, got none")
    return tuple(iterable_source(value) for value in values)


def keyed_source(value: Any) -> Any:
    """Return something that items can be looked up in; raise TypeError otherwise."""
    if not hasattr(type(value), "__getitem__"):
        raise TypeError(f"items are looked up in map pipes, got {type(value).__name__}")
    return value


def keyed_sources(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one or more things that items can be looked up in; raise an error otherwise."""
    if not values:
        raise ValueError("at least one source is needed, got none")
    return tuple(keyed_source(value) for value in values)


def checked_indices(value: Any) -> Any:
    """Return a sequence of keys, or None for all; raise TypeError otherwise."""
    if value is None or (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return value
    raise TypeError(f"indices must be a sequence, got {type(value).__name__}; make it a list")
