"""Pipes that cannot resume in the middle, and the pipes that they read.

This file is about passes that are resumed by running them again from their beginning. Their
sources are read again from where they were then.
"""

from __future__ import annotations

from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.cursors import (
    Cursors,
    number_of,
)
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


def with_those_above(cursors: Cursors) -> Cursors:
    """Return the cursors, and those of splitters' sources, which are inside the branches'."""
    found = dict(cursors)
    for cursor in cursors.values():
        above = with_those_above(dict(cursor.get("above", ())))
        found = above | found
    return found


def keeps_positions(pipe: Any) -> bool:
    """Whether each item of a pipe is made of one item of its source, in the same order."""
    is_one = isinstance(pipe, OneToOne) or calls_for_each(pipe)
    # A pipe that leaves out bad samples yields fewer items than it takes.
    return is_one and not (skips_errors(pipe) or is_without_order(pipe) or is_replayed(pipe))
