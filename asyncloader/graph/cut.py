"""Where a graph is divided between processes.

This file is about ``cut_graph``, which says which pipes run in the dispatching process,
which in every worker, and which in the loader's process. It starts nothing and changes
nothing.

    source ─ shuffle ─ dispatch ┆ map ─ batch ┆ pin_memory
           dispatching process  ┆ each worker ┆ loader

What cannot be cut safely stays with the loader, where it runs as if there were no cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Literal

from asyncloader.datapipes.base import is_iter_pipe
from asyncloader.datapipes.edges import reached, reads_twice
from asyncloader.datapipes.replaying import is_replayed
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    acts_for,
    is_dispatch,
    is_filter_of_shards,
    is_replicable,
    is_splitter,
    lives_with_loader,
    reads_again,
    reads_in_turn,
    shards_itself,
    shares_passes,
)
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.graph.walk import Graph, pipes_of

Place = Literal["dispatcher", "workers", "loader"]


@dataclass(frozen=True)
class WorkerPart:
    """A part of a graph of which every worker runs a copy.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> (part,) = cut_graph(IterableWrapper([1]).map(str).pin_memory()).parts
    >>> part.end, part.pipes, part.is_sharded
    (map(str), (map(str), IterableWrapper()), False)
    """

    #: The part's last pipe; in the loader's graph, the workers' items take its place.
    end: Any
    #: What a worker runs, breadth-first; empty if the end is itself an inlet.
    pipes: tuple[Any, ...]
    #: Pipes that run elsewhere, and whose items are sent to the workers.
    inlets: tuple[Any, ...]
    #: Whether workers get different items; if not, each item comes once from every worker.
    is_sharded: bool


@dataclass(frozen=True)
class Cut:
    """Which pipes of a graph run where.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> cut_graph(IterableWrapper([1]).map(str).pin_memory()).places
    ((pin_memory(), 'loader'), (map(str), 'workers'), (IterableWrapper(), 'workers'))
    """

    #: The dispatching process runs this pipe and all above it; None if there is no such process.
    dispatch: Any | None
    #: The loader sends the items of this pipe to the workers; None if it sends none.
    feed: Any | None
    #: What the workers run; empty if all pipes have to stay with the loader.
    parts: tuple[WorkerPart, ...]
    #: Every pipe of the graph, breadth-first, and where it runs.
    places: tuple[tuple[Any, Place], ...]

    @property
    def is_dealt(self) -> bool:
        """Whether there are workers to which the dispatching process deals its items."""
        return any(self.deals_to(part) for part in self.parts)

    def deals_to(self, part: WorkerPart) -> bool:
        """Whether the dispatching process sends a part its items."""
        return any(inlet is self.dispatch for inlet in part.inlets)


#: All pipes stay with the loader.
NOT_CUT = Cut(None, None, (), ())


def cut_graph(datapipe: Any) -> Cut:
    """Say how the graph that ends in ``datapipe`` is divided.

    The pipes that dispatch, and all that share a source with them, go to the dispatching
    process; the longest parts of replicable pipes go to the workers; the rest stays with the
    loader. ValueError for a graph that cannot be divided.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import to_text
    >>> end = IterableWrapper([1]).sharding_filter().map(str).pin_memory()
    >>> print(to_text(end, cut_graph(end).places))
    IterableWrapper()  | workers
    sharding_filter()  | workers
    map(str)           | workers
    pin_memory()       | loader
    """
    return Graph.of(datapipe).once(_cut)


def cut_or_nothing(datapipe: Any) -> Cut:
    """Return how a graph is divided; one that cannot be divided has no parts."""
    try:
        return cut_graph(datapipe)
    except ValueError:
        return NOT_CUT


def places_of(graph: Graph, workers: int) -> tuple[tuple[Any, Place], ...]:
    """Return where each pipe runs with so many workers; nothing if they cannot divide the graph."""
    if not workers:
        return tuple((pipe, "loader") for pipe in graph.pipes)
    return cut_or_nothing(graph).places


def _cut(graph: Graph) -> Cut:
    whole = Reach(graph)
    dispatch = _cut_below(whole, [pipe for pipe in graph.pipes if is_dispatch(pipe)])
    feed = _cut_below(whole, [pipe for pipe in graph.pipes if lives_with_loader(pipe)])
    _check_apart(whole, dispatch, feed)
    inlets = [pipe for pipe in (dispatch, feed) if pipe is not None]
    parts = _parts(Reach(graph, inlets), inlets, feed)
    sent = [inlet for part in parts for inlet in part.inlets]
    return Cut(
        dispatch=dispatch,
        feed=feed if any(inlet is feed for inlet in sent) else None,
        parts=parts,
        places=_places(graph, dispatch, parts),
    )


def _cut_below(reach: Reach, pipes: Sequence[Any]) -> Any | None:
    if not pipes:
        return None
    found = reach.lowest_cut(pipes)
    if found is None:
        names = ", ".join(stage_name(pipe) for pipe in pipes)
        raise ValueError(f"the graph can be cut nowhere below {names}; let it end in an iter pipe")
    return found


def _check_apart(reach: Reach, dispatch: Any | None, feed: Any | None) -> None:
    if dispatch is None or feed is None:
        return
    if reach.has_above(dispatch, feed) or reach.has_above(feed, dispatch):
        raise ValueError(
            f"{stage_name(feed)} runs in the loader's process, which sends each item to one worker"
            f" already; remove the dispatching pipe ({stage_name(dispatch)}) from its path"
        )


def _parts(reach: Reach, inlets: Sequence[Any], feed: Any | None) -> tuple[WorkerPart, ...]:
    graph = reach.graph

    def is_end(pipe: Any) -> bool:
        # The loader reads a feed itself: there is nothing for workers to do.
        return pipe is not feed and reach.can_copy(pipe) and reach.can_cut_after(pipe)

    def sources(pipe: Any) -> list[Any]:
        return [] if pipe is feed or is_end(pipe) else graph.sources(pipe)

    ends = filter(is_end, reached([graph.end], sources))
    return tuple(_part(reach, end, inlets) for end in ends)


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
    graph: Graph, dispatch: Any | None, parts: Sequence[WorkerPart]
) -> tuple[tuple[Any, Place], ...]:
    where: dict[int, Place] = {id(pipe): "loader" for pipe in graph.pipes}
    where.update((id(pipe), "workers") for part in parts for pipe in part.pipes)
    if dispatch is not None:
        where.update((key, "dispatcher") for key in graph.upstream([dispatch]))
    return tuple((pipe, where[id(pipe)]) for pipe in graph.pipes)


def dividers_of(part: WorkerPart, dispatch: Any | None) -> list[Any]:
    """Return the filters of a part that let each worker keep items of its own."""
    filters = [pipe for pipe in part.pipes if is_filter_of_shards(pipe)]
    # After the dispatch they let every item pass.
    return [
        pipe
        for pipe in filters
        if acts_for(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)
        and not any(each is dispatch for each in pipes_of(pipe))
    ]


def read_again(end: Any, comes_once: Any) -> Any | None:
    """Return the pipe because of which another is read more than once in an epoch, or None.

    ``end`` is the graph's last pipe. How often a user's pipe reads its sources is not known.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1])
    >>> read_again(source.map(str).cycle(2), source), read_again(source.map(str), source)
    (cycle(2), None)
    """
    graph = Graph.of(end)
    following = graph.downstream(comes_once)
    read = (pipe for pipe in graph.pipes if id(pipe) in following)
    return next((pipe for pipe in read if is_read_again(pipe, graph)), None)


def is_read_again(pipe: Any, graph: Graph) -> bool:
    """Whether a pipe reads its source again, or is itself read in several passes."""
    if reads_again(pipe):
        return True
    return not shares_passes(pipe) and _passes_over(pipe, graph) > 1


def _passes_over(pipe: Any, graph: Graph) -> int:
    """Return in how many passes a pipe is read."""
    readers = graph.readers(pipe)
    # A user's pipe may hold its one source in several attributes.
    twice = any(not is_replayed(reader) and reads_twice(reader, pipe) for reader in readers)
    return len(readers) + twice


def read_without_fork(datapipe: Any) -> list[Any]:
    """Return the iter pipes, other than splitters, that are read several times at once.

    Each reader makes a pass of its own over such a pipe, and a pipe that has it as several of
    its sources makes several. Then no single place in it says how far the graph is.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(3))
    >>> read_without_fork(source.zip(source.map(str)))
    [IterableWrapper()]
    """
    graph = Graph.of(datapipe)
    return [
        pipe
        for pipe in graph.pipes
        if is_iter_pipe(pipe) and not is_splitter(pipe) and _has_several_passes(pipe, graph)
    ]


def _has_several_passes(pipe: Any, graph: Graph) -> bool:
    readers = graph.readers(pipe)
    return len(readers) > 1 or any(read_at_once(reader, pipe) for reader in readers)


def read_at_once(reader: Any, pipe: Any) -> bool:
    """Whether a pipe makes several passes over another at the same time."""
    return not is_replayed(reader) and not reads_in_turn(reader) and reads_twice(reader, pipe)


class Reach:
    """What is above each pipe of a graph, up to its sources or to ``inlets``.

    An inlet is a pipe that runs elsewhere: it is the last one that is reached.

    A graph can be cut after a pipe only if no other pipe reads from above the cut: whatever
    reads a pipe up there must be up there too. Otherwise the branches of one splitter, or the
    readers of one source, would each get a pass of their own.
    """

    # A set of pipes is an integer with a bit for each pipe: joined and compared at once.

    def __init__(self, graph: Graph, inlets: Sequence[Any] = ()) -> None:
        self.graph = graph
        self._bit = {id(pipe): 1 << place for place, pipe in enumerate(graph.pipes)}
        self._inlets = self._set_of(inlets)
        self._upto: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        self._fixed: dict[int, bool] = {}
        for pipe in graph.sources_first():
            self._look_up(pipe)

    def above(self, pipe: Any) -> list[Any]:
        """Return a pipe and all above it, inlets included, breadth-first."""
        reached = self._upto[id(pipe)]
        return [other for other in self.graph.pipes if reached & self._bit[id(other)]]

    def has_above(self, pipe: Any, other: Any) -> bool:
        """Whether ``other`` is ``pipe`` or lies above it."""
        return bool(self._upto[id(pipe)] & self._bit[id(other)])

    def can_cut_after(self, pipe: Any) -> bool:
        """Whether a pipe and all above it can run in another process than the rest."""
        held_by_others = self._readers[id(pipe)] & ~self._upto[id(pipe)]
        return (
            is_iter_pipe(pipe)
            and not is_splitter(pipe)
            and not held_by_others
            and _passes_over(pipe, self.graph) <= 1
        )

    def can_copy(self, pipe: Any) -> bool:
        """Whether a pipe and all above it, up to the inlets, may run in several processes."""
        return not self._fixed[id(pipe)]

    def lowest_cut(self, pipes: Sequence[Any]) -> Any | None:
        """Return the pipe nearest to ``pipes`` that has them all above it and can be cut after."""
        wanted = self._set_of(pipes)
        ends = [
            pipe
            for pipe in self.graph.pipes
            if not wanted & ~self._upto[id(pipe)] and self.can_cut_after(pipe)
        ]
        # They are one above the other: the way from any of ``pipes`` goes through them all.
        return min(ends, key=lambda end: self._upto[id(end)].bit_count(), default=None)

    def _look_up(self, pipe: Any) -> None:
        bit, sources = self._bit[id(pipe)], self.graph.sources(pipe)
        self._upto[id(pipe)] = bit
        self._readers[id(pipe)] = 0
        self._fixed[id(pipe)] = not is_replicable(pipe)
        if bit & self._inlets:
            self._fixed[id(pipe)] = False
            return
        for source in sources:
            self._upto[id(pipe)] |= self._upto[id(source)]
            self._readers[id(pipe)] |= self._readers[id(source)]
            self._readers[id(pipe)] |= self._set_of(self.graph.readers(source))
            self._fixed[id(pipe)] |= self._fixed[id(source)]

    def _set_of(self, pipes: Iterable[Any]) -> int:
        return reduce(or_, (self._bit[id(pipe)] for pipe in pipes), 0)
