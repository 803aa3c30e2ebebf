"""Where a graph is divided between processes.

This file is about ``cut_graph``, which says which pipes run in the dispatching
process, which in every worker, and which with the loader. It starts nothing and
changes nothing.

    source ─ shuffle ─ dispatch ┆ map ─ batch ┆ pin_memory
           dispatching process  ┆ each worker ┆ loader

What cannot be cut safely stays with the loader, where it runs as if there were no
cut at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asyncloader.datapipes.branches.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.patterns.replaying import is_replayed
from asyncloader.datapipes.pipe.edges import reads_twice
from asyncloader.datapipes.pipe.kinds import (
    functional_name,
    goes_by_clock,
    is_dispatch,
    is_filter_of_shards,
    is_splitter,
    is_without_order,
    lives_with_loader,
    shards_itself,
)
from asyncloader.graph.reach import Reach
from asyncloader.graph.settings import acts_for
from asyncloader.graph.walk import Wiring, breadth_first, pipes_of

Place = Literal["dispatcher", "workers", "loader"]


@dataclass(frozen=True)
class WorkerPart:
    """A part of a graph of which every worker runs a copy.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> (part,) = cut_graph(IterableWrapper([1]).map(str).pin_memory()).parts
    >>> part.end, part.pipes, part.is_sharded
    (map(str), (map(str), IterableWrapper()), False)
    """

    #: The part's last pipe; with the loader, the workers' items take its place.
    end: Any
    #: What a worker runs, breadth-first; nothing if the end is itself an inlet.
    pipes: tuple[Any, ...]
    #: Pipes that run elsewhere and whose items are sent to the workers.
    inlets: tuple[Any, ...]
    #: Whether workers get different items at all; if not, each comes once from every worker.
    is_sharded: bool


@dataclass(frozen=True)
class Cut:
    """Which pipes of a graph run where.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> cut_graph(IterableWrapper([1]).map(str).pin_memory()).places
    ((pin_memory(), 'loader'), (map(str), 'workers'), (IterableWrapper(), 'workers'))
    """

    #: The dispatching process runs this pipe and all above it; None without dispatching.
    dispatch: Any | None
    #: The loader sends the items of this pipe to the workers; None where it sends none.
    feed: Any | None
    #: What the workers run; nothing where all has to stay with the loader.
    parts: tuple[WorkerPart, ...]
    #: Every pipe of the graph, breadth-first, and where it runs.
    places: tuple[tuple[Any, Place], ...]


def cut_graph(datapipe: Any) -> Cut:
    """Say how the graph that ends in ``datapipe`` is divided.

    The pipes that dispatch, and whatever shares a source with them, go to the
    dispatching process; the longest parts of replicable pipes to the workers; the
    rest stays with the loader. ValueError for a graph that cannot be divided so.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import to_text
    >>> end = IterableWrapper([1]).sharding_filter().map(str).pin_memory()
    >>> print(to_text(end, cut_graph(end).places))
    IterableWrapper()  | workers
    sharding_filter()  | workers
    map(str)           | workers
    pin_memory()       | loader
    """
    wiring = Wiring(datapipe)
    whole = Reach(wiring)
    dispatch = _cut_below(whole, [pipe for pipe in wiring.pipes if is_dispatch(pipe)])
    feed = _cut_below(whole, [pipe for pipe in wiring.pipes if lives_with_loader(pipe)])
    _check_apart(whole, dispatch, feed)
    inlets = [pipe for pipe in (dispatch, feed) if pipe is not None]
    parts = _parts(Reach(wiring, inlets), inlets, feed)
    sent = [inlet for part in parts for inlet in part.inlets]
    return Cut(
        dispatch=dispatch,
        feed=feed if any(inlet is feed for inlet in sent) else None,
        parts=parts,
        places=_places(wiring, dispatch, parts),
    )


def _cut_below(reach: Reach, pipes: Sequence[Any]) -> Any | None:
    if not pipes:
        return None
    found = reach.lowest_cut(pipes)
    if found is None:
        names = ", ".join(stage_name(pipe) for pipe in pipes)
        raise ValueError(f"the graph can be cut nowhere below {names}: it must end in an iter pipe")
    return found


def _check_apart(reach: Reach, dispatch: Any | None, feed: Any | None) -> None:
    if dispatch is None or feed is None:
        return
    if reach.has_above(dispatch, feed) or reach.has_above(feed, dispatch):
        raise ValueError(
            f"{stage_name(feed)} lives with the loader, which sends each item to one worker"
            f" already; take the dispatching pipe ({stage_name(dispatch)}) off its path"
        )


def _parts(reach: Reach, inlets: Sequence[Any], feed: Any | None) -> tuple[WorkerPart, ...]:
    wiring = reach.wiring
    parts: list[WorkerPart] = []
    waiting, seen = [wiring.end], {id(wiring.end)}
    for pipe in waiting:  # it grows while it is read
        if pipe is feed:
            continue  # the loader reads it itself: there is nothing for workers to do
        if reach.can_copy(pipe) and reach.can_cut_after(pipe):
            parts.append(_part(reach, pipe, inlets))
        else:
            fresh = [source for source in wiring.sources(pipe) if id(source) not in seen]
            seen.update(map(id, fresh))
            waiting.extend(fresh)
    return tuple(parts)


def _part(reach: Reach, end: Any, inlets: Sequence[Any]) -> WorkerPart:
    reached = reach.above(end)
    outside = {id(inlet) for inlet in inlets}
    pipes = [pipe for pipe in reached if id(pipe) not in outside]
    sent = [pipe for pipe in reached if id(pipe) in outside]
    return WorkerPart(
        end=end,
        pipes=tuple(pipes),
        inlets=tuple(sent),
        is_sharded=bool(sent) or any(_shards(pipe) for pipe in pipes),
    )


def _shards(pipe: Any) -> bool:
    if is_dispatch(pipe) or shards_itself(pipe):
        return True
    return is_filter_of_shards(pipe) and acts_for(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)


def _places(
    wiring: Wiring, dispatch: Any | None, parts: Sequence[WorkerPart]
) -> tuple[tuple[Any, Place], ...]:
    where: dict[int, Place] = {id(pipe): "loader" for pipe in wiring.pipes}
    where.update((id(pipe), "workers") for part in parts for pipe in part.pipes)
    if dispatch is not None:
        where.update((key, "dispatcher") for key in wiring.upstream([dispatch]))
    return tuple((pipe, where[id(pipe)]) for pipe in wiring.pipes)


def divided_twice(cut: Cut) -> tuple[Any, Any] | None:
    """Return a pipe that shards itself, and what divides its path among workers as well.

    None where there are no two such pipes.
    """
    for part in cut.parts:
        dividers = dividers_of(part, cut.dispatch)
        for pipe in filter(shards_itself, part.pipes):
            above = pipes_of(pipe)
            for divider in dividers:
                is_below = any(each is pipe for each in pipes_of(divider))
                if is_below or any(each is divider for each in above):
                    return pipe, divider
            if any(each is cut.dispatch for each in above):
                return pipe, cut.dispatch
    return None


def dividers_of(part: WorkerPart, dispatch: Any | None) -> list[Any]:
    """Return the filters of a part that let each worker keep items of its own."""
    filters = [pipe for pipe in part.pipes if is_filter_of_shards(pipe)]
    # Behind the dealing they let everything pass.
    return [
        pipe
        for pipe in filters
        if acts_for(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)
        and not any(each is dispatch for each in pipes_of(pipe))
    ]


def no_order_in_dealing(dispatch: Any | None) -> str | None:
    """Say what keeps another process from dealing what one has dealt, if anything does."""
    for pipe in pipes_of(dispatch):
        if is_without_order(pipe):
            return (
                f"{stage_name(pipe)} hands out as results come, in the dispatching process, which"
                " cannot deal them in that order again; pass ordered=True, or let it follow"
                " sharding_round_robin_dispatch"
            )
    return None


def read_again(end: Any, comes_once: Any) -> Any | None:
    """Return what has a pipe read more than once in an epoch of the graph, if that can be seen.

    ``end`` is the graph's last pipe. How often a user's pipe reads its sources cannot be seen.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1])
    >>> read_again(source.map(str).cycle(2), source), read_again(source.map(str), source)
    (cycle(2), None)
    """
    wiring = Wiring(end)
    following = [pipe for pipe in wiring.pipes if id(comes_once) in wiring.upstream([pipe])]
    return next((pipe for pipe in following if _is_read_again(pipe, wiring)), None)


def _is_read_again(pipe: Any, wiring: Wiring) -> bool:
    """Whether a pipe reads its source again, or is itself read in several passes."""
    if functional_name(pipe) == "cycle":
        return getattr(pipe, "count", None) not in (0, 1)
    # Those that read a splitter share a pass, but for the shares of a random split.
    if is_splitter(pipe) and functional_name(pipe) != "random_split":
        return False
    readers = wiring.readers(pipe)
    # A pipe of the user's may know its one source by several names.
    twice = any(not is_replayed(reader) and reads_twice(reader, pipe) for reader in readers)
    return len(readers) > 1 or twice


def no_order_in_dividing(datapipe: Any, group: int, whom: str) -> str | None:
    """Say what keeps several of ``whom`` from dividing the same items, if anything does.

    ``datapipe`` ends what each of them runs; what is dealt to them is divided already.
    """
    for division in pipes_of(datapipe):
        if functional_name(division) != "sharding_filter" or not acts_for(division, group):
            continue
        above = breadth_first(division)
        for pipe in [] if any(map(_stands_in, above)) else above:
            if is_without_order(pipe) or goes_by_clock(pipe):
                return (
                    f"each of the {whom} would have the items in another order where"
                    f" {stage_name(division)} divides them, and some would be lost: what"
                    f" {stage_name(pipe)} yields is in no certain order. Put the sharding pipe"
                    " before it, or give it an order (ordered=True, no max_wait)"
                )
    return None


def _stands_in(pipe: Any) -> bool:
    return bool(getattr(pipe, "is_stand_in", False))
