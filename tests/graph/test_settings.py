"""Shards, shuffling and seeds: who is told what."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.utils.data.datapipes.iter as torch_iter
import torch.utils.data.graph_settings as torch_settings

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import (
    apply_random_seed,
    apply_sharding,
    apply_shuffle_settings,
    breadth_first,
    check_shuffle_before_sharding,
    copy_graph,
    edges_of,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
)
from asyncloader.graph.settings import PartSeeds, SharedPipes
from asyncloader.graph.walk import Graph
from asyncloader.seeds import SeedGenerator

DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING


class Random(IterDataPipe[Any]):
    """Remembers the seeds it is given."""

    def __init__(self, *sources: Any) -> None:
        self.sources = sources
        self.seeds: list[int] = []

    def set_seed(self, seed: int) -> None:
        self.seeds.append(seed)


class OldFilter(IterDataPipe[Any]):
    """Was written before there were sharding groups."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.told: Any = None

    def apply_sharding(self, num_of_instances: int, instance_id: int) -> None:
        self.told = (num_of_instances, instance_id)


wrappers = pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])


# Shards ---------------------------------------------------------------------------------


@wrappers
def test_sharding_reaches_every_branch(wrap: Any) -> None:
    end = wrap(range(5)).sharding_filter().zip(wrap("abcde").sharding_filter())
    assert apply_sharding(end, 2, 1) is end
    assert list(end) == [(1, "b"), (3, "d")]


@wrappers
def test_groups_multiply(wrap: Any) -> None:
    end = wrap(range(8)).sharding_filter()
    apply_sharding(end, 2, 1, DISTRIBUTED)
    apply_sharding(end, 2, 0, MULTIPROCESSING)
    assert list(end) == [2, 6]


@wrappers
def test_sharding_one_path_twice_is_an_error_and_changes_nothing(wrap: Any) -> None:
    end = wrap(range(4)).sharding_filter().map(str).sharding_filter()
    with pytest.raises(RuntimeError, match=r"[Ss]harding.*\(\) and .*\(\) shard the same path"):
        apply_sharding(end, 2, 1)
    assert list(end) == ["0", "1", "2", "3"]


def test_a_path_may_be_sharded_once_for_each_group() -> None:
    end = IterableWrapper(range(8)).sharding_filter(DISTRIBUTED).sharding_filter(MULTIPROCESSING)
    apply_sharding(end, 2, 1, DISTRIBUTED)
    apply_sharding(end, 2, 1, MULTIPROCESSING)
    assert list(end) == [3, 7]


def test_a_filter_for_all_groups_and_one_for_a_group_shard_that_group_twice() -> None:
    end = IterableWrapper(range(8)).sharding_filter().sharding_filter(MULTIPROCESSING)
    apply_sharding(end, 2, 1, DISTRIBUTED)
    with pytest.raises(RuntimeError, match="shard the same path"):
        apply_sharding(end, 2, 1, MULTIPROCESSING)


def test_a_filter_that_knows_no_groups_is_told_without_one() -> None:
    end = OldFilter(IterableWrapper([1]))
    apply_sharding(end, 3, 2, MULTIPROCESSING)
    assert end.told == (3, 2)


def test_a_shared_filter_is_told_once() -> None:
    shared = IterableWrapper(range(4)).sharding_filter()
    end = shared.map(str).zip(shared.map(int))
    apply_sharding(end, 2, 1)
    assert list(end) == [("1", 1), ("3", 3)]


# Shuffling ------------------------------------------------------------------------------


@wrappers
def test_every_shuffler_is_switched(wrap: Any) -> None:
    end = wrap(range(20)).shuffle().map(int).shuffle()
    assert apply_shuffle_settings(end, shuffle=None) is end
    assert list(apply_shuffle_settings(end, shuffle=False)) == list(range(20))
    torch.manual_seed(0)
    assert list(apply_shuffle_settings(end, shuffle=True)) != list(range(20))


@wrappers
def test_a_shuffler_is_added_with_a_warning(wrap: Any) -> None:
    source = wrap(range(5))
    with pytest.warns(UserWarning, match="no shuffle in the graph"):
        end = apply_shuffle_settings(source, shuffle=True)
    assert end is not source
    assert edges_of(end) == [source]
    assert apply_shuffle_settings(source, shuffle=False) is source


def test_shuffling_before_sharding_is_checked_on_every_path() -> None:
    def shards(*pipes: Any) -> Any:
        return pipes[0].zip(*pipes[1:]).sharding_filter()

    plain, shuffled = IterableWrapper([1]), IterableWrapper([1]).shuffle()
    assert check_shuffle_before_sharding(plain)
    assert check_shuffle_before_sharding(plain.shuffle())
    assert check_shuffle_before_sharding(shuffled.map(str).sharding_filter())
    assert check_shuffle_before_sharding(shards(shuffled, shuffled.map(str)))
    assert check_shuffle_before_sharding(SequenceWrapper([1]).shuffle().sharding_filter())
    assert not check_shuffle_before_sharding(plain.sharding_filter().shuffle())
    assert not check_shuffle_before_sharding(shards(shuffled, plain.map(str)))
    assert not check_shuffle_before_sharding(plain.sharding_round_robin_dispatch(MULTIPROCESSING))
    assert not check_shuffle_before_sharding(torch_iter.IterableWrapper([1]).sharding_filter())


# Seeds ----------------------------------------------------------------------------------


def test_seeds_are_shared_or_the_workers_own() -> None:
    pipes = [Random(), IterableWrapper([1]), Random()]
    generator = SeedGenerator(123).spawn(0)
    set_datapipes_seed(pipes, generator, distributed_shared=True)
    set_datapipes_seed(pipes, generator, distributed_shared=False)
    assert [pipes[0].seeds, pipes[2].seeds] == [
        [9025247384375923790, 4163719935875787874],
        [16000952678483384606, generator_after(1)],
    ]


def generator_after(draws: int) -> int:
    generator = SeedGenerator(123).spawn(0)
    for _ in range(draws):
        generator.generate_seed()
    return generator.generate_seed()


def a_sharded_graph() -> tuple[Any, list[Random], list[Random]]:
    """Return a graph, the pipes above its sharding breadth-first, and those below."""
    deep = Random()
    wide = Random(deep)
    other = Random()
    below = Random(wide.sharding_filter(), other.sharding_round_robin_dispatch(MULTIPROCESSING))
    loose = Random()
    end = Random(below, loose)
    return end, [wide, other, deep], [end, below, loose]


def test_pipes_above_sharding_draw_shared_seeds_breadth_first_and_the_others_their_own() -> None:
    end, above, below = a_sharded_graph()
    generator = SeedGenerator(123).spawn(1)
    mirror = generator.clone()
    assert set_graph_random_seed(end, generator) is end
    assert [pipe.seeds for pipe in above] == [[mirror.generate_shared_seed()] for _ in above]
    assert [pipe.seeds for pipe in below] == [[mirror.generate_seed()] for _ in below]


def test_without_sharding_every_seed_is_the_workers_own() -> None:
    end = Random(Random())
    set_graph_random_seed(end, SeedGenerator(123).spawn(0))
    assert end.seeds == [4163719935875787874]


def test_workers_agree_on_the_shuffle_of_a_torch_graph() -> None:
    end = torch_iter.IterableWrapper(range(50)).shuffle().sharding_filter()
    shares = []
    for worker in range(2):
        share = apply_sharding(copy_graph(end), 2, worker)
        set_graph_random_seed(share, SeedGenerator(7).spawn(worker))
        shares.append(list(share))
    assert sorted(shares[0] + shares[1]) == list(range(50))


def test_torchs_own_way_of_seeding_gives_a_chain_the_same_seeds() -> None:
    ends = [torch_iter.IterableWrapper(range(20)).shuffle().map(int).shuffle() for _ in range(2)]
    apply_random_seed(ends[0], torch.Generator().manual_seed(3))
    torch_settings.apply_random_seed(ends[1], torch.Generator().manual_seed(3))
    assert list(ends[0]) == list(ends[1])


def test_seeds_are_for_a_list_of_pipes() -> None:
    with pytest.raises(TypeError, match="takes a list of pipes, got one pipe"):
        set_datapipes_seed(IterableWrapper([1]), SeedGenerator(1), True)


class NamedRandom(IterDataPipe[Any]):
    """Remembers the seeds it is given, and has a name."""

    def __init__(self, name: str, *sources: Any) -> None:
        self.name = name
        self.sources = sources
        self.seeds: list[int] = []

    def set_seed(self, seed: int) -> None:
        self.seeds.append(seed)


def a_graph() -> tuple[Any, Any]:
    """Return a graph, and where it is cut for dispatching."""
    dispatched = NamedRandom("c", NamedRandom("d"))
    dispatch = dispatched.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    filtered = NamedRandom("e").sharding_filter()
    return NamedRandom("a", dispatch, NamedRandom("b", filtered)), dispatch


def seeds_of(datapipe: Any) -> dict[str, list[int]]:
    return {
        pipe.name: pipe.seeds for pipe in breadth_first(datapipe) if isinstance(pipe, NamedRandom)
    }


def sent(*things: Any) -> Any:
    """Return what another process would get."""
    return pickle.loads(pickle.dumps(things))


def test_the_parts_of_a_cut_graph_are_seeded_as_the_whole_would_be() -> None:
    end, dispatch = a_graph()
    whole = set_graph_random_seed(copy_graph(end), SeedGenerator(5).spawn(0))
    shared = SharedPipes(Graph(end))
    replace_dp(traverse_dps(end), dispatch, IterableWrapper([]))

    seeds = shared.draw(SeedGenerator(5))
    found: dict[str, list[int]] = {}
    for part in (end, dispatch):
        there, places = sent(part, shared.places_in(part))
        bound = PartSeeds(there, places)
        bound.find(there)
        bound.give(seeds, SeedGenerator(5).spawn(0))
        found |= seeds_of(there)
    assert found == seeds_of(whole)


def test_every_epoch_gives_new_seeds_to_the_same_pipes() -> None:
    end, _ = a_graph()
    shared, generator = SharedPipes(Graph(end)), SeedGenerator(5)
    there, places = sent(end, shared.places_in(end))
    seeds = PartSeeds(there, places)
    epochs = [shared.draw(generator), shared.draw(generator)]
    for epoch in epochs:
        seeds.find(there)
        seeds.give(epoch, generator.spawn(0))
    given = seeds_of(there)
    assert [tuple(given[name][epoch] for name in "cde") for epoch in (0, 1)] == epochs


def test_a_pipe_that_was_added_later_above_the_sharding_agrees_among_workers() -> None:
    end, _ = a_graph()
    shared = SharedPipes(Graph(end))
    given = []
    for worker in range(2):
        there, places = sent(end, shared.places_in(end))
        bound = PartSeeds(there, places)
        there = NamedRandom("new", NamedRandom("late", there).sharding_filter())
        generator = SeedGenerator(5)
        seeds = shared.draw(generator)
        bound.find(there)
        bound.give(seeds, generator.spawn(worker))
        given.append(seeds_of(there))
    assert given[0]["late"] == given[1]["late"]
    assert given[0]["new"] != given[1]["new"]
    assert len({*given[0]["late"], *seeds}) == 4


def test_seeds_are_bound_to_the_graph_they_were_noted_for() -> None:
    end, dispatch = a_graph()
    places = SharedPipes(Graph(end)).places_in(dispatch)
    with pytest.raises(ValueError, match="5 pipes that take a seed, not 2"):
        PartSeeds(end, places)
