"""Seeds of a graph that runs in several processes.

This file is about giving pipes the same seeds wherever the graph was cut: shared
seeds are drawn once, over the whole graph, and travel as plain numbers to the
processes that run its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.pipe.kinds import is_random
from asyncloader.graph.settings import set_datapipes_seed, shared_and_own
from asyncloader.graph.walk import breadth_first
from asyncloader.seeds import SeedGenerator


class SharedPipes:
    """The pipes of a whole graph that take shared seeds, remembered while it is cut."""

    def __init__(self, whole: Any) -> None:
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

    def places_in(self, part: Any) -> SeedPlaces:
        """Return which of the seeds go where in a part, which holds some of the very pipes."""
        place_of = {id(pipe): place for place, pipe in enumerate(self.pipes)}
        return SeedPlaces(tuple(place_of.get(id(pipe), -1) for pipe in _random_pipes(part)))


@dataclass(frozen=True)
class SeedPlaces:
    """Which of a whole graph's shared seeds go to which pipes of a part of it.

    Plain numbers, to be sent along with the part to the process that runs it.
    """

    #: For each pipe of the part that takes a seed, breadth-first: the place of its seed
    #: among those that ``SharedPipes.draw`` returns, or -1 for one of the worker's own.
    places: tuple[int, ...]

    def bind(self, part: Any) -> PartSeeds:
        """Find the pipes again in ``part``, or in a copy of it, before it is changed."""
        random = _random_pipes(part)
        if len(random) != len(self.places):
            raise ValueError(
                f"the graph has {len(random)} pipes that take a seed, not {len(self.places)}; bind"
                " the seeds to a copy of the very graph they were noted for"
            )
        bound = zip(random, self.places, strict=True)
        return PartSeeds(tuple((pipe, place) for pipe, place in bound if place >= 0))


@dataclass(frozen=True)
class PartSeeds:
    """Knows who takes which seed in a part of a graph, in the process that runs it."""

    bound: tuple[tuple[Any, int], ...]

    def takers(self, datapipe: Any) -> Takers:
        """Find who takes a seed in the part as it is now.

        Pipes that came into it later draw from the generator, as ``set_graph_random_seed``
        would have them.
        """
        known = {id(pipe) for pipe, _ in self.bound}
        agreed, own = shared_and_own(datapipe)
        late = [pipe for pipe in agreed if id(pipe) not in known]
        rest = [pipe for pipe in own if id(pipe) not in known]
        return Takers(self.bound, late, rest)


@dataclass(frozen=True)
class Takers:
    """The pipes of a part that take a seed, as long as the part is not changed."""

    #: With the places of their seeds among the shared ones.
    bound: tuple[tuple[Any, int], ...]
    #: Those that came into the part later, and draw from the shared or from the own stream.
    late: list[Any]
    rest: list[Any]

    def give(self, shared: Sequence[int], seed_generator: SeedGenerator) -> None:
        """Give them an epoch's seeds, of which ``shared`` were drawn for all processes together."""
        for pipe, place in self.bound:
            pipe.set_seed(shared[place])
        set_datapipes_seed(self.late, seed_generator, distributed_shared=True)
        set_datapipes_seed(self.rest, seed_generator, distributed_shared=False)


def _random_pipes(datapipe: Any) -> list[Any]:
    return [pipe for pipe in breadth_first(datapipe) if is_random(pipe)]
