"""Seeds of a graph that runs in several processes.

This file is about giving pipes the same seeds wherever the graph was cut: shared
seeds are drawn once, over the whole graph, and travel as plain numbers to the
processes that run its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.graph.kinds import is_random
from asyncloader.graph.settings import set_datapipes_seed, shared_and_own
from asyncloader.graph.walk import breadth_first
from asyncloader.seeds import SeedGenerator


def draw_shared_seeds(datapipe: Any, seed_generator: SeedGenerator) -> tuple[int, ...]:
    """Draw the seeds that ``set_graph_random_seed`` would share, and give them to nobody yet."""
    shared, _ = shared_and_own(datapipe)
    return tuple(seed_generator.generate_shared_seed() for _ in shared)


@dataclass(frozen=True)
class SeedPlaces:
    """Which of a whole graph's shared seeds go to which pipes of a part of it.

    Plain numbers, to be sent along with the part to the process that runs it.
    """

    #: For each pipe of the part that takes a seed, breadth-first: the place of its
    #: seed among those of ``draw_shared_seeds``, or -1 for one of the worker's own.
    places: tuple[int, ...]

    @classmethod
    def of(cls, whole: Any, part: Any) -> SeedPlaces:
        """Note the places for ``part``, which holds some of the very pipes of ``whole``."""
        shared, _ = shared_and_own(whole)
        place_of = {id(pipe): place for place, pipe in enumerate(shared)}
        random = (pipe for pipe in breadth_first(part) if is_random(pipe))
        return cls(tuple(place_of.get(id(pipe), -1) for pipe in random))

    def bind(self, part: Any) -> PartSeeds:
        """Find the pipes again in ``part``, or in a copy of it, before it is changed."""
        random = [pipe for pipe in breadth_first(part) if is_random(pipe)]
        if len(random) != len(self.places):
            raise ValueError(
                f"the graph has {len(random)} pipes that take a seed, not {len(self.places)}; bind"
                " the seeds to a copy of the very graph they were noted for"
            )
        bound = zip(random, self.places, strict=True)
        return PartSeeds(tuple((pipe, place) for pipe, place in bound if place >= 0))


@dataclass(frozen=True)
class PartSeeds:
    """Gives the seeds of each epoch to a part of a graph, in the process that runs it."""

    bound: tuple[tuple[Any, int], ...]

    def give(self, datapipe: Any, shared: Sequence[int], seed_generator: SeedGenerator) -> None:
        """Seed the part as the whole graph would have been seeded.

        ``shared`` are the epoch's shared seeds. Pipes that came into the part later draw
        from the generator, as ``set_graph_random_seed`` would have them.
        """
        for pipe, place in self.bound:
            pipe.set_seed(shared[place])
        known = {id(pipe) for pipe, _ in self.bound}
        agreed, own = shared_and_own(datapipe)
        late = [pipe for pipe in agreed if id(pipe) not in known]
        set_datapipes_seed(late, seed_generator, distributed_shared=True)
        rest = [pipe for pipe in own if id(pipe) not in known]
        set_datapipes_seed(rest, seed_generator, distributed_shared=False)
