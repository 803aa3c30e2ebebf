"""Changing a graph in place.

This file is about putting another pipe where one was, and taking one out. What
reads a pipe is changed wherever it holds it: in attributes, and in lists, tuples,
dicts and sets there.
"""

from __future__ import annotations

from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import is_pipe
from asyncloader.datapipes.pipe.containers import rewritten
from asyncloader.datapipes.pipe.edges import attributes, edges_of, vars_of
from asyncloader.datapipes.pipe.kinds import can, is_splitter, lives_with_loader
from asyncloader.graph.walk import DataPipeGraph, breadth_first, list_dps, traverse_dps


def replace_dp(graph: DataPipeGraph, old_datapipe: Any, new_datapipe: Any) -> DataPipeGraph:
    """Let all that reads ``old_datapipe`` read ``new_datapipe``; return the graph as it is then.

    ``new_datapipe`` itself may go on reading the old one, which puts it in between.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import traverse_dps
    >>> source = IterableWrapper(range(2))
    >>> end = source.map(str)
    >>> _ = replace_dp(traverse_dps(end), source, IterableWrapper(range(3)))
    >>> list(end)
    ['0', '1', '2']
    """
    if not is_pipe(new_datapipe):
        raise TypeError(f"only a datapipe replaces one, got {type(new_datapipe).__name__}")
    _check_is_in(graph, old_datapipe)
    end = _end_of(graph)
    for reader in list_dps(graph):
        if reader is not new_datapipe:
            replace_edge(reader, old_datapipe, new_datapipe)
    return traverse_dps(new_datapipe if end is old_datapipe else end)


def remove_dp(graph: DataPipeGraph, datapipe: Any) -> DataPipeGraph:
    """Let all that reads ``datapipe`` read its source instead; return the graph as it is then.

    A pipe that reads none or several, a splitter, and the branches of one cannot be
    taken out: that is a RuntimeError.

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


def as_run(datapipe: Any) -> Any:
    """Return a graph as the sources in it that live with the loader want it to be run.

    Its pipes may be changed.
    """
    for pipe in breadth_first(datapipe):
        if lives_with_loader(pipe) and can(pipe, "rewired"):
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
    """Set an attribute as it is, past whatever the class does when attributes are set."""
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
