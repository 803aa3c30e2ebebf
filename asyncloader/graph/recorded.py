"""Graphs with work that cannot be repeated, and those that yield items as they are ready.

This file is about which part of a graph is a recorded section: from the first pipe whose results,
or their order, cannot be made again to the end, it is run on numbered items, so that a state can
say what became of each. And it is about how a graph is changed so that it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from asyncloader.datapipes.base import IterDataPipe, is_pipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.fresh_batches import Fresh
from asyncloader.datapipes.grouping import TokenBatcher
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns import Expander
from asyncloader.datapipes.recording import Expanding, Joining, Numbering, Settling, Stage, Within
from asyncloader.datapipes.replaying import keeps_positions
from asyncloader.datapipes.rollouts import Rollout
from asyncloader.datapipes.running.cursors import number_of, take_number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    has_name,
    is_async_pipe,
    is_dispatch,
    is_fullsync,
    is_ours,
    is_repeatable,
    is_replicable,
    is_without_order,
    keeps_results,
    lives_with_loader,
    setting,
    stands_in,
)
from asyncloader.datapipes.settled import Reason
from asyncloader.errors import LoaderError
from asyncloader.graph.edit import replaced
from asyncloader.graph.walk import Graph, pipes_of


def unrepeatable(graph: Graph) -> Any:
    """Return a pipe whose function cannot be repeated, or None if there is none."""
    return next((pipe for pipe in graph.pipes if not is_repeatable(pipe)), None)


def beginning(graph: Graph) -> Any:
    """Return the first pipe whose results, or their order, cannot be made again, or None."""
    found = [pipe for pipe in graph.pipes if not is_repeatable(pipe) or is_without_order(pipe)]
    # The pipes are in the order from the end. Where they are no chain, nothing is recorded.
    return found[-1] if found else None


def recorded_from(graph: Graph) -> Any:
    """Return the pipe with which the recorded section begins, or None if there is none.

    Where only the order is lost, a graph that cannot be recorded is run without.
    """
    return graph.once(_recorded_from)


def _recorded_from(graph: Graph) -> Any:
    numbering = _first_of(Numbering, graph.pipes)
    if numbering is not None:
        return graph.readers(numbering)[0]
    first = beginning(graph)
    if first is None or unrepeatable(graph) is not None:
        return first
    is_live = any(map(lives_with_loader, graph.pipes))
    return None if is_live or hard_to_record(graph, section(graph, first)) else first


def _first_of(kind: type, pipes: Iterable[Any]) -> Any:
    """Return the first pipe of a kind, or None."""
    return next((pipe for pipe in pipes if isinstance(pipe, kind)), None)


def section(graph: Graph, first: Any) -> list[Any]:
    """Return a pipe and those that follow it, up to the end of the graph.

    It ends early before a pipe that is not the only reader, or reads several pipes.
    """
    pipes = [] if first is None else [first]
    while pipes and len(readers := graph.readers(pipes[-1])) == 1:
        if len(graph.sources(readers[0])) != 1:
            break
        pipes.append(readers[0])
    return pipes


def hard_to_record(graph: Graph, pipes: list[Any]) -> list[Any]:
    """Return the pipes, of those or behind them, in which the numbers of items would be lost."""
    return [*_lost(pipes[: _count_of_recorded(pipes)]), *graph.readers(pipes[-1])] if pipes else []


def hard_behind(graph: Graph, in_workers: Sequence[Any], end: Any) -> list[Any]:
    """Return the pipes behind what workers run in which the numbers of items would be lost.

    None, if a section begins in the workers.
    """
    first, pipes = recorded_from(graph), section(graph, end)
    numbering = _first_of(Numbering, graph.pipes)
    if any(pipe is first or pipe is numbering for pipe in in_workers):
        return []
    if numbering is not None:
        # What follows it runs on numbered items already.
        at = pipes.index(numbering)
        before, after = pipes[1:at], pipes[at + 1 :]
        stages = [stage_of(copy.copy(pipe)) for pipe in before]
        is_single = not any(isinstance(stage, Joining | Expanding) for stage in stages)
        return [*_lost(before), *(() if is_single else filter(_takes_single, after))]
    return [*_lost(pipes[1 : _count_of_recorded(pipes)]), *graph.readers(pipes[-1])]


def _lost(pipes: Sequence[Any]) -> Iterator[Any]:
    """Yield those of a section's pipes that cannot be in one, or not behind those before them."""
    is_single = repeats = may_keep_parts = True
    for pipe in pipes:
        # What a pipe answers is tried on a copy, which it may change.
        stage = stage_of(copy.copy(pipe))
        repeats = repeats and _repeats(pipe)
        expands, is_rollout = isinstance(stage, Expanding), has_name(pipe, "rollout")
        # A rollout counts the prompts that were begun, and would not see those of kept parts.
        may_keep_parts = may_keep_parts and not is_rollout
        # What is known of each number by itself says nothing of several together, or of parts.
        takes_single = expands or _takes_single(pipe)
        may_expand = repeats or (may_keep_parts and pipe.can_keep_parts) if expands else True
        if stage is None or (takes_single and not is_single) or not may_expand:
            yield pipe
        is_single = is_single and not isinstance(stage, Joining | Expanding)


def _takes_single(pipe: Any) -> bool:
    is_one = isinstance(pipe, Expanding) or has_name(pipe, "rollout")
    return is_one or keeps_results(pipe)


def _repeats(pipe: Any) -> bool:
    """Whether a pipe in a section makes the same of the same item after a resume."""
    return is_repeatable(pipe) or keeps_results(pipe)


def as_recorded(end: Any) -> Any:
    """Return a graph that records what becomes of each item, if it is to; its pipes are changed.

    It was checked for this before.
    """
    graph = Graph(end)
    first = recorded_from(graph)
    if first is None:
        return end
    pipes = section(graph, first)
    numbering = Numbering(first.source, first)
    end = replaced(end, first.source, numbering)
    end, last = _in_stages(end, pipes[: _count_of_recorded(pipes)], numbering)
    end = replaced(end, last, Settling(last, numbering))
    keeping = keeping_in(end)
    numbering.keeper = None if keeping is None else number_of(keeping)
    return end


def _in_stages(end: Any, pipes: Sequence[Any], numbering: Any) -> tuple[Any, Any]:
    """Let pipes of a graph run on numbered items; return the graph's end and their last one's."""
    last, repeats = None, True
    judge = next(filter(_judges, pipes), None)
    for pipe in pipes:
        repeats, name = repeats and _repeats(pipe), stage_name(pipe)
        stage = last = stage_of(pipe) if judge is None else _stage_behind(judge, pipe)
        if isinstance(stage, Fresh):
            judge = None
        if stage is not pipe:
            if stage.source is not pipe:
                # Stats and errors name the pipe that the user wrote.
                take_number_of(stage, pipe)
            stage.known_as = name
            if isinstance(stage, Stage):
                stage.is_copied = is_replicable(pipe)
            if isinstance(stage, Expanding):
                stage.keeps_parts, stage.numbering = not repeats, numbering
            end = replaced(end, pipe, stage)
    return end, last


def _judges(pipe: Any) -> bool:
    """Whether what makes batches of a pipe's items has to look which are too old."""
    return isinstance(pipe, Rollout) and pipe.judges


def _stage_behind(judge: Any, pipe: Any) -> Any:
    """Return what takes the place of a pipe behind a rollout whose results may be too old."""
    if not makes_fresh_batches(pipe):
        return stage_of(pipe)
    if isinstance(pipe, Batcher):
        keeps_rest = not pipe.drop_last
        return Fresh(pipe.source, judge, pipe.full, pipe.batched, keeps_rest=keeps_rest)
    return Fresh(pipe.source, judge, pipe.full, list, keeps_rest=True)


def puts_together(pipe: Any) -> bool:
    """Whether a pipe makes one item of several, in a recorded section."""
    return isinstance(stage_of(copy.copy(pipe)), Joining)


def makes_fresh_batches(pipe: Any) -> bool:
    """Whether a pipe can look which of its items are too old, before it makes a batch of them."""
    return isinstance(pipe, TokenBatcher) or (isinstance(pipe, Batcher) and pipe.max_wait is None)


def recorded_in_worker(end: Any) -> tuple[Any, bool]:
    """Return the last pipe of what a worker runs, and whether it tells what becomes of each item.

    It does so in a recorded section.
    """
    pipes = pipes_of(end)
    numbering = _first_of(Numbering, pipes)
    if numbering is None:
        return end, False
    numbering.tell()
    if _first_of(Settling, pipes) is None:
        end = Settling(end, numbering)
    return end, True


def recorded_behind(end: Any, outlet: Any) -> Any:
    """Let a section go on behind what stands for the workers, which knows the numbers.

    Return the graph's end. If nothing behind it needs the numbers, the outlet ``settles``.
    """
    first, *behind = section(Graph(end), outlet)
    numbering = _first_of(Numbering, behind)
    if numbering is not None:
        end, _ = _in_stages(end, behind[: behind.index(numbering)], outlet)
        end = replaced(end, numbering, numbering.source)
    settling = _first_of(Settling, pipes_of(end))
    if settling is None:
        recorded = behind[: _count_of_recorded([first, *behind]) - 1]
        outlet.settles = not recorded
        if not recorded:
            return end
        end, last = _in_stages(end, recorded, outlet)
        settling = Settling(last, outlet)
        end = replaced(end, last, settling)
    settling.numbering = outlet
    keeping = keeping_in(end)
    if keeping is not None:
        keeping.numbering, outlet.keeper = outlet, number_of(keeping)
    return end


def keeping_in(end: Any) -> Expanding | None:
    """Return the pipe that keeps the parts it has made, if there is one in what is run."""
    return next(filter(keeps_parts, pipes_of(end)), None)


def keeps_parts(pipe: Any) -> bool:
    """Whether a pipe that is run keeps the parts it has made."""
    return isinstance(pipe, Expanding) and pipe.keeps_parts


def counts_all(pipe: Any) -> bool:
    """Whether a pipe yields each item as it is, but counts them all."""
    return has_name(pipe, "header", "enumerate", "add_index")


def _count_of_recorded(pipes: Sequence[Any]) -> int:
    """Return how many pipes there are up to the last that does not yield one item for each.

    The first counts in any case, and so does one that changes the order, or counts errors.
    """
    return 1 + max(
        at
        for at, pipe in enumerate(pipes)
        if not (at and _keeps_places(pipe)) or _counts_errors(pipe)
    )


def _counts_errors(pipe: Any) -> bool:
    return is_ours(pipe) and setting(pipe, "max_errors", None) is not None


def _keeps_places(pipe: Any) -> bool:
    # A pipe that deals items runs in a process of its own, and results are kept of numbers.
    is_plain = keeps_positions(pipe) and not is_dispatch(pipe) and not keeps_results(pipe)
    return is_plain or counts_all(pipe)


def stage_of(pipe: Any) -> Any:
    """Return what takes a pipe's place in a section, maybe the pipe itself, changed; or None."""
    if isinstance(pipe, Expander):
        return None if is_async_pipe(pipe) else Expanding(pipe)
    stage = pipe.in_section() if isinstance(pipe, IterDataPipe) and is_ours(pipe) else None
    is_plain = isinstance(pipe, OneToOne) and not is_async_pipe(pipe)
    # What the ranks agree on is counted by all of them, from the beginning.
    if stage is None and is_plain and not (is_fullsync(pipe) or is_dispatch(pipe)):
        return Within(pipe)
    return stage


def is_recording(pipe: Any) -> bool:
    """Whether a recorded section ends with a pipe of a graph that is run."""
    return isinstance(pipe, Settling) or (stands_in(pipe) and setting(pipe, "settles", False))


def reason_to_end(end: Any, items: int) -> str:
    """Return why a graph that is run may end after so many items before its section does, or "".

    ``numbering_of`` has looked at it.
    """
    pipe, reason = end, ""
    while not is_recording(pipe):
        if is_fullsync(pipe):
            reason = Reason.FULLSYNC
        elif has_name(pipe, "header") and setting(pipe, "limit", None) == items:
            reason = Reason.HEADER
        (pipe,) = edges_of(pipe)
    return reason


def numbering_of(end: Any) -> Any:
    """Return what knows the numbers of a graph that is run and has a recorded section.

    That is where it begins, or what stands for the workers where that is.

    LoaderError if a pipe that was added behind it does not yield just one item for each.
    """
    pipe = end
    while not is_recording(pipe):
        sources = edges_of(pipe) if is_pipe(pipe) else []
        if len(sources) != 1 or not _keeps_places(pipe):
            raise LoaderError(
                f"{stage_name(pipe)} was added by a reading service (or a function of one) behind"
                " results, or an order, that cannot be repeated, where it is recorded what becomes"
                " of each item; add it to the graph before the loader is made"
            )
        (pipe,) = sources
    return pipe.numbering if isinstance(pipe, Settling) else pipe
