"""Telling every pipe of a graph something.

This file is about shards, shuffling and seeds: which pipes are told, in which order, and
which must be told the same in every process. Where a graph is cut, its shared seeds are
drawn once over the whole graph, and travel as plain numbers to the processes that run its
parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.edges import reached
from asyncloader.datapipes.running.traits import (
    has_no_seed,
    is_filter_of_shards,
    is_random,
    is_sharding,
    is_shuffler,
    takes_a_group,
)
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.graph.refusals import sharded_twice
from asyncloader.graph.walk import Graph, breadth_first
from asyncloader.seeds import SeedGenerator

# Shards ---------------------------------------------------------------------------------


def apply_sharding(
    datapipe: Any,
    num_of_instances: int,
    instance_id: int,
    sharding_group: SHARDING_PRIORITIES | int = SHARDING_PRIORITIES.DEFAULT,
) -> Any:
    """Tell every sharding pipe which shard of how many is its own; return the graph.

    One path may not be sharded twice for one group, which would lose items: that is a
    RuntimeError, and then no pipe is changed.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(apply_sharding(IterableWrapper(range(6)).sharding_filter().map(str), 3, 1))
    ['1', '4']
    """
    graph = Graph.of(datapipe)
    for why, remedy in sharded_twice(graph, sharding_group):
        raise RuntimeError(f"{why}; {remedy}")
    for pipe in filter(is_filter_of_shards, graph.pipes):
        if takes_a_group(pipe):
            pipe.apply_sharding(num_of_instances, instance_id, sharding_group=sharding_group)
        else:
            pipe.apply_sharding(num_of_instances, instance_id)
    return datapipe


# Shuffling ------------------------------------------------------------------------------


def apply_shuffle_settings(datapipe: Any, shuffle: bool | None = None) -> Any:
    """Switch every shuffler of the graph on or off; None changes nothing. Return the graph.

    To shuffle a graph without a shuffler, one is added at its end, with a warning.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(apply_shuffle_settings(IterableWrapper(range(3)).shuffle(), shuffle=False))
    [0, 1, 2]
    """
    if shuffle is None:
        return datapipe
    shufflers = [pipe for pipe in breadth_first(datapipe) if is_shuffler(pipe)]
    if shuffle and not shufflers:
        warnings.warn(
            "there is no shuffle in the graph, so one is added at its end, where it mixes whatever"
            " the graph yields (batches, if it batches); put .shuffle() where it belongs",
            stacklevel=2,
        )
        datapipe = datapipe.shuffle()
        shufflers = [datapipe]
    for pipe in shufflers:
        pipe.set_shuffle(shuffle)
    return datapipe


def check_shuffle_before_sharding(datapipe: Any) -> bool:
    """Whether every path from a sharding pipe to a source goes through a shuffler.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(3))
    >>> check_shuffle_before_sharding(source.shuffle().sharding_filter())
    True
    >>> check_shuffle_before_sharding(source.sharding_filter().shuffle())
    False
    """
    graph = Graph.of(datapipe)

    def sources(pipe: Any) -> list[Any]:
        return [] if is_shuffler(pipe) else graph.sources(pipe)

    above = reached(filter(is_sharding, graph.pipes), sources)
    return all(is_shuffler(pipe) or graph.sources(pipe) for pipe in above)


# Seeds ----------------------------------------------------------------------------------


def set_datapipes_seed(
    datapipes: Iterable[Any], seed_generator: SeedGenerator, distributed_shared: bool
) -> None:
    """Give each of these pipes that takes a seed one, in this order.

    Shared seeds are the same in every process that has the generator; the others are the
    worker's own.

    >>> from asyncloader import SeedGenerator
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipes = [IterableWrapper(range(9)).shuffle() for _ in range(2)]
    >>> for pipe in pipes:
    ...     set_datapipes_seed([pipe], SeedGenerator(1), distributed_shared=True)
    >>> list(pipes[0]) == list(pipes[1])
    True
    """
    if is_pipe(datapipes):
        raise TypeError(
            "set_datapipes_seed takes a list of pipes, got one pipe; use set_graph_random_seed for"
            " a graph"
        )
    generator = seed_generator
    draw = generator.generate_shared_seed if distributed_shared else generator.generate_seed
    for pipe in datapipes:
        if is_random(pipe):
            pipe.set_seed(draw())


def set_graph_random_seed(datapipe: Any, seed_generator: SeedGenerator) -> Any:
    """Give every pipe of the graph that takes a seed one; return the graph.

    A sharding pipe, and all pipes above it, get shared seeds; the others get the worker's
    own. Both are drawn breadth-first.

    >>> from asyncloader import SeedGenerator
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(9)).shuffle().map(str)
    >>> _ = set_graph_random_seed(pipe, SeedGenerator(1))
    >>> first = list(pipe)
    >>> _ = set_graph_random_seed(pipe, SeedGenerator(1))
    >>> list(pipe) == first
    True
    """
    shared, own = shared_and_own(datapipe)
    set_datapipes_seed(shared, seed_generator, distributed_shared=True)
    set_datapipes_seed(own, seed_generator, distributed_shared=False)
    return datapipe


def tell_epoch(pipes: Iterable[Any], number: int) -> None:
    """Tell the pipes whose samplers ask for it which of a loader's epochs begins."""
    for pipe in pipes:
        if isinstance(pipe, SampledItems):
            pipe.epoch = number


def seed_newcomers(datapipe: Any, known: Iterable[Any], seed_generator: SeedGenerator) -> None:
    """Give seeds to the pipes that were added to a graph after ``known``, unless they have one.

    They are drawn as ``set_graph_random_seed`` would draw them.

    >>> from asyncloader import SeedGenerator
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(9))
    >>> orders = []
    >>> for _ in range(2):
    ...     end = source.shuffle()
    ...     seed_newcomers(end, [source], SeedGenerator(1))
    ...     orders.append(list(end))
    >>> orders[0] == orders[1]
    True
    """
    before = set(map(id, known))
    for pipes, is_shared in zip(shared_and_own(datapipe), (True, False), strict=True):
        new = [pipe for pipe in pipes if id(pipe) not in before and has_no_seed(pipe)]
        set_datapipes_seed(new, seed_generator, distributed_shared=is_shared)


def apply_random_seed(datapipe: Any, rng: Any) -> Any:
    """Give every pipe that takes a seed one drawn from a ``torch.Generator``, breadth-first.

    >>> import torch
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def drawn():
    ...     pipe = IterableWrapper(range(9)).shuffle()
    ...     return list(apply_random_seed(pipe, torch.Generator().manual_seed(1)))
    >>> drawn() == drawn()
    True
    """
    import torch

    for pipe in breadth_first(datapipe):
        if is_random(pipe):
            pipe.set_seed(int(torch.empty((), dtype=torch.int64).random_(generator=rng).item()))
    return datapipe


def shared_and_own(datapipe: Any) -> tuple[list[Any], list[Any]]:
    """Return the pipes that take a shared seed and those that take the worker's own."""
    graph = Graph.of(datapipe)
    random = [pipe for pipe in graph.pipes if is_random(pipe)]
    if not random:
        return [], []
    above = graph.upstream(pipe for pipe in graph.pipes if is_sharding(pipe))
    shared = [pipe for pipe in random if id(pipe) in above]
    return shared, [pipe for pipe in random if id(pipe) not in above]


class SharedPipes:
    """The pipes of a whole graph that take shared seeds, remembered while it is cut."""

    def __init__(self, whole: Graph) -> None:
        self.pipes, _ = shared_and_own(whole)
        self._drawn: tuple[int, ...] = ()

    def draw(self, seed_generator: SeedGenerator) -> tuple[int, ...]:
        """Draw an epoch's shared seeds, as ``set_graph_random_seed`` would, for later use."""
        self._drawn = tuple(seed_generator.generate_shared_seed() for _ in self.pipes)
        return self._drawn

    def seed_here(self) -> None:
        """Give the pipes themselves, as far as they run in this process, what was drawn last."""
        for pipe, seed in zip(self.pipes, self._drawn, strict=False):
            pipe.set_seed(seed)

    def places_in(self, part: Any) -> tuple[int, ...]:
        """Return which of the seeds go where in a part, for ``PartSeeds`` in another process.

        The part holds some of the very pipes. For each of its pipes that takes a seed,
        breadth-first, this is the place of its seed among those that ``draw`` returns, or -1 for
        one of the worker's own.
        """
        place_of = {id(pipe): place for place, pipe in enumerate(self.pipes)}
        return tuple(place_of.get(id(pipe), -1) for pipe in _random_pipes(part))


class PartSeeds:
    """Which pipe takes which seed in a part of a graph, in the process that runs it.

    ``places`` are what ``SharedPipes.places_in`` returned for the part, or one that it is a copy
    of. To be made before the part is changed.
    """

    def __init__(self, part: Any, places: Sequence[int]) -> None:
        random = _random_pipes(part)
        if len(random) != len(places):
            raise ValueError(
                f"the graph has {len(random)} pipes that take a seed, not {len(places)}; bind"
                " the seeds to a copy of the graph that they were made for"
            )
        #: Pipes, each with the place of its seed among the shared ones.
        self._bound = [
            (pipe, place) for pipe, place in zip(random, places, strict=True) if place >= 0
        ]
        #: Those that draw shared seeds from the generator, or the worker's own.
        self._late: list[Any] = []
        self._rest: list[Any] = []

    def find(self, datapipe: Any) -> None:
        """Find the pipes that take a seed in the part as it is now; needed after each change.

        Pipes that were added later draw from the generator, as in ``set_graph_random_seed``.
        """
        known = {id(pipe) for pipe, _ in self._bound}
        agreed, own = shared_and_own(datapipe)
        self._late = [pipe for pipe in agreed if id(pipe) not in known]
        self._rest = [pipe for pipe in own if id(pipe) not in known]

    def give(self, shared: Sequence[int], seed_generator: SeedGenerator) -> None:
        """Give an epoch's seeds, of which ``shared`` were drawn for all processes together."""
        for pipe, place in self._bound:
            pipe.set_seed(shared[place])
        set_datapipes_seed(self._late, seed_generator, distributed_shared=True)
        set_datapipes_seed(self._rest, seed_generator, distributed_shared=False)


def _random_pipes(datapipe: Any) -> list[Any]:
    return [pipe for pipe in breadth_first(datapipe) if is_random(pipe)]
