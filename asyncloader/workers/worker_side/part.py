"""A part of the graph, from epoch to epoch.

This file is about ``Part``: what a process runs of the graph, which is seeded and reset for
each epoch. Its pipes are looked for once an epoch, as some make others when they are first
iterated; who takes a seed, only where there are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncloader.datapipes.pipe.run import Run, RunTree
from asyncloader.graph.settings import PartSeeds, Takers, seed_newcomers
from asyncloader.graph.walk import pipes_of
from asyncloader.seeds import SeedGenerator


class Prepared(NamedTuple):
    """What an epoch iterates: a part's last pipe, or whatever a reset returned in its place."""

    run: Run[Any]
    #: All pipes of the graph that ends there; none where a reset returned no pipe.
    pipes: list[Any]

    @property
    def end(self) -> Any:
        """The last pipe."""
        return self.run.pipe


#: What is iterated where there is nothing to iterate.
NOTHING = Prepared(Run((), RunTree()), [])


class Part:
    """The pipes that end in ``end``, of which ``seeds`` knows who takes which seed."""

    def __init__(self, end: Any, seeds: PartSeeds) -> None:
        self.end = end
        self._seeds = seeds
        self._pipes: list[Any] = []
        self._takers = Takers((), [], [])

    def seed(self, shared_seeds: Sequence[int], generator: SeedGenerator) -> None:
        """Give the pipes their seeds for an epoch."""
        pipes = pipes_of(self.end)
        if list(map(id, pipes)) != list(map(id, self._pipes)):
            self._pipes, self._takers = pipes, self._seeds.takers(self.end)
        self._takers.give(shared_seeds, generator)

    def prepared(self, tree: RunTree) -> Prepared:
        """Return what is iterated where there is nothing to reset; to be seeded before."""
        return _begun_anew(tree, self.end, self._pipes)

    def reset(
        self, tree: RunTree, reset: Callable[[Any], Any], generator: SeedGenerator
    ) -> Prepared:
        """Reset the graph, giving seeds to what comes into it; return what is iterated then."""
        known, self._pipes = self._pipes, []
        end = reset(self.end)
        pipes = pipes_of(end)
        if pipes:
            seed_newcomers(end, known, generator)
        return _begun_anew(tree, end, pipes)


def _begun_anew(tree: RunTree, end: Any, pipes: list[Any]) -> Prepared:
    tree.add(pipes)
    return Prepared(Run(end, tree), pipes)
