"""A part of the graph, from epoch to epoch.

This file is about ``Part``: what a process runs of the graph, which is seeded and reset for
each epoch. Its pipes are looked for once, and again only after a reset: nobody else is given
the graph in order to change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncloader.datapipes.cursors import forget_passes
from asyncloader.graph.seeding import PartSeeds, Takers
from asyncloader.graph.walk import pipes_of
from asyncloader.seeds import SeedGenerator


class Prepared(NamedTuple):
    """What an epoch iterates: a part's last pipe, or whatever a reset returned in its place."""

    end: Any
    #: All pipes of the graph that ends there; none where a reset returned no pipe.
    pipes: list[Any]


#: What is iterated where there is nothing to iterate.
NOTHING = Prepared((), [])


class Part:
    """The pipes that end in ``end``, of which ``seeds`` knows who takes which seed."""

    def __init__(self, end: Any, seeds: PartSeeds) -> None:
        self.end = end
        self._seeds = seeds
        self._found: tuple[Takers, Prepared] | None = None

    def seed(self, shared_seeds: Sequence[int], generator: SeedGenerator) -> None:
        """Give the pipes their seeds for an epoch."""
        takers, _ = self._look()
        takers.give(shared_seeds, generator)

    def prepared(self) -> Prepared:
        """Return what is iterated where there is nothing to reset."""
        _, prepared = self._look()
        forget_passes(prepared.pipes)
        return prepared

    def reset(self, reset: Callable[[Any], Any]) -> Prepared:
        """Reset the graph; return what is iterated then."""
        self._found = None
        end = reset(self.end)
        prepared = Prepared(end, pipes_of(end))
        forget_passes(prepared.pipes)
        return prepared

    def _look(self) -> tuple[Takers, Prepared]:
        if self._found is None:
            prepared = Prepared(self.end, pipes_of(self.end))
            self._found = self._seeds.takers(self.end), prepared
        return self._found
