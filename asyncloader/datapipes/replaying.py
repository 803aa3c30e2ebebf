"""Pipes that cannot resume in the middle, and the pipes that they read.

This file is about passes that are resumed by running them again from their beginning. Their
sources are read again from where they were then; sources without a fixed order have to record
their order from that point on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.edges import pipes_from
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    cursor_of,
    cursors_of,
    number_of,
    put_cursor,
)
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Run, RunTree
from asyncloader.datapipes.running.traits import (
    calls_for_each,
    has_passes,
    is_splitter,
    is_without_order,
    raises_errors,
    skips_errors,
)


def is_replayed(pipe: Any) -> bool:
    """Whether a pipe has no cursor, so that it and all that it reads are run again to resume."""
    if not isinstance(pipe, IterDataPipe):
        return True
    if is_splitter(pipe):
        return False
    return not has_passes(pipe)


def needs_replay(pipe: Any) -> bool:
    """Whether a state has no cursor of a pipe: it is replayed, or has no number in the graph.

    Pipes that reading services or functions added have no number.
    """
    return is_replayed(pipe) or (number_of(pipe) is None and not _is_where_its_source_is(pipe))


def _is_where_its_source_is(pipe: Any) -> bool:
    if is_splitter(pipe) or pipe.is_stand_in:
        return True
    # A pipe that skips errors counts them, so its source's position is not enough.
    return isinstance(pipe, OneToOne) and raises_errors(pipe)


def unnumbered(unordered: Iterable[Any]) -> str:
    """Return the name of a pipe without order whose state cannot be taken, or ""."""
    for pipe in unordered:
        if number_of(pipe) is None:
            return stage_name(pipe)
        if pipe.is_stand_in and pipe.unnumbered:
            return str(pipe.unnumbered)
    return ""


def begin_unordered(tree: RunTree, pipes: Iterable[Any], cursors: Cursors) -> Cursors:
    """Let a graph's pipes without order record what they yield; return cursors that include it.

    Call this before a pass that resumes from ``cursors``, which are not changed.
    """
    pipes = list(pipes)
    unordered = [pipe for pipe in pipes if is_without_order(pipe)]
    if not unordered:
        return cursors
    noting = with_those_above(copy.deepcopy(cursors))
    numbers = set(map(number_of, unordered))
    others = {number: cursor for number, cursor in noting.items() if number not in numbers}
    for pipe in unordered:
        put_cursor(pipe, _to_begin_with(tree, pipe, cursor_of(pipe, noting)), noting)
    for pipe in pipes:
        # A cursor keeps all entries that follow it alive, so only the reader gets it.
        own = cursors_of(filter(is_without_order, pipes_from(pipe)), noting)
        if needs_replay(pipe):
            tree.set_beginnings(pipe, own)
        # A splitter is read only through its branches.
        if not is_splitter(pipe):
            tree.set_start(pipe, others | own)
    return noting


def put_unordered_cursors(source: Run[Any], into: Cursors) -> None:
    """Add cursors of the beginning for a source's pipes without order; its next pass begins."""
    for pipe in filter(is_without_order, pipes_from(source.pipe, to_splitters=True)):
        put_cursor(pipe, pipe.first_cursor(source.tree), into)


def with_those_above(cursors: Cursors) -> Cursors:
    """Return the cursors, and those of splitters' sources, which are inside the branches'."""
    found = dict(cursors)
    for cursor in cursors.values():
        above = with_those_above(dict(cursor.get("above", ())))
        found = above | found
    return found


def _to_begin_with(tree: RunTree, pipe: Any, cursor: Cursor | None) -> Cursor:
    if cursor is None:
        first: Cursor = pipe.first_cursor(tree)
        return first
    if "begun" not in cursor:
        return cursor
    tree.yield_order_of(pipe).count_as(cursor)
    if cursor["begun"]:
        return cursor
    tree.yield_order_of(pipe).expect(cursor)
    expected: Cursor = pipe.first_cursor(tree)
    return expected


def keeps_positions(pipe: Any) -> bool:
    """Whether each item of a pipe is made of one item of its source, in the same order."""
    is_one = isinstance(pipe, OneToOne) or calls_for_each(pipe)
    # A pipe that leaves out bad samples yields fewer items than it takes.
    return is_one and not (skips_errors(pipe) or is_without_order(pipe) or is_replayed(pipe))
