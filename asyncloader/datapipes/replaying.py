"""Pipes that know no place, and what is above them.

This file is about passes that can only be made once more. What they read is read again from
where it was when they began; what has no order there has to note it from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.cursors import (
    Cursor,
    Cursors,
    cursor_of,
    cursors_of,
    number_of,
    put_cursor,
)
from asyncloader.datapipes.edges import is_splitter, is_without_order, pipes_from
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.run import Run, RunTree, has_passes


def is_replayed(pipe: Any) -> bool:
    """Whether a pipe knows no place, so that going on runs it, and all above it, once more."""
    if not isinstance(pipe, IterDataPipe):
        return True
    if is_splitter(pipe):
        return False
    return not has_passes(pipe)


def needs_replay(pipe: Any) -> bool:
    """Whether no state says where a pipe stands, be it that it has no number in the graph.

    Without a number are those that reading services and functions put there.
    """
    return is_replayed(pipe) or (number_of(pipe) is None and not _is_where_its_source_is(pipe))


def _is_where_its_source_is(pipe: Any) -> bool:
    if is_splitter(pipe) or pipe.is_stand_in:
        return True
    # What goes on after errors counts them.
    return isinstance(pipe, OneToOne) and getattr(pipe, "on_error", "raise") == "raise"


def unnumbered(unordered: Iterable[Any]) -> str:
    """Return the name of a pipe, of some without order, of which no state can be taken, or none."""
    for pipe in unordered:
        if number_of(pipe) is None:
            return stage_name(pipe)
        if pipe.is_stand_in and pipe.unnumbered:
            return str(pipe.unnumbered)
    return ""


def with_orders(tree: RunTree, pipes: Iterable[Any], cursors: Cursors) -> Cursors:
    """Return cursors to which those belong of all that hand out as they come.

    They know what is handed out from now on. To be called with a graph's pipes before a
    pass that goes on from ``cursors``, which stay as they are.
    """
    pipes = list(pipes)
    unordered = [pipe for pipe in pipes if is_without_order(pipe)]
    if not unordered:
        return cursors
    noting = _with_those_above(copy.deepcopy(cursors))
    numbers = set(map(number_of, unordered))
    others = {number: cursor for number, cursor in noting.items() if number not in numbers}
    for pipe in unordered:
        put_cursor(pipe, _to_begin_with(tree, pipe, cursor_of(pipe, noting)), noting)
    for pipe in pipes:
        # Who holds a cursor keeps all that was handed out since: it goes to nobody above.
        own = cursors_of(filter(is_without_order, pipes_from(pipe)), noting)
        if needs_replay(pipe):
            tree.set_beginnings(pipe, own)
        # A splitter is not read itself, but through its branches.
        if not is_splitter(pipe):
            tree.set_start(pipe, others | own)
    return noting


def put_to_come(source: Run[Any], into: Cursors) -> None:
    """Add, for a source that will begin a pass, what is handed out in it without order."""
    for pipe in filter(is_without_order, pipes_from(source.pipe, to_splitters=True)):
        put_cursor(pipe, pipe.first_cursor(source.tree), into)


def _with_those_above(cursors: Cursors) -> Cursors:
    """Return cursors, and those of what is above splitters, which are in their branches' own."""
    found = dict(cursors)
    for cursor in cursors.values():
        above = _with_those_above(dict(cursor.get("above", ())))
        found = above | found
    return found


def _to_begin_with(tree: RunTree, pipe: Any, cursor: Cursor | None) -> Cursor:
    if cursor is None:
        first: Cursor = pipe.first_cursor(tree)
        return first
    if "begun" not in cursor:
        return cursor
    tree.course_of(pipe).count_as(cursor)
    if cursor["begun"]:
        return cursor
    tree.course_of(pipe).expect(cursor)
    to_come: Cursor = pipe.first_cursor(tree)
    return to_come
