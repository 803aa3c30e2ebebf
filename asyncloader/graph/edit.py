"""Changing and copying a graph.

This file is about putting another pipe where one was, taking one out, and copying a whole
graph. What reads a pipe is changed wherever it holds it: in attributes, and in lists,
tuples, dicts and sets there.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

from asyncloader.datapipes.base import DataPipe, is_pipe
from asyncloader.datapipes.edges import MAX_ELEMENTS, declared_edges, edges_of, rewritten
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    attributes,
    is_shuffler,
    is_splitter,
    lives_with_loader,
    vars_of,
)
from asyncloader.graph.walk import DataPipeGraph, breadth_first, list_dps, traverse_dps
from asyncloader.safe_error_text import note


def replace_dp(graph: DataPipeGraph, old_datapipe: Any, new_datapipe: Any) -> DataPipeGraph:
    """Let all that reads ``old_datapipe`` read ``new_datapipe``; return the changed graph.

    ``new_datapipe`` itself may still read the old one, which puts it in between.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import traverse_dps
    >>> source = IterableWrapper(range(2))
    >>> end = source.map(str)
    >>> _ = replace_dp(traverse_dps(end), source, IterableWrapper(range(3)))
    >>> list(end)
    ['0', '1', '2']
    """
    if not is_pipe(new_datapipe):
        raise TypeError(
            f"a datapipe can be replaced only by a datapipe, got {type(new_datapipe).__name__}"
        )
    _check_is_in(graph, old_datapipe)
    end = _end_of(graph)
    for reader in list_dps(graph):
        if reader is not new_datapipe:
            replace_edge(reader, old_datapipe, new_datapipe)
    return traverse_dps(new_datapipe if end is old_datapipe else end)


def remove_dp(graph: DataPipeGraph, datapipe: Any) -> DataPipeGraph:
    """Let all that reads ``datapipe`` read its source instead; return the changed graph.

    RuntimeError for a pipe that reads none or several, for a splitter, and for the branches
    of one: they cannot be removed.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import traverse_dps
    >>> shuffled = IterableWrapper(range(3)).shuffle()
    >>> end = shuffled.map(str)
    >>> _ = remove_dp(traverse_dps(end), shuffled)
    >>> list(end)
    ['0', '1', '2']
    """
    _check_is_in(graph, datapipe)
    sources = edges_of(datapipe)
    if not sources:
        raise RuntimeError(f"{stage_name(datapipe)} is a source and cannot be removed")
    if len(sources) > 1:
        raise RuntimeError(
            f"{stage_name(datapipe)} reads {len(sources)} pipes and cannot be removed: its"
            " readers would not know which to read"
        )
    if is_splitter(datapipe) or is_splitter(sources[0]):
        raise RuntimeError(
            f"{stage_name(datapipe)} belongs to a splitter and cannot be removed; replace what"
            " reads its branches instead"
        )
    return replace_dp(graph, datapipe, sources[0])


def replaced(end: Any, old: Any, new: Any) -> Any:
    """Let all that reads ``old`` read ``new``; return the end of the changed graph."""
    return _end_of(replace_dp(traverse_dps(end), old, new))


def removed(end: Any, pipe: Any) -> Any:
    """Let all that reads ``pipe`` read its source; return the end of the changed graph."""
    return _end_of(remove_dp(traverse_dps(end), pipe))


def as_run(datapipe: Any) -> Any:
    """Let the sources that live with the loader change a graph; return the graph to run."""
    for pipe in breadth_first(datapipe):
        if lives_with_loader(pipe) and isinstance(pipe, DataPipe):
            datapipe = pipe.rewired(datapipe)
    return datapipe


def replace_edge(reader: Any, old: Any, new: Any) -> None:
    """Let one pipe read ``new`` wherever it read ``old``; nothing happens where it did not."""
    if not any(edge is old for edge in edges_of(reader)):
        return
    for name, value in list(attributes(reader)):
        changed = rewritten(value, lambda element: new if element is old else element)
        if changed is not value:
            assign(reader, name, changed)
    if any(edge is old for edge in edges_of(reader)):
        raise RuntimeError(
            f"{stage_name(reader)} declares that it reads {stage_name(old)}, which is in none of"
            " its attributes and so cannot be replaced; keep it in an attribute of the pipe"
        )


def assign(pipe: Any, name: str, value: Any) -> None:
    """Set an attribute directly, without the ``__setattr__`` of the pipe's class."""
    if name in vars_of(pipe):
        vars_of(pipe)[name] = value
    else:
        object.__setattr__(pipe, name, value)


def _end_of(graph: DataPipeGraph) -> Any:
    if len(graph) != 1:
        raise ValueError(f"a graph has one end, got {len(graph)}; pass what traverse_dps returns")
    ((end, _),) = graph.values()
    return end


def _check_is_in(graph: DataPipeGraph, datapipe: Any) -> None:
    if not any(pipe is datapipe for pipe in list_dps(graph)):
        raise ValueError(f"{stage_name(datapipe)} is no part of the graph")


def copy_graph(datapipe: Any) -> Any:
    """Return a copy of a graph, as if it had not been iterated yet.

    Each pipe is copied once, so a pipe with several readers, or a splitter, has as many in
    the copy. Data is shared with the original. The copy has its own small lists, dicts and
    sets, random generators, and methods of pipes, so the two graphs do not affect each other.
    A pipe is copied by ``copy.copy``: one whose ``__copy__`` returns itself is part of both
    graphs.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).sharding_filter()
    >>> copy = copy_graph(pipe)
    >>> copy.apply_sharding(2, 0)
    >>> list(copy), list(pipe)
    ([0, 2], [0, 1, 2, 3])
    """
    return copy_graphs([datapipe])[0]


def copy_graphs(ends: Sequence[Any]) -> list[Any]:
    """Return copies of the graphs with these ends, which may share pipes, as ``copy_graph`` does.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(2))
    >>> one, other = copy_graphs([source.map(str), source.map(float)])
    >>> one.source is other.source
    True
    """
    pipes = list({id(pipe): pipe for end in ends for pipe in breadth_first(end)}.values())
    copies = {id(pipe): _copied(pipe) for pipe in pipes}
    twin_of = partial(_twin_of, copies=copies, generators={})
    for pipe in pipes:
        if copies[id(pipe)] is not pipe:
            _settle(copies[id(pipe)], twin_of)
    return [copies[id(end)] for end in ends]


#: Attributes in which torch's pipes keep their iteration; the classes hold the initial values.
_TORCH_ITERATION = (
    "_valid_iterator_id",
    "_number_of_samples_yielded",
    "_snapshot_state",
    "_fast_forward_iterator",
)


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


def _settle(twin: Any, twin_of: Callable[[Any], Any]) -> None:
    """Let a copied pipe hold copies where its original holds what was copied."""
    if declared_edges(twin) == []:
        return  # all that it has is the user's
    for name, value in list(attributes(twin)):
        settled = rewritten(value, twin_of, fresh=True)
        if settled is not value:
            assign(twin, name, settled)
    for edge in edges_of(twin):
        if twin_of(edge) is not edge:
            raise RuntimeError(
                f"{stage_name(twin)} declares that it reads {stage_name(edge)}, which is in"
                " none of its attributes and so cannot be copied; keep it in an attribute"
            )


def _twin_of(value: Any, copies: dict[int, Any], generators: dict[int, Any]) -> Any:
    """Return the copy that takes a value's place, or the value where it is shared.

    ``copies`` are those of the pipes; ``generators``, those that were made of random generators,
    get each new one.
    """
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    if isinstance(value, deque) and len(value) <= MAX_ELEMENTS:
        return copy.copy(value)
    if _is_generator(value):
        return generators.setdefault(id(value), copy.deepcopy(value))
    return value


def _is_generator(value: Any) -> bool:
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState))
