"""Other numbers of workers resume a state: the arithmetic of places alone, without a process.

A worker is here a run of its own copy of the graph, of which some items were taken. What the
workers of one number have taken makes a cursor, as it does in a loader; the workers of another
number begin where ``refit`` and ``spread_place`` say.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader.datapipes.running.cursors import Cursors, dropped, number_of, set_numbers
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import SnapshotError
from asyncloader.graph.settings import apply_sharding
from asyncloader.graph.walk import Graph, breadth_first
from asyncloader.places.elastic import refit, spread_place
from asyncloader.places.marks import FIRST, Mark
from asyncloader.places.stream_place import (
    StreamPlace,
    WorkerStart,
    cursor_of_place,
    first_place,
    place_of_cursor,
)
from tests.samples import double, is_odd, twice

GRAPHS: dict[str, Callable[[], Any]] = {
    "maps": lambda: numbers().shuffle(buffer_size=11).sharding_filter().map(double),
    "behind a filter": lambda: numbers().filter(is_odd).sharding_filter().map(double),
    "behind a flatmap": lambda: numbers().flatmap(twice).shuffle().sharding_filter(),
    "batches divided": lambda: numbers().batch(4).sharding_filter().map(sum),
}


def numbers() -> Any:
    return it.IterableWrapper(range(60))


class Workers:
    """So many copies of a graph, each with its share of the items, from a place on."""

    def __init__(self, graph: Any, place: StreamPlace) -> None:
        count = len(place.starts)
        self.runs = [_run(graph, worker, count) for worker in range(count)]
        self.taken = [start.position for start in place.starts]
        self._items = [_begun(*each) for each in zip(self.runs, place.starts, strict=True)]
        self._turns = list(place.turns)

    def __iter__(self) -> Iterator[Any]:
        while self._turns:
            worker = self._turns[0]
            for item in islice(self._items[worker], 1):
                self._turns = [*self._turns[1:], worker]
                self.taken[worker] += 1
                yield item
                break
            else:
                self._turns.remove(worker)

    def place(self, luck: random.Random, before: StreamPlace) -> StreamPlace:
        """Return where they are, each with a mark of now or with the one it began from."""
        starts = []
        for run, taken, start in zip(self.runs, self.taken, before.starts, strict=True):
            mark = start.mark
            if luck.random() < 0.5 and taken > start.position:
                cursors: Cursors = {}
                run.put_cursors(cursors)
                mark = Mark(taken, cursors)
            starts.append(WorkerStart(mark, taken - mark.position))
        return StreamPlace(tuple(starts), tuple(self._turns))


def _run(graph: Any, worker: int, count: int) -> Edge[Any]:
    own = copy.deepcopy(graph)
    apply_sharding(own, count, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    return Edge(own, RunTree(breadth_first(own)))


def _begun(edge: Edge[Any], start: WorkerStart) -> Iterator[Any]:
    if start.mark.position:
        edge.resume(start.mark.position, start.mark.cursors)
    return dropped(edge.begin(), start.unwanted)


def graph_of(name: str) -> Any:
    graph = GRAPHS[name]()
    for pipe in breadth_first(graph):
        if hasattr(pipe, "set_seed"):
            pipe.set_seed(7)
    set_numbers(breadth_first(graph))
    return graph


def cursor_after(graph: Any, workers: int, steps: int, luck: random.Random) -> Cursors:
    """Return the cursors of a loader that has taken so many items of so many workers."""
    before = first_place(workers)
    running = Workers(graph, before)
    taken = list(islice(running, steps))
    place = running.place(luck, before)
    cursor = cursor_of_place(len(taken), place)
    assert place_of_cursor(cursor) == place
    return {number_of(graph) or 0: cursor}


@pytest.mark.parametrize("name", GRAPHS)
def test_workers_of_any_number_go_on_where_those_of_another_number_were(name: str) -> None:
    graph = graph_of(name)
    expected = list(Workers(graph, first_place(1)))
    for seed in range(40):
        luck = random.Random(seed)
        before, after = luck.sample([1, 2, 3, 5], 2)
        steps = luck.randrange(len(expected) + 1)
        cursors = cursor_after(graph, before, steps, luck)
        fitted = refit(Graph(graph), cursors, taken_with=before, run_with=after)
        place = spread_place(fitted[number_of(graph) or 0], steps, after)
        assert list(Workers(graph, place)) == expected[steps:]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_number_of_workers_goes_on_in_turn(name: str) -> None:
    graph = graph_of(name)
    for seed in range(40):
        luck = random.Random(seed)
        workers = luck.choice([1, 2, 3, 5])
        expected = list(Workers(graph, first_place(workers)))
        steps = luck.randrange(len(expected) + 1)
        cursors = cursor_after(graph, workers, steps, luck)
        place = place_of_cursor(cursors[number_of(graph) or 0])
        assert list(Workers(graph, place)) == expected[steps:]


def test_without_workers_the_pipes_begin_where_the_least_advanced_worker_was() -> None:
    graph = graph_of("maps")
    expected = list(Workers(graph, first_place(1)))
    for seed in range(20):
        luck = random.Random(seed)
        steps = luck.randrange(1, len(expected))
        cursors = cursor_after(graph, 3, steps, luck)
        fitted = refit(Graph(graph), cursors, taken_with=3, run_with=0)
        edge: Edge[Any] = Edge(copy.deepcopy(graph), RunTree())
        edge.resume(steps, fitted)
        assert list(edge.begin()) == expected[steps:]


def test_what_yields_other_items_for_another_number_is_refused_by_name() -> None:
    graph = numbers().sharding_filter().batch(3)
    set_numbers(breadth_first(graph))
    with pytest.raises(SnapshotError, match=r"batch\(3\) yields other items"):
        refit(Graph(graph), {}, taken_with=2, run_with=3)


def test_the_first_place_is_before_all_items() -> None:
    place = first_place(3)
    assert place.starts == (WorkerStart(FIRST, 0),) * 3
    assert place.turns == (0, 1, 2)
