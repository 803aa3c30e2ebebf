"""fullsync on ranks that meet at a table of this process; test_distributed has real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncloader.datapipes.full_sync import MOST_ROOM, AgreedAhead, Meeting
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.run import Run, RunTree
from asyncloader.errors import RankError
from asyncloader.waiting import Stopped
from tests.table import Table


def run_of(source: Any) -> Run[Any]:
    return Run(source, RunTree())


async def passed(meeting: Meeting, source: Any) -> list[Any]:
    """Return what passes a fullsync on one rank."""
    pipe = source.fullsync()
    ahead: AgreedAhead[Any] = AgreedAhead(run_of(pipe.source), meeting)
    tasks = [asyncio.create_task(ahead.fill()), asyncio.create_task(ahead.agree())]
    items: list[Any] = []
    try:
        while await ahead.has_next():
            items += ahead.take()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
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
    ahead: AgreedAhead[Any] = AgreedAhead(run_of(Source()), meeting)
    tasks = [asyncio.create_task(ahead.fill()), asyncio.create_task(ahead.agree())]
    taken = 0
    for _ in range(10):
        # It asks for more when more has long been there.
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(read) <= taken + 3
        assert ahead.agreed
        assert await ahead.has_next()
        taken += len(ahead.take())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_an_item_is_not_held_back_for_company():
    table = Table(2)
    more = asyncio.Event()

    class Source(IterDataPipe[int]):
        async def __aiter__(self):
            yield 0
            await more.wait()
            yield 1

    aheads = [AgreedAhead[Any](run_of(Source()), meeting) for meeting in table.meetings()]
    tasks = [asyncio.create_task(work) for each in aheads for work in (each.fill(), each.agree())]
    assert all(await asyncio.gather(*(each.has_next() for each in aheads)))
    assert [each.take() for each in aheads] == [[0], [0]]
    more.set()
    assert all(await asyncio.gather(*(each.has_next() for each in aheads)))
    assert [each.take() for each in aheads] == [[1], [1]]
    assert not any(await asyncio.gather(*(each.has_next() for each in aheads)))
    await asyncio.wait(tasks)


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
        ahead: AgreedAhead[Any] = AgreedAhead(run_of(sources[rank]), meeting)
        tasks = [asyncio.create_task(ahead.fill()), asyncio.create_task(ahead.agree())]
        try:
            while await ahead.has_next():
                seen[rank] += ahead.take()
        finally:
            await asyncio.wait(tasks, timeout=0.1)
            for task in tasks:
                task.cancel()

    failures = await asyncio.gather(
        *(note(rank, meeting) for rank, meeting in enumerate(table.meetings())),
        return_exceptions=True,
    )
    assert [type(failure) for failure in failures] == [RankError, LookupError, RankError]
    assert seen == [[0, 1, 2]] * 3
