"""A second graph like the first.

This file is about ``copy_graph``: pipes are copied, what they share stays shared,
and the user's data is never duplicated.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from types import MethodType
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import DataPipe
from asyncloader.datapipes.pipe.containers import MAX_ELEMENTS, rewritten
from asyncloader.datapipes.pipe.edges import attributes, declared_edges, edges_of, vars_of
from asyncloader.datapipes.pipe.kinds import is_shuffler
from asyncloader.graph.edit import assign
from asyncloader.graph.walk import breadth_first
from asyncloader.safe_error_text import note

#: What torch's pipes remember of being iterated; their classes hold how it begins.
_TORCH_ITERATION = (
    "_valid_iterator_id",
    "_number_of_samples_yielded",
    "_snapshot_state",
    "_fast_forward_iterator",
)


def copy_graph(datapipe: Any) -> Any:
    """Return a copy of a graph that nobody has iterated yet.

    Each pipe is copied once, so that a pipe with several readers, or a splitter, has
    as many in the copy. Data is shared with the original. A pipe's own small lists,
    dicts and sets, its random generators, and methods of pipes that it holds are the
    copy's; so the graphs do not notice one another. A pipe is copied as ``copy.copy``
    would: one whose ``__copy__`` returns itself is part of both graphs.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).sharding_filter()
    >>> copy = copy_graph(pipe)
    >>> copy.apply_sharding(2, 0)
    >>> list(copy), list(pipe)
    ([0, 2], [0, 1, 2, 3])
    """
    pipes = breadth_first(datapipe)
    copies = {id(pipe): _copied(pipe) for pipe in pipes}
    twins = _Twins(copies)
    for pipe in pipes:
        if copies[id(pipe)] is not pipe:
            twins.settle(copies[id(pipe)])
    return copies[id(datapipe)]


def _copied(pipe: Any) -> Any:
    try:
        twin = copy.copy(pipe)
    except Exception as error:
        note(error, f"{stage_name(pipe)} could not be copied")
        raise
    if twin is not pipe and not isinstance(twin, DataPipe):
        _forget_iteration(twin)
    return twin


def _forget_iteration(pipe: Any) -> None:
    for name in _TORCH_ITERATION:
        vars_of(pipe).pop(name, None)
    # torch's shuffler empties the buffer that it holds when it is deleted.
    if is_shuffler(pipe) and "_buffer" in vars_of(pipe):
        assign(pipe, "_buffer", [])


class _Twins:
    """The copies of a graph's pipes, and of what else must not be shared with it."""

    def __init__(self, copies: dict[int, Any]) -> None:
        self.copies = copies
        self.generators: dict[int, Any] = {}

    def settle(self, twin: Any) -> None:
        """Let a copied pipe hold copies where its original holds what was copied."""
        if declared_edges(twin) == []:
            return  # all that it has is the user's
        for name, value in list(attributes(twin)):
            settled = rewritten(value, self.twin_of, fresh=True)
            if settled is not value:
                assign(twin, name, settled)
        self._check(twin)

    def twin_of(self, value: Any) -> Any:
        """Return the copy that takes a value's place, or the value where it is shared."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, MethodType) and id(value.__self__) in self.copies:
            return MethodType(value.__func__, self.copies[id(value.__self__)])
        if isinstance(value, deque) and len(value) <= MAX_ELEMENTS:
            return copy.copy(value)
        if _is_generator(value):
            return self.generators.setdefault(id(value), copy.deepcopy(value))
        return value

    def _check(self, twin: Any) -> None:
        for edge in edges_of(twin):
            if id(edge) in self.copies and self.copies[id(edge)] is not edge:
                raise RuntimeError(
                    f"{stage_name(twin)} declares that it reads {stage_name(edge)}, which is in"
                    " none of its attributes and so cannot be copied; keep it in an attribute"
                )


def _is_generator(value: Any) -> bool:
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState))
