"""Seeds of a graph that runs in several processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.graph import (
    breadth_first,
    copy_graph,
    replace_dp,
    set_graph_random_seed,
    traverse_dps,
)
from asyncloader.graph.seeding import SharedPipes
from asyncloader.seeds import SeedGenerator


class Random(IterDataPipe[Any]):
    """Remembers the seeds it is given, and has a name."""

    def __init__(self, name: str, *sources: Any) -> None:
        self.name = name
        self.sources = sources
        self.seeds: list[int] = []

    def set_seed(self, seed: int) -> None:
        self.seeds.append(seed)


def a_graph() -> tuple[Any, Any]:
    """Return a graph, and where it is cut for dispatching."""
    dispatched = Random("c", Random("d"))
    dispatch = dispatched.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    filtered = Random("e").sharding_filter()
    return Random("a", dispatch, Random("b", filtered)), dispatch


def seeds_of(datapipe: Any) -> dict[str, list[int]]:
    return {pipe.name: pipe.seeds for pipe in breadth_first(datapipe) if isinstance(pipe, Random)}


def sent(*things: Any) -> Any:
    """Return what another process would get."""
    return pickle.loads(pickle.dumps(things))


def test_the_parts_of_a_cut_graph_are_seeded_as_the_whole_would_be() -> None:
    end, dispatch = a_graph()
    whole = set_graph_random_seed(copy_graph(end), SeedGenerator(5).spawn(0))
    shared = SharedPipes(end)
    replace_dp(traverse_dps(end), dispatch, IterableWrapper([]))

    seeds = shared.draw(SeedGenerator(5))
    found: dict[str, list[int]] = {}
    for part in (end, dispatch):
        there, places = sent(part, shared.places_in(part))
        places.bind(there).takers(there).give(seeds, SeedGenerator(5).spawn(0))
        found |= seeds_of(there)
    assert found == seeds_of(whole)


def test_every_epoch_gives_new_seeds_to_the_same_pipes() -> None:
    end, _ = a_graph()
    shared, generator = SharedPipes(end), SeedGenerator(5)
    there, places = sent(end, shared.places_in(end))
    seeds = places.bind(there)
    epochs = [shared.draw(generator), shared.draw(generator)]
    for epoch in epochs:
        seeds.takers(there).give(epoch, generator.spawn(0))
    given = seeds_of(there)
    assert [tuple(given[name][epoch] for name in "cde") for epoch in (0, 1)] == epochs


def test_a_pipe_that_was_added_later_above_the_sharding_agrees_among_workers() -> None:
    end, _ = a_graph()
    shared = SharedPipes(end)
    given = []
    for worker in range(2):
        there, places = sent(end, shared.places_in(end))
        bound = places.bind(there)
        there = Random("new", Random("late", there).sharding_filter())
        generator = SeedGenerator(5)
        seeds = shared.draw(generator)
        bound.takers(there).give(seeds, generator.spawn(worker))
        given.append(seeds_of(there))
    assert given[0]["late"] == given[1]["late"]
    assert given[0]["new"] != given[1]["new"]
    assert len({*given[0]["late"], *seeds}) == 4


def test_seeds_are_bound_to_the_graph_they_were_noted_for() -> None:
    end, dispatch = a_graph()
    places = SharedPipes(end).places_in(dispatch)
    with pytest.raises(ValueError, match="5 pipes that take a seed, not 2"):
        places.bind(end)
