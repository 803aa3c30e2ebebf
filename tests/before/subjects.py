"""What is compared, or kept: random graphs, and the samples of the contract tests.

This file is about ``Subject``: a graph and where it runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests import samples
from tests.before.comparing import Comparison, Way
from tests.before.running import Side
from tests.random_graphs.recipe import Recipe, drawn

#: How much is prefetched, by turns.
AHEAD = (0, 1, 10)


@dataclass(frozen=True)
class Subject:
    """A graph and where it runs; ``seed`` draws which states are loaded."""

    seed: int
    lines: str
    way: Way
    recipe: Recipe | None = None

    def compare(self, old: Side, new: Side, *, is_forwards: bool = False) -> Counter[str]:
        comparison = Comparison(
            old, new, self.lines, self.way, recipe=self.recipe, is_forwards=is_forwards
        )
        comparison.run(random.Random(f"{self.seed}{self.way}"))
        return comparison.counts


def of_seeds(seeds: range, *, without_workers: bool = False) -> Iterator[Subject]:
    """Yield each random graph in this process and in workers, whose number goes by turns."""
    for seed in seeds:
        recipe = drawn(seed)
        for workers in (0,) if without_workers else (0, 1 + seed % 3):
            yield Subject(seed, str(recipe), Way(workers, AHEAD[seed // 3 % 3]), recipe)


def of_samples() -> Iterator[Subject]:
    """Yield each sample of the contract tests: pipes, adapters, and services over one graph."""
    for name in samples.names_of_pipes():
        for workers in (0, 2):
            yield Subject(0, f"p0 = sample({name!r})", Way(workers))
    for adapter in samples.ADAPTERS:
        for workers in (0, 2):
            lines = f"{_GRAPH}\np1 = with_adapter(p0, {adapter.__name__!r})"
            yield Subject(0, lines, Way(workers))
    for expression in _SERVICES:
        yield Subject(0, _GRAPH, Way(2 if "Standing" in expression else 0, by=expression))


_GRAPH = "p0 = IterableWrapper(range(24)).shuffle().sharding_filter().map(str)"
_SERVICES = (
    "DistributedReadingService(60)",
    "SequentialReadingService(DistributedReadingService(60), Standing(2, worker_prefetch_cnt=1))",
    "SequentialReadingService(InProcessReadingService(), InProcessReadingService(1))",
)
