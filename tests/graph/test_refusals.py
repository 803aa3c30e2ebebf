"""Graphs that are refused, whatever they are wanted for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncloader import Feed
from asyncloader.datapipes.iter import (
    SHARDING_PRIORITIES,
    IterableWrapper,
    IterDataPipe,
    SampleMultiplexer,
)
from asyncloader.graph.refusals import Purpose, Refusal, every_refusal, refusals
from asyncloader.graph.walk import breadth_first


async def later(item: Any) -> Any:
    return item


def numbers() -> IterDataPipe[int]:
    return IterableWrapper(range(9))


def raced() -> IterDataPipe[Any]:
    branch, _ = numbers().fork(2)
    return branch.prefetch(1).zip(branch)


def left_behind() -> IterDataPipe[Any]:
    one, other = numbers().fork(2)
    return one.cycle(2).mux_longest(other.prefetch(1))


def split_after_drawing() -> IterDataPipe[Any]:
    shuffled = numbers().shuffle()
    return shuffled.random_split(weights={"a": 5, "b": 4}, seed=1, total_length=9)[0]


def drawn_for_several() -> IterDataPipe[Any]:
    ahead = numbers().shuffle().cycle(2).prefetch(1)
    return ahead.zip(ahead)


def twice_sharded() -> IterDataPipe[Any]:
    return numbers().sharding_filter().map(str).sharding_filter()


def dealt() -> IterDataPipe[Any]:
    return numbers().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def dealt_as_ready() -> IterDataPipe[Any]:
    ready = numbers().async_map(later, ordered=False)
    return ready.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(str)


def of_a_sampler() -> IterDataPipe[Any]:
    sampler = torch.utils.data.RandomSampler(range(9))
    return IterableWrapper(sampler).sharding_filter()


def divided_twice() -> IterDataPipe[Any]:
    return IterableWrapper(range(9), shards_itself=True).sharding_filter()


def held_while_read_again() -> IterDataPipe[Any]:
    first, second = numbers().shuffle().round_robin_demux(2)
    even, odd = first.demux(2, lambda number: number % 2)
    return SampleMultiplexer({even: 1, odd: 2, second.cycle(2): 3}, seed=1)


def fed(*pipes: str) -> IterDataPipe[Any]:
    end: Any = Feed()
    for name in pipes:
        end = end.filter(bool) if name == "filter" else end.batch(2, max_wait=0.1)
    return end  # type: ignore[no-any-return]


def synced(*, repeatable: bool = True) -> IterDataPipe[Any]:
    divided = numbers().sharding_filter().fullsync()
    if repeatable:
        return divided.thread_map(str, ordered=False)
    return divided.map(str, repeatable=False)


CASES = {
    "branches are raced for": (raced, Purpose.RUN, "Give each source a branch of its own"),
    "a branch is left behind": (left_behind, Purpose.RUN, "Let cycle(2) read what the branches"),
    "a split after a shuffle": (split_after_drawing, Purpose.RUN, "Split first, and shuffle"),
    "a cache after a shuffle": (
        lambda: numbers().shuffle().in_memory_cache(),
        Purpose.RUN,
        "Put in_memory_cache() before shuffle()",
    ),
    "orders for several": (drawn_for_several, Purpose.RUN, "Let them read it through fork()"),
    "the device is not last": (
        lambda: numbers().to_device("cpu").map(later),
        Purpose.RUN,
        "move the pipes that follow it before it",
    ),
    "two feeds": (lambda: fed().zip(Feed()), Purpose.REQUESTS, "make a loader for each of them"),
    "no answer": (lambda: fed("filter"), Purpose.REQUESTS, "Use map, async_map, thread_map"),
    "batched twice": (lambda: fed("batch", "batch"), Purpose.REQUESTS, "remove batch(2, max_w"),
    "sharded twice": (twice_sharded, Purpose.SHARDS, "keep one of them, or give each a sharding"),
    "divided twice": (divided_twice, Purpose.WORKERS, "Keep one of them: drop sharding_filter()"),
    "a sampler's keys": (of_a_sampler, Purpose.WORKERS, "put sharding_round_robin_dispatch(SHA"),
    "dealt, and read again": (
        lambda: dealt().cycle(2),
        Purpose.WORKERS,
        "Put cycle(2) before sharding_round_robin_dispatch()",
    ),
    "worked on, and read again": (
        lambda: numbers().sharding_filter().pin_memory().cycle(2),
        Purpose.WORKERS,
        "Put it before the pipes that have to run in the loader's process",
    ),
    "a feed in actors": (lambda: fed("batch"), Purpose.ACTORS, "use MultiProcessingReadingServ"),
    "live requests": (fed, Purpose.STATE, "Begin anew, without a state"),
    "requests to acknowledge": (fed, Purpose.ACKNOWLEDGE, "leave it out"),
    "held while it is read again": (
        held_while_read_again,
        Purpose.STATE,
        "Let cycle(2) read what the branches",
    ),
    "dealt as it is ready": (dealt_as_ready, Purpose.STATE, "Put sharding_round_robin_dispatch"),
    "synced before a section": (
        lambda: synced(repeatable=False),
        Purpose.RANKS,
        "Put fullsync() at the end of the graph, or leave it out",
    ),
    "a state of that": (synced, Purpose.STATE_ON_RANKS, "Put fullsync() at the end of the graph"),
    "a restart of that": (dealt_as_ready, Purpose.RESTART, "pass ordered=True, or let it follow"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_says_what_to_do_instead(name: str) -> None:
    make, purpose, remedy = CASES[name]
    refusal = next(iter(refusals(make(), purpose, workers=2)))
    assert refusal.purpose is purpose
    assert refusal.remedy.startswith(remedy)
    assert str(refusal).endswith(refusal.remedy)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_refused_twice_nor_changed(name: str) -> None:
    graph = CASES[name][0]()
    before = breadth_first(graph)
    found = list(every_refusal(graph, 2))
    assert len(found) == len(set(found))
    assert list(every_refusal(graph, 2)) == found
    assert breadth_first(graph) == before


def test_one_worker_divides_nothing() -> None:
    assert list(refusals(divided_twice(), Purpose.WORKERS, workers=1)) == []


def test_a_plain_graph_is_refused_for_nothing() -> None:
    graph = numbers().shuffle().sharding_filter().map(str).batch(2).prefetch(3)
    assert list(every_refusal(graph, 2)) == []


def test_a_remedy_is_a_sentence_or_a_part_of_one() -> None:
    assert str(Refusal(Purpose.RUN, "it is wet", "dry it")) == "it is wet; dry it"
    assert str(Refusal(Purpose.RUN, "it is wet", "Dry it")) == "it is wet. Dry it"


def test_what_is_left_out_in_the_middle_cannot_be_padded() -> None:
    middle = IterableWrapper([1]).fullsync()
    found = [str(each) for each in refusals(middle.batch(2).fullsync(), Purpose.PADDED)]
    assert len(found) == 1
    assert found[0].endswith("possible only at the end of the graph; leave that pipe out")
    assert not list(refusals(middle, Purpose.PADDED))


def test_only_where_chance_mixes_what_is_read_again_with_what_is_held_is_a_state_refused():
    def sisters() -> tuple[IterDataPipe[Any], IterDataPipe[Any]]:
        one, other = numbers().shuffle().fork(2)
        return one, other

    def of_two(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
        even, odd = pipe.demux(2, lambda number: number % 2)
        return even.mux_longest(odd)

    one, other = sisters()
    assert not [*refusals(one.batch(2).zip(other.cycle(2)), Purpose.STATE)]
    one, other = sisters()
    assert not [*refusals(of_two(one).concat(other.cycle(2)), Purpose.STATE)]
    one, other = sisters()
    assert not [*refusals(one.zip(of_two(other)).cycle(2), Purpose.STATE)]
    one, other = sisters()
    assert not [*refusals(of_two(one).mux_longest(other.cycle(2)), Purpose.STATE)]
    one, other = sisters()
    mixed = SampleMultiplexer({of_two(one): 1, other.cycle(2): 1}, seed=1)
    assert len([*refusals(mixed, Purpose.STATE)]) == 1
