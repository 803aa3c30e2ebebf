"""What a pipe reads from.

This file is about edges. If a pipe declares its ``edges``, those are used. Otherwise they are
searched in its attributes, and in small containers there; nothing is pickled, iterated or
called. ``asyncloader.graph`` walks whole graphs; ``pipes_from`` is for pipes that must know which
pipes they read, directly or through others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, NoneType
from typing import Any

from asyncloader.datapipes.base import DataPipe, is_pipe
from asyncloader.datapipes.running.cursors import Cursors, cursors_of, number_of, put_cursor
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.traits import (
    attributes,
    draws,
    is_branch,
    is_splitter,
    is_without_order,
    reads_in_turn,
)

MAX_DEPTH = 3
MAX_ELEMENTS = 1024

_CONTAINERS = (list, tuple, dict, set, frozenset)
_MUTABLE = (list, dict, set)
#: Most attributes are of these types, which hold no pipes. Whether something is a pipe takes
#: longer to find out.
_WITHOUT_PIPES = frozenset({NoneType, bool, int, float, str, bytes, range, type, FunctionType})


def pipes_in(value: Any) -> Iterator[Any]:
    """Yield ``value`` if it is a pipe, else the pipes in it if it is a container."""
    if is_pipe(value):
        yield value
    elif isinstance(value, _CONTAINERS):
        yield from _Search().pipes(value)


def rewritten(value: Any, leaf: Callable[[Any], Any], fresh: bool = False) -> Any:
    """Return ``value`` with every element replaced by ``leaf(element)``.

    A container in which something changes is copied, with the same type; with ``fresh``
    every list, dict and set that is searched is copied.
    """
    return _Search().rewritten(value, leaf, fresh)


class _Search:
    """The search of one attribute, limited in depth and in the number of elements."""

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
            # A set's order may differ from process to process.
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
        # Every container counts, also one that is too large to search.
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


def edges_of(pipe: Any) -> list[Any]:
    """Return the pipes that ``pipe`` itself reads from, each once, in its own order.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> edges_of(IterableWrapper(range(3)).map(str))
    [IterableWrapper()]
    """
    return list({id(edge): edge for edge in every_edge_of(pipe)}.values())


def every_edge_of(pipe: Any) -> list[Any]:
    """Return the pipes that ``pipe`` reads from; a pipe that is two of its sources comes twice."""
    declared = declared_edges(pipe)
    found = _found_edges(pipe) if declared is None else declared
    return [edge for edge in found if edge is not pipe]


def reads_twice(reader: Any, pipe: Any) -> bool:
    """Whether ``reader`` has ``pipe`` as a source more than once, and makes a pass for each."""
    return sum(edge is pipe for edge in every_edge_of(reader)) > 1


def declared_edges(pipe: Any) -> list[Any] | None:
    """Return the edges that a pipe declares, or None if it declares none."""
    # Only in our own classes does ``edges`` have this meaning.
    declared = pipe.edges if isinstance(pipe, DataPipe) else None
    if declared is None:
        return None
    edges = list(declared) if isinstance(declared, Iterable) else [declared]
    for edge in edges:
        if not is_pipe(edge):
            raise TypeError(
                f"edges of {type(pipe).__qualname__} must be the pipes it reads from, got"
                f" {type(edge).__name__}; give the attribute another name if it is data"
            )
    return edges


def _found_edges(pipe: Any) -> Iterator[Any]:
    for _, value in attributes(pipe):
        if type(value) not in _WITHOUT_PIPES:
            yield from pipes_in(value)


def reached(pipes: Iterable[Any], nexts: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Yield some pipes and all that ``nexts`` leads to from them, each once, the nearest first."""
    waiting = list({id(pipe): pipe for pipe in pipes}.values())
    seen = set(map(id, waiting))
    for pipe in waiting:  # it grows while it is read
        yield pipe
        for each in nexts(pipe):
            if id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)


def pipes_from(pipe: Any, up_to: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Yield a pipe and all that it reads, directly or not, each once, from last to first.

    The walk goes ``up_to`` splitters, which other pipes read too, or up to their branches.
    """
    if up_to is None:
        return reached([pipe], edges_of)
    return reached([pipe], lambda each: [] if up_to(each) else edges_of(each))


def all_readers(pipe: Any, readers: Callable[[Any], list[Any]]) -> dict[int, Any]:
    """Return a pipe and all that read it, however far, by their ids, the nearest first."""
    return {id(each): each for each in reached([pipe], readers)}


def read_apart(one: dict[int, Any], other: dict[int, Any]) -> list[Any] | None:
    """Return what reads only one of two pipes, of which these are all readers.

    None where they are read one after the other.
    """
    join = next((pipe for each, pipe in one.items() if each in other), None)
    if reads_in_turn(join):
        return None
    return [pipe for each, pipe in (one | other).items() if not (each in one and each in other)]


def drawn_above(pipe: Any) -> Any | None:
    """Return a pipe that this one reads whose order is random in each pass, or None."""
    above = (each for each in pipes_from(pipe) if each is not pipe)
    return next((each for each in above if is_without_order(each) or draws(each)), None)


def part_of(source: Edge[Any], cursors: Cursors) -> Cursors:
    """Return the cursors that one of several sources needs to resume.

    These are the cursors of the pipes it reads: a source that does not move returns its first
    cursors again, which must not overwrite newer ones of another source. All cursors of
    branches are included, since a splitter needs those of all its branches.
    """
    branches = {place: each for place, each in cursors.items() if "splitter" in each}
    return branches | cursors_of(pipes_from(source.pipe, is_splitter), cursors)


def resume_one(source: Edge[Any], position: int, cursors: Cursors) -> None:
    """Let the next pass of one of several sources begin after its first ``position`` items."""
    source.resume(position, part_of(source, cursors))


def beginning(source: Edge[Any]) -> Cursors:
    """Return the cursors with which a source begins, up to splitters.

    A splitter has other readers too and knows itself where to begin.
    """
    first = source.first_cursors()
    return cursors_of(pipes_from(source.pipe, is_splitter), first) if first else {}


def branches_above(pipe: Any) -> list[Any]:
    """Return the branches that a pipe reads, up to their splitters."""
    return list(filter(is_branch, pipes_from(pipe, is_branch)))


def at_beginning(pipe: Any, cursors: Cursors) -> Cursors:
    """Return the cursors of branches of a later pass in which a pipe has not begun to read."""
    own = cursors_of(branches_above(pipe), cursors)
    return {number: each for number, each in own.items() if "seeds" in each and not each["yielded"]}


def put_left(sources: Iterable[Edge[Any]], current: Edge[Any], into: Cursors) -> None:
    """Add where branches are that have left, and will be read again by sources to come.

    The current source says itself where those are that it reads: it may have run ahead of what is
    taken from it, and then reads them again from an earlier place, or from their first items.
    """
    told = {number_of(branch) for branch in branches_above(current.pipe)} | into.keys()
    for source in sources:
        for branch in branches_above(source.pipe):
            split = branch.split_in(source.tree)
            if split is not None and split.has_left(branch.index) and number_of(branch) not in told:
                put_cursor(branch, split.cursor_of(branch.index), into)


def _tell_sisters(branch: Any, own: Cursors, tree: RunTree) -> None:
    """Let the sisters of a branch that has left know where it was, also those that begin late."""
    if own and branch.split_in(tree) is None:
        for each in tree.pipes:
            if is_branch(each) and each is not branch and each.source is branch.source:
                tree.set_start(each, {**own, **tree.start_of(each)})


class EndedBranches:
    """Where branches are that were read by sources that have ended; others may still read them."""

    def __init__(self) -> None:
        self._ended: list[Edge[Any]] = []
        self._cursors: Cursors = {}

    def note(self, source: Edge[Any], *, is_read_again: bool) -> None:
        """Note that a source has ended; call it right after its last item.

        Where whoever resumes reads it again, branches have to be where it says that it is.
        """
        self._ended.append(source)
        told: Cursors = {}
        if is_read_again and source.has_moved():
            source.put_own_cursors(told)
        for branch in branches_above(source.pipe):
            if is_read_again and number_of(branch) not in told:
                # What reads it begins at its first item again.
                continue
            split = branch.split_in(source.tree)
            if split is not None:
                put_cursor(branch, split.cursor_of(branch.index), self._cursors)

    def resume(self, sources: Iterable[Edge[Any]], cursors: Cursors) -> None:
        """Note sources that had ended where these cursors are from."""
        for source in sources:
            self._ended.append(source)
            for branch in branches_above(source.pipe):
                own = cursors_of([branch], cursors)
                self._cursors |= own
                _tell_sisters(branch, own, source.tree)

    def put(self, into: Cursors, sources: Iterable[Edge[Any]]) -> None:
        """Add their cursors, but for those that one of these sources reads again."""
        if self._cursors:
            pipes = [source.pipe for source in sources if source not in self._ended]
            again = {number_of(branch) for pipe in pipes for branch in branches_above(pipe)}
            for number, cursor in self._cursors.items():
                if number not in again:
                    into.setdefault(number, cursor)
