"""What pipes have come to.

This file is about the ``Tally`` of a pipe in one process: its items and errors, and the
time that was spent in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asyncloader.datapipes.going_on.cursors import number_of
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.watch.attributes import attribute, latest_pass
from asyncloader.datapipes.watch.watching import Watching

#: The number of items of a pipe that does not count them.
UNCOUNTED = -1


class Tally(NamedTuple):
    """What one pipe has come to in one process, in the present pass."""

    #: The pipe's number in its loader's graph, or its name where it has none of its own.
    pipe: int | str
    #: How many items it yielded, or UNCOUNTED.
    items: int
    #: How many items its function failed on, where that is tolerated.
    errors: int
    #: How many seconds threads spent in it, in its function or waiting for it.
    seconds: float
    #: How many items it holds or has under way, and how many it may; 0 where it has no bound.
    held: int = 0
    room: int = 0
    #: Whether those are calls under way, so that it is busy when it is full.
    holds_calls: bool = False


def tallies_of(watching: Watching, yielded: Mapping[int, int]) -> tuple[Tally, ...]:
    """Return what every pipe of a graph has come to; some yielded so many items, by their ids."""
    pipes, seconds = watching.pipes, watching.seconds()
    items = _counts(pipes, yielded)
    return tuple(
        _tally(pipe, items[id(pipe)], seconds.get(id(pipe), 0.0))
        for pipe in pipes
        # What stands for others is of interest where it is waited for.
        if id(pipe) in seconds or not getattr(pipe, "is_stand_in", False)
    )


def _tally(pipe: Any, items: int, seconds: float) -> Tally:
    number = number_of(pipe)
    running = latest_pass(pipe)
    holds_calls = getattr(running, "holds_calls", False)
    fullness = getattr(running, "fullness", _no_bound)
    held, room = fullness()
    is_stand_in = getattr(pipe, "is_stand_in", False)
    name = repr(pipe) if number is None or is_stand_in else number
    return Tally(name, items, getattr(running, "errors", 0), seconds, held, room, holds_calls)


def _no_bound() -> tuple[int, int]:
    return 0, 0


def _counts(pipes: Sequence[Any], yielded: Mapping[int, int]) -> dict[int, int]:
    """Return how many items the pipes yielded, as far as their passes say so."""
    counts = {id(pipe): yielded.get(id(pipe), _counted(pipe, "yielded")) for pipe in pipes}
    for pipe in pipes:
        # Who takes items one by one says how many its source has yielded.
        source = id(attribute(pipe, "source"))
        if counts.get(source, 0) == UNCOUNTED:
            taken = _counted(pipe, "taken")
            is_as_many = taken == UNCOUNTED and isinstance(pipe, OneToOne)
            counts[source] = counts[id(pipe)] if is_as_many else taken
    for pipe in reversed(pipes):
        if counts[id(pipe)] == UNCOUNTED and isinstance(pipe, OneToOne):
            counts[id(pipe)] = counts.get(id(pipe.source), UNCOUNTED)
    return counts


def _counted(pipe: Any, field: str) -> int:
    count: int = getattr(latest_pass(pipe), field, UNCOUNTED)
    return count
