"""Pipes in lists, tuples, dicts and sets.

This file is about looking into what one attribute of a pipe holds, and putting other
things in its place. A search goes three containers deep and through 1,024 elements,
so that a pipe over a million rows costs no more than one over ten. A longer container
is searched only if it begins with a pipe.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import is_pipe

MAX_DEPTH = 3
MAX_ELEMENTS = 1024

_CONTAINERS = (list, tuple, dict, set, frozenset)
_MUTABLE = (list, dict, set)


def pipes_in(value: Any) -> Iterator[Any]:
    """Yield ``value`` if it is a pipe, else the pipes in it if it is a container."""
    if is_pipe(value):
        yield value
    elif isinstance(value, _CONTAINERS):
        yield from _Search().pipes(value)


def rewritten(value: Any, leaf: Callable[[Any], Any], fresh: bool = False) -> Any:
    """Return ``value`` with ``leaf(element)`` for all that is looked at in it.

    Containers in which something changes are made anew, of the same type; with
    ``fresh`` so is every list, dict and set that is looked into.
    """
    return _Search().rewritten(value, leaf, fresh)


class _Search:
    """Looks into one attribute, no deeper and no longer than a search for pipes may."""

    def __init__(self) -> None:
        self.left = MAX_ELEMENTS

    def pipes(self, container: Any, depth: int = 1) -> Iterator[Any]:
        if not self.opens(container, depth):
            return
        elements = _elements(container)
        kinds = {type(element): element for element in elements}
        pipes = {kind for kind, element in kinds.items() if is_pipe(element)}
        nested = {kind for kind in kinds if issubclass(kind, _CONTAINERS)} - pipes
        if not pipes and not nested:
            return
        if isinstance(container, set | frozenset):
            # A set has an order of its own in every process.
            elements = sorted(elements, key=lambda e: stage_name(e) if type(e) in pipes else "")
        for element in elements:
            if type(element) in pipes:
                yield element
            elif type(element) in nested:
                yield from self.pipes(element, depth + 1)

    def rewritten(self, value: Any, leaf: Callable[[Any], Any], fresh: bool, depth: int = 1) -> Any:
        if not isinstance(value, _CONTAINERS) or is_pipe(value):
            return leaf(value)
        if not self.opens(value, depth):
            return value
        old = _elements(value)
        new = [self.rewritten(element, leaf, fresh, depth + 1) for element in old]
        unchanged = all(before is after for before, after in zip(old, new, strict=True))
        if unchanged and not (fresh and isinstance(value, _MUTABLE)):
            return value
        return _refilled(value, new)

    def opens(self, container: Any, depth: int) -> bool:
        if depth > MAX_DEPTH:
            return False
        if len(container) <= self.left:
            self.left -= len(container)
            return True
        # Looking at the first of too many counts as well.
        self.left -= 1
        return self.left >= 0 and is_pipe(next(iter(container)))


def _elements(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def _refilled(container: Any, elements: Sequence[Any]) -> Any:
    cls = type(container)
    if isinstance(container, tuple):
        return tuple.__new__(cls, elements)
    if isinstance(container, frozenset):
        return frozenset.__new__(cls, elements)
    refilled = copy.copy(container)
    if isinstance(container, list):
        refilled[:] = elements
        return refilled
    refilled.clear()
    half = len(elements) // 2
    refilled.update(
        zip(elements[:half], elements[half:], strict=True)
        if isinstance(container, dict)
        else elements
    )
    return refilled
