"""Graphs with work that cannot be repeated.

This file is about ``as_recorded``: from the first pipe with ``repeatable=False`` to the end, a
graph is run on numbered items, so that a state can say what became of each.
"""

from __future__ import annotations

import copy
from typing import Any

from asyncloader.datapipes.base import IterDataPipe, is_pipe
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.recording import Numbering, Settling, Stage, Within
from asyncloader.datapipes.replaying import keeps_positions
from asyncloader.datapipes.running.cursors import take_number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    has_name,
    is_async_pipe,
    is_dispatch,
    is_fullsync,
    is_ours,
    is_repeatable,
    is_replicable,
    setting,
    stands_in,
)
from asyncloader.errors import LoaderError
from asyncloader.graph.edit import replaced
from asyncloader.graph.walk import Graph, pipes_of


def unrepeatable(graph: Graph) -> Any:
    """Return the pipe with which the recorded section begins, or None if there is none."""
    found = [pipe for pipe in graph.pipes if not is_repeatable(pipe)]
    # The pipes are in the order from the end. Where they are no chain, the graph is refused.
    return found[-1] if found else None


def section(graph: Graph) -> list[Any]:
    """Return the pipes of the recorded section, from the first to the end of the graph.

    It ends early before a pipe that is not the only reader, or reads several pipes.
    """
    pipe = unrepeatable(graph)
    pipes = [] if pipe is None else [pipe]
    while pipes and len(readers := graph.readers(pipes[-1])) == 1:
        if len(graph.sources(readers[0])) != 1:
            break
        pipes.append(readers[0])
    return pipes


def hard_to_record(graph: Graph) -> list[Any]:
    """Return the pipes of the section in which the numbers of items would be lost."""
    pipes = section(graph)
    if not pipes:
        return []
    # What a pipe answers is tried on a copy, which it may change.
    counted = pipes[: _last_that_counts(pipes) + 1]
    lost = [pipe for pipe in counted if stage_of(copy.copy(pipe)) is None]
    return [*lost, *graph.readers(pipes[-1])]


def as_recorded(end: Any) -> Any:
    """Return a graph that records what becomes of each item, if it has to; its pipes are changed.

    It was checked for this before.
    """
    pipes = section(Graph(end))
    if not pipes:
        return end
    first = pipes[0]
    recorded = pipes[: _last_that_counts(pipes) + 1]
    numbering = Numbering(first.source, first)
    end = replaced(end, first.source, numbering)
    for pipe in recorded:
        stage = last = stage_of(pipe)
        if stage is not pipe:
            if stage.source is not pipe:
                # Stats and errors name the pipe that the user wrote.
                take_number_of(stage, pipe)
            stage.known_as = stage_name(pipe)
            if isinstance(stage, Stage):
                stage.is_copied = is_replicable(pipe)
            end = replaced(end, pipe, stage)
    return replaced(end, last, Settling(last, numbering))


def settled_in_worker(end: Any) -> Any:
    """Return the last pipe of what a worker runs, so that it tells what becomes of each item.

    It is changed, if the graph that ends there begins a recorded section.
    """
    pipes = pipes_of(end)
    numbering = next((pipe for pipe in pipes if isinstance(pipe, Numbering)), None)
    if numbering is None:
        return end
    numbering.tells = True
    ends = any(isinstance(pipe, Settling) for pipe in pipes)
    return end if ends else Settling(end, numbering)


def goes_on_after(outlet: Any, end: Any) -> bool:
    """Whether a section goes on in the loader's process, behind what stands for the workers.

    If so, its end learns the numbers from there.
    """
    settling = next((pipe for pipe in pipes_of(end) if isinstance(pipe, Settling)), None)
    if settling is not None:
        settling.numbering = outlet
    return settling is not None


def counts_all(pipe: Any) -> bool:
    """Whether a pipe yields each item as it is, but counts them all."""
    return has_name(pipe, *_COUNTING)


_COUNTING = ("header", "enumerate", "add_index")


def _last_that_counts(pipes: list[Any]) -> int:
    """Return the place of the last pipe that does not yield just one item for each, in order."""
    return max(at for at, pipe in enumerate(pipes) if not (at and _keeps_places(pipe)))


def _keeps_places(pipe: Any) -> bool:
    return keeps_positions(pipe) or counts_all(pipe)


def stage_of(pipe: Any) -> Any:
    """Return what takes a pipe's place in a section, maybe the pipe itself, changed; or None."""
    stage = pipe.in_section() if isinstance(pipe, IterDataPipe) and is_ours(pipe) else None
    is_plain = isinstance(pipe, OneToOne) and not is_async_pipe(pipe)
    # What the ranks agree on is counted by all of them, from the beginning.
    if stage is None and is_plain and not (is_fullsync(pipe) or is_dispatch(pipe)):
        return Within(pipe)
    return stage


def numbering_of(end: Any) -> Any:
    """Return what knows the numbers of a graph that is run and has a recorded section.

    That is where it begins, or what stands for the workers where that is.

    LoaderError if a pipe that was added behind it does not yield just one item for each.
    """
    pipe = end
    while not isinstance(pipe, Settling):
        if stands_in(pipe) and setting(pipe, "settles", False):
            return pipe
        sources = edges_of(pipe) if is_pipe(pipe) else []
        if len(sources) != 1 or not _keeps_places(pipe):
            raise LoaderError(
                f"{stage_name(pipe)} was added by a reading service (or a function of one) behind"
                " work that cannot be repeated, where what becomes of each item is recorded; add it"
                " to the graph before the loader is made"
            )
        (pipe,) = sources
    return pipe.numbering
