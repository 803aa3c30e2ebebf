"""Meetings of ranks, at a table of this process."""

from __future__ import annotations

import asyncio

import pytest

from asyncloader import DataLoader2, DistributedReadingService
from asyncloader.datapipes.full_sync import Meeting
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.errors import RankError, SnapshotError
from asyncloader.ranks import (
    Alone,
    Flags,
    Statement,
    Topic,
    open_group,
    ranks_in_words,
)
from tests.table import Table, Tables, on_rank


@pytest.mark.parametrize(
    "statement",
    [
        Statement(0, Topic.GRAPH, count=2**64 - 1),
        Statement(7, Topic.SEED, count=2**63, flags=Flags.CHOSEN),
        Statement(2**40, Topic.WINDOW, 3, 0, Flags.ENDED | Flags.FAILED),
    ],
)
def test_a_statement_is_five_signed_numbers_of_64_bits(statement):
    words = statement.words()
    assert len(words) == 5
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert Statement.from_words(words) == statement


def test_ranks_are_named():
    assert ranks_in_words([2]) == "rank 2"
    assert ranks_in_words([0, 1, 5]) == "ranks 0, 1 and 5"


async def test_all_hear_what_each_says():
    meetings = Table(3).meetings()
    said = await asyncio.gather(
        *(meeting.agree(Topic.GRAPH, count=10 + rank) for rank, meeting in enumerate(meetings))
    )
    assert [[each.count for each in heard] for heard in said] == [[10, 11, 12]] * 3


async def test_who_counted_fewer_epochs_catches_up():
    first, second = Table(2).meetings()
    first.epoch = 4
    said = await asyncio.gather(
        first.begin_epoch(1, Flags.NONE), second.begin_epoch(2, Flags.CHOSEN)
    )
    assert said[0] == said[1]
    assert [(each.epoch, each.count, each.flags) for each in said[0]] == [
        (5, 1, Flags.NONE),
        (5, 2, Flags.CHOSEN),
    ]


@pytest.mark.parametrize("windows", [1, 2, 5])
async def test_windows_that_were_abandoned_do_not_meet_the_next_epoch(windows):
    first, second = Table(2).meetings()
    await asyncio.gather(first.begin_epoch(1, Flags.NONE), second.begin_epoch(1, Flags.NONE))
    for window in range(windows - 1):
        await asyncio.gather(
            first.agree(Topic.WINDOW, window=window),
            second.agree(Topic.WINDOW, window=window),
        )
    # The second rank says one thing more, and its epoch is abandoned while it waits.
    waiting = asyncio.create_task(second.agree(Topic.WINDOW, window=windows - 1))
    await asyncio.sleep(0)
    waiting.cancel()
    said = await asyncio.gather(first.begin_epoch(8, Flags.NONE), second.begin_epoch(9, Flags.NONE))
    assert said[0] == said[1]
    assert [each.count for each in said[0]] == [8, 9]
    said = await asyncio.gather(first.agree(Topic.WINDOW), second.agree(Topic.WINDOW))
    assert said[0] == said[1]


async def test_who_is_left_behind_hears_of_it():
    first, second, third = Table(3).meetings()
    every = (first, second, third)
    await asyncio.gather(*(meeting.begin_epoch(1, Flags.NONE) for meeting in every))
    gone = [asyncio.create_task(meeting.begin_epoch(1, Flags.NONE)) for meeting in (first, third)]
    with pytest.raises(RankError, match="ranks 0 and 2 left the epoch that rank 1") as caught:
        await second.agree(Topic.WINDOW)
    assert caught.value.ranks == (0, 2)
    await asyncio.gather(*gone, second.begin_epoch(1, Flags.NONE))


async def test_one_rank_is_alone():
    group = await open_group(1.0)
    assert isinstance(group, Alone)
    said = await Meeting(group).begin_epoch(3, Flags.NONE)
    assert [each.count for each in said] == [3]
    await group.aclose()


async def test_states_of_ranks_of_which_one_has_seen_the_end_are_refused_together():
    def loader_on(rank):
        on_rank(rank)
        graph = IterableWrapper(range(4)).sharding_filter()
        service = DistributedReadingService(group=(rank, 2))
        return DataLoader2(graph, reading_service=service, acknowledge=True)

    has_saved = asyncio.Event()

    async def state_of(rank):
        async with loader_on(rank) as loader:
            items = aiter(loader)
            assert [await anext(items), await anext(items)] == [rank, 2 + rank]
            loader.ack(2)
            if rank:
                assert await anext(items, None) is None
                has_saved.set()
            else:
                await has_saved.wait()
            return loader.state_dict()

    with Tables(2).laid():
        states = await asyncio.gather(state_of(0), state_of(1))
        # It is not begun, as the other rank is not there.
        with pytest.raises(SnapshotError, match=r"rank 1 is of another moment.*between epochs"):
            loader_on(0).load_state_dict(states)


@pytest.mark.parametrize("uneven", ["drop", "error", "pad"])
async def test_nothing_is_padding_after_a_resume_but_what_a_rank_repeats(uneven):
    count = 9 if uneven == "pad" else 8

    def loader_on(rank):
        on_rank(rank)
        service = DistributedReadingService(group=(rank, 2), uneven=uneven)
        return DataLoader2(IterableWrapper(range(count)).sharding_filter(), reading_service=service)

    async def of_several_runs(rank):
        """Return what each of three runs yields that resume one from the other."""
        state, yielded = None, []
        for taken in (2, 1, None):
            async with loader_on(rank) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                items = aiter(loader)
                while taken != 0 and (item := await anext(items, None)) is not None:
                    yielded.append((item, loader.is_padding))
                    taken = taken and taken - 1
                state = loader.state_dict()
        return yielded

    with Tables(2).laid():
        found = await asyncio.gather(of_several_runs(0), of_several_runs(1))
    more = [[(8, False)], [(7, True)]] if uneven == "pad" else [[], []]
    shares = [[(item, False) for item in range(rank, 8, 2)] + more[rank] for rank in range(2)]
    assert found == shares


@pytest.mark.parametrize(
    ("differing", "message"),
    [
        ("uneven", r"uneven on rank 1 differs.*\(by rank: 'drop', 'pad', 'drop'\)"),
        ("length", r"data on rank 1 has another number of items.*\(by rank: 23, 24, 23\)"),
        ("fullsync", r"graph on rank 1 differs.*how many fullsync pipes.*\(by rank: 1, 2, 1\)"),
    ],
)
async def test_what_differs_on_one_rank_is_named_on_all_before_the_first_item(differing, message):
    async def started_on(rank):
        on_rank(rank)
        here = differing if rank == 1 else ""
        graph = IterableWrapper(range(24 if here == "length" else 23))
        graph = graph.fullsync().map(str) if here == "fullsync" else graph.map(str)
        # As many batches are no sign of as many items.
        graph = graph.shuffle().batch(2).sharding_filter()
        uneven = "pad" if here == "uneven" else "drop"
        service = DistributedReadingService(group=(rank, 3), uneven=uneven)
        async with DataLoader2(graph, reading_service=service):
            pass

    with Tables(3).laid():
        ranks = [started_on(rank) for rank in range(3)]
        errors = await asyncio.wait_for(asyncio.gather(*ranks, return_exceptions=True), 60)
    for error in errors:
        with pytest.raises(RankError, match=message):
            raise error
        assert error.ranks == (1,)


async def test_ranks_may_read_data_of_their_own_where_nothing_divides_it_among_them():
    async def read_on(rank):
        on_rank(rank)
        graph = IterableWrapper(range(4 + rank)).sharding_filter(
            SHARDING_PRIORITIES.MULTIPROCESSING
        )
        service = DistributedReadingService(group=(rank, 2))
        async with DataLoader2(graph, reading_service=service) as loader:
            return [item async for item in loader]

    with Tables(2).laid():
        assert await asyncio.gather(read_on(0), read_on(1)) == [[0, 1, 2, 3]] * 2
