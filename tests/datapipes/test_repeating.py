from __future__ import annotations

import asyncio
import threading
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
import torch.utils.data.datapipes.map as torch_map
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import (
    Concater,
    Cycler,
    IterableWrapper,
    SampleMultiplexer,
)
from asyncloader.datapipes.map import Concater as MapConcater
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.split_pass import SplitPass
from asyncloader.graph import apply_sharding, set_graph_random_seed
from asyncloader.seeds import SeedGenerator
from tests.datapipes.resuming import assert_goes_on, assert_goes_on_twice, place_of
from tests.datapipes.watched import Watched

several = st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=4)


@given(several)
def test_sources_follow_one_another_as_in_torch(lists: list[list[int]]) -> None:
    ours = Concater(*map(IterableWrapper, lists))
    theirs = torch_iter.Concater(*map(torch_iter.IterableWrapper, lists))

    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


@given(several)
def test_sequences_follow_one_another_as_in_torch(lists: list[list[int]]) -> None:
    ours = MapConcater(*map(SequenceWrapper, lists))
    theirs = torch_map.Concater(*map(torch_map.SequenceWrapper, lists))

    assert list(ours) == [theirs[index] for index in range(len(theirs))]
    assert [ours[-index] for index in range(1, len(ours) + 1)] == list(ours)[::-1]
    with pytest.raises(IndexError):
        ours[len(ours)]


def test_concat_knows_the_source_it_reads_and_opens_them_one_by_one() -> None:
    first, second = Watched("ab"), Watched("c")
    pipe = first.concat(second)
    RunTree([pipe])
    state = [(n, *place_of(pipe, "current", "taken"), first.open, second.open) for n in pipe]

    assert state == [("a", 0, 1, 1, 0), ("b", 0, 2, 1, 0), ("c", 1, 1, 0, 1)]


def test_cycle_begins_again_and_counts_its_rounds() -> None:
    pipe = IterableWrapper("ab").cycle(2)
    RunTree([pipe])

    assert [(n, *place_of(pipe, "rounds", "taken")) for n in pipe] == [
        ("a", 0, 1),
        ("b", 0, 2),
        ("a", 1, 1),
        ("b", 1, 2),
    ]
    assert list(IterableWrapper("ab").cycle(0)) == []


def test_cycle_goes_on_for_ever_but_not_over_nothing() -> None:
    pipe = IterableWrapper("ab").cycle()

    assert list(islice(pipe, 5)) == ["a", "b", "a", "b", "a"]
    assert list(IterableWrapper([]).cycle()) == []
    with pytest.raises(TypeError, match="without end"):
        len(pipe)


def test_each_round_of_a_cycle_is_shuffled_anew() -> None:
    first, second = IterableWrapper(range(50)).shuffle().cycle(2).batch(50)

    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("seed", range(10))
def test_a_round_in_which_a_worker_has_no_share_does_not_end_its_cycle(seed: int) -> None:
    """Of batches of words, one round may make two and another three, for three workers."""
    words = ["a", "bb", "ccc", "dddd", "e", "ff", "ggg"]

    def share(index: int) -> list[list[str]]:
        batches = IterableWrapper(words).shuffle().max_token_bucketize(8, buffer_size=2)
        cycle = set_graph_random_seed(batches.sharding_filter().cycle(8), SeedGenerator(seed))
        return list(apply_sharding(cycle, 3, index))

    shares = [batch for index in range(3) for batch in share(index)]
    assert Counter(word for batch in shares for word in batch) == dict.fromkeys(words, 8)


def test_a_source_that_reads_once_cannot_be_cycled() -> None:
    with pytest.raises(TypeError, match="only once"):
        list(IterableWrapper(iter("ab")).cycle(2))


def test_repeat_yields_each_item_several_times() -> None:
    pipe = IterableWrapper("ab").repeat(2)
    RunTree([pipe])

    assert [(n, *latest_pass(pipe).counts()[:2]) for n in pipe] == [
        ("a", 1, 1),
        ("a", 1, 2),
        ("b", 2, 3),
        ("b", 2, 4),
    ]


def test_numbers_of_rounds_are_counts() -> None:
    with pytest.raises(ValueError, match="times must be at least 2, got 1"):
        IterableWrapper("ab").repeat(1)
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        Cycler("ab", -1)
    with pytest.raises(ValueError, match="at least one source"):
        Concater()


def digits() -> Any:
    return IterableWrapper(range(5))


def tens() -> Any:
    return IterableWrapper([10, 20]).map(int)


# In a later round, what these yield depends on all that they read beginning anew in it.
ROUNDS: dict[str, Any] = {
    "mux_longest": lambda: tens().mux_longest(digits()),
    "SampleMultiplexer": lambda: SampleMultiplexer({tens(): 3, digits(): 1}, seed=3),
    "zip_longest": lambda: tens().zip_longest(digits().map(str)),
    "mux_longest of a fork": lambda: longest_of(*digits().fork(2)),
    "shuffle, header": lambda: shuffled(1).header(3),
    "shuffle, batch, header": lambda: shuffled(1).batch(2).header(2),
    "shuffle over filter, header": lambda: shuffled(1, digits().filter(bool)).header(4),
    "map shuffle, header": lambda: SequenceWrapper("abcde").shuffle().set_seed(1).header(2),
    "concat of shuffles": lambda: shuffled(1).concat(shuffled(2), shuffled(3)),
    "a part of a concat": lambda: shuffled(1).concat(shuffled(2)).header(5),
    "SampleMultiplexer of shuffles": lambda: SampleMultiplexer(
        {shuffled(1): 9, shuffled(2): 1}, seed=1
    ),
    "mux_longest of shuffles": lambda: shuffled(1).header(2).mux_longest(shuffled(2)),
    "cycle": lambda: shuffled(1).cycle(2).shuffle(buffer_size=3).set_seed(2),
    "cycle, header": lambda: shuffled(1).cycle(2).header(7),
    "a branch and a shuffle of its sister": lambda: first_shuffled(*digits().fork(2)),
    "branches of branches": lambda: branches_of_branches(*shuffled(1).fork(2)),
    "branches beside branches of a sister": lambda: beside_a_sister(*shuffled(1).fork(2)),
    "groups and branches of branches": lambda: branches_of_branches(*shuffled(1).demux(2, is_low)),
    "a branch before rounds of its sister": lambda: before_rounds(*shuffled(1).fork(2)),
    "groups of rounds of a sister": lambda: before_rounds(*shuffled(1).demux(2, is_low)),
    **{
        f"branches of branches of {name} that is off": lambda off=off: branches_of_branches(
            *off().map(int).fork(2)
        )
        for name, off in {
            "a shuffle": lambda: shuffled(1).set_shuffle(False),
            "a shuffle of a map": lambda: SequenceWrapper(range(5)).shuffle().set_shuffle(False),
            "a shuffle in batches": lambda: (
                digits().batch(2).in_batch_shuffle().set_shuffle(False).unbatch()
            ),
            "shuffled parts": lambda: (
                digits().shuffled_flatmap(twice, buffer_size=3).set_shuffle(False)
            ),
        }.items()
    },
}


def before_rounds(first: Any, second: Any) -> Any:
    return first.concat(second.cycle(2).batch(2))


def after_rounds_of_a_batch() -> Any:
    first, second = shuffled(1).fork(2)
    # The batch is made again from its first item, where its branch has no place yet.
    batches = second.batch(9).in_batch_shuffle().set_seed(2)
    third, fourth = first.concat(batches.unbatch()).fork(2)
    return fourth.concat(third.cycle(2))


def twice(digit: int) -> list[int]:
    return [digit, digit]


def is_low(digit: int) -> bool:
    return digit < 4


def first_shuffled(first: Any, second: Any) -> Any:
    return shuffled(1, first).concat(second)


def beside_a_sister(first: Any, second: Any) -> Any:
    # The sister's branch ends the round, before the first one is read.
    third, fourth = second.fork(2)
    return third.map(str).zip(first.filter(is_digit), fourth)


def is_digit(digit: int) -> bool:
    return digit >= 0


def branches_of_branches(first: Any, second: Any) -> Any:
    return first.groupby(is_low, group_size=2).concat(*second.fork(2))


def longest_of(first: Any, second: Any) -> Any:
    return first.header(2).map(int).mux_longest(second.map(str))


def shuffled(seed: int, source: Any = None) -> Any:
    return (source or digits()).shuffle(buffer_size=4).set_seed(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROUNDS)
def test_all_rounds_after_the_one_that_went_on_are_whole(name: str) -> None:
    assert_goes_on(lambda: ROUNDS[name]().cycle(3))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROUNDS)
def test_all_rounds_after_the_one_that_went_on_twice_are_whole(name: str) -> None:
    assert_goes_on_twice(lambda: ROUNDS[name]().cycle(2))


def test_a_reader_that_begins_anew_knows_where_the_other_branches_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    assert_goes_on(after_rounds_of_a_batch)
    assert_goes_on_twice(after_rounds_of_a_batch)


def test_others_go_on_when_all_rounds_are_over() -> None:
    def graph() -> Any:
        first, second = shuffled(1).fork(2)
        return IterableWrapper(range(15)).mux_longest(first.concat(second).cycle(1))

    assert_goes_on(graph)
    assert_goes_on_twice(graph)
    with noting_at_every_item(), DataLoader2(graph()) as loader:
        along = [(item, loader.state_dict()) for item in loader]
    items = [item for item, _ in along]
    for step, (_, state) in enumerate(along, 1):
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            assert list(loader) == items[step:]


def test_rounds_go_on_beside_a_branch_that_ended_in_the_first_of_them() -> None:
    def graph() -> Any:
        first, second = shuffled(1).fork(2)
        # The second round is a later pass, which the first branch is not in.
        return tens().mux_longest(second).cycle(2).zip_longest(first)

    assert_goes_on(graph)
    assert_goes_on_twice(graph)


async def soon(item: int) -> int:
    await asyncio.sleep(0)
    return item


def test_a_branch_is_where_the_source_is_that_reads_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Both shares read the same branch, far ahead of the concat.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)

    def graph() -> Any:
        first, second = IterableWrapper(range(20)).fork(2)
        ahead = second.map(soon).async_map(soon, concurrency=2)
        shares = ahead.random_split({"a": 1, "b": 1}, seed=1, total_length=20)
        return first.concat(*shares)

    with DataLoader2(graph()) as loader:
        taken = [(item, loader.state_dict(include_datapipe=False)) for item in loader]
    items, states = zip(*taken, strict=True)
    assert len(items) == 40
    for step, state in enumerate(states, 1):
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            assert tuple(loader) == items[step:]


def test_a_branch_that_was_read_to_its_end_ahead_is_where_its_present_reader_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_left, leave = threading.Event(), SplitPass.leave

    def leaving(split: SplitPass[Any], index: int) -> None:
        leave(split, index)
        if index == 1:
            has_left.set()

    monkeypatch.setattr(SplitPass, "leave", leaving)
    # The loader and the splitter note their places at every item, and others none.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    note = cursor_history.CursorHistory.note

    def note_of_loader(history: cursor_history.CursorHistory, count: int) -> None:
        edge = getattr(history._put, "__self__", None)
        if isinstance(getattr(edge, "pipe", None), Concater):
            note(history, count)

    monkeypatch.setattr(cursor_history.CursorHistory, "note", note_of_loader)

    def graph() -> Any:
        first, second = digits().fork(2)
        ahead = second.map(soon).async_map(soon, concurrency=2)
        shares = ahead.random_split({"a": 1, "b": 1}, seed=1, total_length=5)
        return first.concat(*shares)

    with DataLoader2(graph()) as loader:
        items, states = [], []
        for item in loader:
            assert len(items) < 5 or has_left.wait(30)
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
    for step, state in enumerate(states, 1):
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            assert list(loader) == items[step:]
