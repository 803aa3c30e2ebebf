"""A part of the graph from epoch to epoch: who is seeded, and what is iterated."""

from __future__ import annotations

from typing import Any

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.graph.settings import PartSeeds, SharedPipes
from asyncloader.graph.walk import Graph
from asyncloader.seeds import SeedGenerator
from asyncloader.workers.graph_part import GraphPart


def part_of(pipe: Any) -> GraphPart:
    return GraphPart(pipe, PartSeeds(pipe, SharedPipes(Graph(pipe)).places_in(pipe)))


def order_of(part: GraphPart, seed: int) -> list[int]:
    part.seed((), SeedGenerator(seed))
    return list(part.prepared(RunTree()).end)


def test_every_epoch_is_seeded():
    part = part_of(IterableWrapper(range(50)).shuffle())
    assert order_of(part, 1) == order_of(part, 1) != order_of(part, 2)


def test_a_pass_that_was_begun_is_forgotten():
    pipe = IterableWrapper(range(9)).filter(bool)
    part = part_of(pipe)
    part.seed((), SeedGenerator(1))
    next(part.prepared(RunTree()).edge.begin())
    assert latest_pass(pipe) is not None
    part.seed((), SeedGenerator(2))
    part.prepared(RunTree())
    assert latest_pass(pipe) is None


def test_what_a_reset_returns_is_iterated():
    pipe = IterableWrapper(range(3))
    part = part_of(pipe)
    prepared = part.reset(RunTree(), lambda end: end.map(str), SeedGenerator(1))
    assert list(prepared.end) == ["0", "1", "2"]
    assert prepared.pipes == [prepared.end, pipe]
    prepared = part.reset(RunTree(), lambda end: [1, 2], SeedGenerator(1))
    assert (prepared.end, prepared.pipes) == ([1, 2], [])


def test_pipes_that_a_reset_put_in_are_seeded_in_its_epoch_and_after_it():
    pipe = IterableWrapper(range(50)).map(int)
    part = part_of(pipe)
    assert order_of(part, 1) == list(range(50))

    def shuffled(end: Any) -> Any:
        end.source = end.source.shuffle()
        return end

    first = list(part.reset(RunTree(), shuffled, SeedGenerator(1)).end)
    again = part_of(IterableWrapper(range(50)).map(int))
    again.seed((), SeedGenerator(7))
    assert first == list(again.reset(RunTree(), shuffled, SeedGenerator(1)).end) != list(range(50))
    assert order_of(part, 1) == order_of(part, 1) != order_of(part, 2)
    assert len(part.prepared(RunTree()).pipes) == 3


class MakesItsSource(IterDataPipe):
    """Has no source until it is iterated."""

    source = None

    def __iter__(self) -> Any:
        if self.source is None:
            self.source = IterableWrapper(range(50)).shuffle()
        return iter(self.source)


def test_pipes_that_were_made_in_the_first_epoch_are_seeded_in_those_after_it():
    part = part_of(MakesItsSource())
    order_of(part, 1)
    assert order_of(part, 1) == order_of(part, 1) != order_of(part, 2)
