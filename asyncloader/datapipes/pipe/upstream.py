"""What is above a pipe.

This file is about ``pipes_from``, for pipes that have to know what they read from; whoever
has a whole graph walks it by ``asyncloader.graph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors, cursors_of
from asyncloader.datapipes.pipe.edges import edges_of
from asyncloader.datapipes.pipe.kinds import (
    is_random,
    is_shuffler,
    is_splitter,
    is_without_order,
)
from asyncloader.datapipes.pipe.run import Run


def pipes_from(pipe: Any, *, to_splitters: bool = False) -> Iterator[Any]:
    """Yield a pipe and all those above it, each once, from the last to the first.

    With ``to_splitters`` that goes only as far as they are read by nobody else.
    """
    waiting, seen = [pipe], {id(pipe)}
    while waiting:
        current = waiting.pop(0)
        if to_splitters and is_splitter(current):
            continue
        yield current
        for source in edges_of(current):
            if id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)


def drawn_above(pipe: Any) -> Any | None:
    """Return a pipe above this one that gives its items another order each time, if any does."""
    above = (each for each in pipes_from(pipe) if each is not pipe)
    return next((each for each in above if is_without_order(each) or _draws(each)), None)


def _draws(pipe: Any) -> bool:
    if is_shuffler(pipe):
        return bool(getattr(pipe, "shuffles", getattr(pipe, "_enabled", True)))
    return is_random(pipe)


def part_of(source: Run[Any], cursors: Cursors) -> Cursors:
    """Return those of a graph's cursors with which one of several sources is to go on.

    They are those of what is above it. What it does not move on from it says again, and that
    must not come upon what another source says of itself by then. Where the branches of a
    splitter stand, however, each of them has to know of all.
    """
    branches = {place: each for place, each in cursors.items() if "splitter" in each}
    return branches | cursors_of(pipes_from(source.pipe, to_splitters=True), cursors)


def resume_one(source: Run[Any], position: int, cursors: Cursors) -> None:
    """Let the next pass of one of several sources begin after its first ``position`` items."""
    source.resume(position, part_of(source, cursors))


def beginning(source: Run[Any]) -> Cursors:
    """Return the cursors with which a source is to begin, as far as no others read the same.

    A splitter, which others read too, knows itself where it is to begin.
    """
    first = source.first_cursors()
    return cursors_of(pipes_from(source.pipe, to_splitters=True), first) if first else {}
