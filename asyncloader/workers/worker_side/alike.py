"""Whether a graph that a user's function changed still has an item for each, in the same order.

This file is about ``is_as_long`` and ``check_alike``. Where a place was divided anew, among
another number of workers or ranks, it was so for the loader's graph; what a function made of
that graph may only add what is one to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.applying import Applier
from asyncloader.datapipes.patterns.replaying import is_replayed
from asyncloader.datapipes.pipe.kinds import is_without_order
from asyncloader.errors import SnapshotError
from asyncloader.graph.walk import pipes_of


def is_as_long(end: Any, pipes: Sequence[Any]) -> bool:
    """Whether a graph has as many items as these pipes, of which the first was the last one.

    That is sure where it is them, with nothing behind but functions of each item.
    """
    while end is not pipes[0] and isinstance(end, Applier) and not end.tolerance.leaves_out:
        end = end.source
    return list(map(id, pipes_of(end))) == list(map(id, pipes))


def check_alike(given: Sequence[Any], returned: Any, giver: str) -> None:
    """Raise SnapshotError, naming ``giver``, unless what it returned is one to one with the given.

    ``given`` are the pipes of the graph before. A copy is not the same: it has other seeds.
    """
    pipes = pipes_of(returned)
    before, now = set(map(id, given)), set(map(id, pipes))
    for pipe in given:
        if id(pipe) not in now:
            raise _refusal(giver, f"takes {stage_name(pipe)} out of it, so that it")
    _check_kept(pipes, before, giver)


def check_added(given: Sequence[Any], returned: Any) -> None:
    """Raise SnapshotError if anything was added to the given pipes that is not one to one.

    What stands for pipes that run elsewhere adds nothing.
    """
    pipes = [pipe for pipe in pipes_of(returned) if not getattr(pipe, "is_stand_in", False)]
    _check_kept(pipes, set(map(id, given)), "a reading service")


def _check_kept(pipes: Iterable[Any], before: set[int], giver: str) -> None:
    for pipe in pipes:
        if id(pipe) not in before and not keeps_positions(pipe):
            raise _refusal(giver, f"puts {stage_name(pipe)} into it, which")


def keeps_positions(pipe: Any) -> bool:
    """Whether each item of a pipe is made of one item of its source, in the same order."""
    # One that leaves bad samples out yields fewer items than it takes.
    skips = getattr(pipe, "on_error", "raise") == "skip"
    return _is_one_to_one(pipe) and not (skips or is_without_order(pipe) or is_replayed(pipe))


def _is_one_to_one(pipe: Any) -> bool:
    # A worker imports them only if it runs them, or has to know.
    from asyncloader.datapipes.calls.async_mapping import AsyncMapper
    from asyncloader.datapipes.calls.thread_mapping import ThreadMapper

    # One that yields its results in lists is none.
    is_flat = getattr(pipe, "flattens", True)
    return is_flat and isinstance(pipe, OneToOne | AsyncMapper | ThreadMapper)


def _refusal(giver: str, what: str) -> SnapshotError:
    return SnapshotError(
        "the state was taken in the middle of an epoch with another number of workers or ranks:"
        f" {giver} changes the graph that is run and {what} comes out otherwise for"
        " another number of them. Change the graph itself, before the loader is made, or use as"
        " many workers and ranks as before, or take the state between epochs"
    )
