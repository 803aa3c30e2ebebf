"""What a pipe reads from.

This file is about edges. A pipe that declares its ``edges`` is believed. Otherwise they
are looked for in its attributes, and in small containers there. Nothing is pickled,
iterated or called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from asyncloader.datapipes.pipe.base import DataPipe, is_pipe
from asyncloader.datapipes.pipe.containers import pipes_in

#: Attributes that are about an iteration that is going on, not about the graph.
_PASSING = frozenset({"_tree", "_datapipe_iter", "_datapipe_iterator"})


def edges_of(pipe: Any) -> list[Any]:
    """Return the pipes that ``pipe`` itself reads from, each once, in its own order.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> edges_of(IterableWrapper(range(3)).map(str))
    [IterableWrapper()]
    """
    return list({id(edge): edge for edge in every_edge_of(pipe)}.values())


def every_edge_of(pipe: Any) -> list[Any]:
    """Return the pipes that ``pipe`` itself reads from, each as often as it is a source of it."""
    declared = declared_edges(pipe)
    found = _found_edges(pipe) if declared is None else declared
    return [edge for edge in found if edge is not pipe]


def reads_twice(reader: Any, pipe: Any) -> bool:
    """Whether a pipe is several of the sources of another, which makes a pass over each."""
    return sum(edge is pipe for edge in every_edge_of(reader)) > 1


def declared_edges(pipe: Any) -> list[Any] | None:
    """Return the edges that a pipe declares, or None where they are to be found."""
    # The name means something in our own pipes only.
    declared = pipe.edges if isinstance(pipe, DataPipe) else None
    if declared is None:
        return None
    edges = list(declared) if isinstance(declared, Iterable) else [declared]
    for edge in edges:
        if not is_pipe(edge):
            raise TypeError(
                f"edges of {type(pipe).__qualname__} must be the datapipes it reads from, got"
                f" {type(edge).__name__}; give the attribute another name if it is data"
            )
    return edges


def _found_edges(pipe: Any) -> Iterator[Any]:
    for _, value in attributes(pipe):
        yield from pipes_in(value)


def attributes(pipe: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a pipe's own attributes, slots included."""
    yield from (item for item in list(vars_of(pipe).items()) if item[0] not in _PASSING)
    for name in slots_of(type(pipe)):
        if hasattr(pipe, name):
            yield name, getattr(pipe, name)


def vars_of(pipe: Any) -> dict[str, Any]:
    """Return the attributes that a pipe keeps in its ``__dict__``."""
    fields: dict[str, Any] = getattr(pipe, "__dict__", {})
    return fields


def slots_of(cls: type) -> list[str]:
    """Return the attribute names that a class and its bases keep in ``__slots__``."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hides = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if hides else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
