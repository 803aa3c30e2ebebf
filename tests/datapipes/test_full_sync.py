"""fullsync on ranks that meet at a table of this process; test_distributed has real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncloader.datapipes.full_sync import MOST_ROOM, AgreedAhead, FullSync, FullSyncPass, Meeting
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.errors import RankError
from asyncloader.waiting import Stopped
from tests.table import Table


def reading(source: Any, meeting: Meeting, position: int = 0) -> AgreedAhead[Any]:
    """Return what reads ahead in a fullsync on one rank, whose pass begins at ``position``."""
    pipe = FullSync[Any](source)
    pipe.meeting = meeting
    running = FullSyncPass[Any](Edge(pipe, RunTree()))
    running.resume_at(position, None, {})
    return AgreedAhead(running, meeting)


async def passed(meeting: Meeting, source: Any) -> list[Any]:
    """Return what passes a fullsync on one rank."""
    ahead = reading(source, meeting)
    items: list[Any] = []
    async with ahead.running("fullsync"):
        while await ahead.has_next():
            items += ahead.take()
    return items


async def test_many_items_share_an_agreement():
    table = Table(2)
    count = 20 * MOST_ROOM
    sources = [IterableWrapper(range(count)), IterableWrapper(range(count + 5))]
    items = await asyncio.gather(*map(passed, table.meetings(), sources))
    assert items == [list(range(count))] * 2
    assert len(table.said[0]) < count / 10


async def test_a_consumer_that_takes_its_time_holds_few():
    read: list[int] = []

    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            for number in range(100):
                read.append(number)
                yield number

    (meeting,) = Table(1).meetings()
    ahead = reading(Source(), meeting)
    taken = 0
    async with ahead.running("fullsync"):
        for _ in range(10):
            # It asks for more when more has long been there.
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(read) <= taken + 3
            assert ahead.agreed
            assert await ahead.has_next()
            taken += len(ahead.take())


async def test_an_item_is_not_held_back_for_company():
    table = Table(2)
    more = asyncio.Event()

    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            yield 0
            await more.wait()
            yield 1

    aheads = [reading(Source(), meeting) for meeting in table.meetings()]
    one, other = aheads
    async with one.running("one"), other.running("other"):
        assert all(await asyncio.gather(*(each.has_next() for each in aheads)))
        assert [each.take() for each in aheads] == [[0], [0]]
        more.set()
        assert all(await asyncio.gather(*(each.has_next() for each in aheads)))
        assert [each.take() for each in aheads] == [[1], [1]]
        assert not any(await asyncio.gather(*(each.has_next() for each in aheads)))


async def test_an_error_beyond_the_shortest_share_is_never_met():
    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            for number in range(9):
                yield number
            raise LookupError("no item 9")

    sources = [Source(), IterableWrapper(range(4))]
    items = await asyncio.gather(*map(passed, Table(2).meetings(), sources))
    assert items == [[0, 1, 2, 3]] * 2


async def test_a_source_that_cannot_begin_fails_on_all_ranks():
    class Source(IterDataPipe[int]):
        def __aiter__(self):
            raise LookupError("no source")

    sources = [IterableWrapper(range(4)), Source()]
    failures = await asyncio.gather(
        *map(passed, Table(2).meetings(), sources), return_exceptions=True
    )
    assert [type(failure) for failure in failures] == [RankError, LookupError]
    assert "rank 1 failed" in str(failures[0])


class Odd(BaseException):
    """An error that is no Exception, as those of test runners are."""


@pytest.mark.parametrize("error", [Stopped, Odd, SystemExit, GeneratorExit])
async def test_whatever_ends_a_source_ends_the_epoch_on_all_ranks(error):
    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            yield 0
            raise error

    sources = [IterableWrapper(range(4)), Source()]
    async with asyncio.timeout(10):
        failures = await asyncio.gather(
            *map(failure_of, Table(2).meetings(), sources), return_exceptions=True
        )
    assert [type(failure) for failure in failures] == [RankError, error]
    assert "rank 1 failed" in str(failures[0])


async def failure_of(meeting: Meeting, source: Any) -> BaseException | None:
    """Return what ends the epoch on one rank; a task that raised some errors would end the loop."""
    try:
        await passed(meeting, source)
    except BaseException as failure:  # noqa: BLE001 - it is looked at
        return failure
    return None


async def test_an_error_comes_after_the_items_before_it_on_every_rank():
    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            for number in range(3):
                yield number
            raise LookupError("no item 3")

    table = Table(3)
    sources = [IterableWrapper(range(9)), Source(), IterableWrapper(range(5))]
    seen: list[list[int]] = [[], [], []]

    async def note(rank: int, meeting: Meeting) -> None:
        ahead = reading(sources[rank], meeting)
        async with ahead.running("fullsync"):
            while await ahead.has_next():
                seen[rank] += ahead.take()

    failures = await asyncio.gather(
        *(note(rank, meeting) for rank, meeting in enumerate(table.meetings())),
        return_exceptions=True,
    )
    assert [type(failure) for failure in failures] == [RankError, LookupError, RankError]
    assert seen == [[0, 1, 2]] * 3


@pytest.mark.parametrize("counts", [[3, 1, 2], [1, 1], [40, 1], [1, 2 * MOST_ROOM + 1]])
async def test_a_share_that_has_ended_is_padded_with_its_last_item(counts):
    meetings = Table(len(counts)).meetings("pad")
    sources = [IterableWrapper(range(count)) for count in counts]
    found = await asyncio.gather(*map(passed, meetings, sources))
    for count, items, meeting in zip(counts, found, meetings, strict=True):
        assert items == [*range(count)] + [count - 1] * (max(counts) - count)
        assert meeting.own_items == count


async def test_a_share_that_is_resumed_knows_how_many_items_it_has():
    async def rest(meeting: Meeting) -> list[Any]:
        ahead = reading(IterableWrapper(range(5)), meeting, position=3)
        async with ahead.running("fullsync"):
            items: list[Any] = []
            while await ahead.has_next():
                items += ahead.take()
            return items

    meetings = Table(2).meetings("pad")
    assert await asyncio.gather(*map(rest, meetings)) == [[3, 4]] * 2
    assert [meeting.own_items for meeting in meetings] == [5, 5]


async def test_what_the_consumer_changes_in_the_last_item_is_not_in_the_padding():
    async def changed(meeting: Meeting, source: Any) -> list[Any]:
        ahead = reading(source, meeting)
        seen = []
        async with ahead.running("fullsync"):
            while await ahead.has_next():
                seen += [item.pop("label") for item in ahead.take()]
        return seen

    sources = [IterableWrapper([{"label": number} for number in range(count)]) for count in (1, 4)]
    found = await asyncio.gather(*map(changed, Table(2).meetings("pad"), sources))
    assert found == [[0, 0, 0, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("counts", [[3, 0], [0, 1, 0]])
async def test_a_share_without_an_item_cannot_be_padded_and_is_named_on_every_rank(counts):
    sources = [IterableWrapper(range(count)) for count in counts]
    failures = await asyncio.gather(
        *map(passed, Table(len(counts)).meetings("pad"), sources), return_exceptions=True
    )
    empty = tuple(rank for rank, count in enumerate(counts) if not count)
    for failure in failures:
        assert isinstance(failure, RankError)
        assert failure.ranks == empty
        assert "no item at all" in str(failure)


async def test_shares_that_are_all_empty_need_no_padding():
    sources = [IterableWrapper([]), IterableWrapper([])]
    assert await asyncio.gather(*map(passed, Table(2).meetings("pad"), sources)) == [[], []]


async def test_an_error_that_comes_while_others_pad_is_raised_on_every_rank():
    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            for number in range(5):
                yield number
            raise LookupError("no item 5")

    sources = [IterableWrapper(range(2)), Source()]
    failures = await asyncio.gather(
        *map(passed, Table(2).meetings("pad"), sources), return_exceptions=True
    )
    assert [type(failure) for failure in failures] == [RankError, LookupError]
