"""How long a batch of requests is held back: for a time, or while the model is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed

LONG = 60.0

#: What comes before the batch: nothing, so that it takes its requests right from the feed, or a
#: pipe.
BEFORE: dict[str, Callable[[Feed], Any]] = {
    "feed": lambda feed: feed,
    "map": lambda feed: feed.map(int),
    "async_map": lambda feed: feed.async_map(soon, concurrency=100),
}

before = pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)


async def soon(item: Any) -> Any:
    await asyncio.sleep(0)
    return item


class Model:
    """Answers a batch when it is told to, and notes the sizes of those that it has begun."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._told = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def __call__(self, batch: list[int]) -> list[int]:
        self.sizes.append(len(batch))
        self._begun.release()
        self._told.acquire()
        return batch

    def answer(self, count: int) -> None:
        self._told.release(count)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, True, LONG)


@before
async def test_a_request_alone_does_not_wait_for_company(before):
    feed = Feed()
    async with feed.serve(DataLoader2(before(feed).batch(32).map(list))), asyncio.timeout(LONG):
        for number in range(10):
            assert await feed.ask(number) == number
    assert feed.stats().batch_fill == 1 / 32


@before
async def test_those_who_come_while_the_model_is_busy_are_the_next_batch(before):
    feed, model = Feed(), Model()
    async with feed.serve(DataLoader2(before(feed).batch(32, max_wait="adaptive").map(model))):
        first = asyncio.create_task(feed.ask(0))
        await model.has_begun()
        asked = []
        for number in range(1, 6):
            asked.append(asyncio.create_task(feed.ask(number)))
            # They come one by one.
            for _ in range(10):
                await asyncio.sleep(0)
        while feed.stats().queued + feed.stats().under_way < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.to_thread(int)
        assert model.sizes == [1]
        model.answer(6)
        assert await asyncio.gather(first, *asked) == [*range(6)]
    if before is BEFORE["map"]:
        # Its thread may still hold some when the model is idle again; nobody outside can tell.
        assert model.sizes[0] == 1
        assert sum(model.sizes) == 6
    else:
        assert model.sizes == [1, 5]


async def test_a_full_batch_does_not_wait_for_the_model():
    feed, model = Feed(), Model()
    loader = DataLoader2(feed.batch(2).map(model))
    async with feed.serve(loader):
        asked = [asyncio.create_task(feed.ask(number)) for number in range(6)]
        await model.has_begun()
        while feed.stats().queued:  # noqa: ASYNC110 - the feed tells nobody
            await asyncio.sleep(0)
        model.answer(3)
        assert await asyncio.gather(*asked) == [*range(6)]
    assert model.sizes == [2, 2, 2]


async def test_clients_who_ask_again_at_once_are_in_one_batch():
    feed = Feed()
    sizes = []

    def model(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        return batch

    async def client(number: int) -> None:
        for turn in range(20):
            assert await asyncio.wait_for(feed.ask((number, turn)), LONG) == (number, turn)

    async with feed.serve(DataLoader2(feed.batch(8).map(model))):
        await asyncio.gather(*map(client, range(8)))
    assert sum(sizes) == 160
    assert sizes[-10:] == [8] * 10


async def test_a_pipe_that_works_on_several_batches_gets_several():
    feed = Feed()
    both = asyncio.Event()
    begun = 0

    async def model(batch: list[int]) -> list[int]:
        nonlocal begun
        begun += 1
        if begun == 2:
            both.set()
        await both.wait()
        return batch

    async with feed.serve(DataLoader2(feed.batch(32).async_map(model, concurrency=2))):
        async with asyncio.timeout(LONG):
            first = asyncio.create_task(feed.ask(1))
            while not begun:  # noqa: ASYNC110 - set in the model
                await asyncio.sleep(0)
            assert await asyncio.gather(first, feed.ask(2)) == [1, 2]


async def test_a_model_in_a_task_of_ones_own_is_busy_until_it_replies():
    feed = Feed()
    async with DataLoader2(feed.batch(32)) as loader:
        batches = aiter(loader)
        asked = [asyncio.create_task(feed.ask(0))]
        busy = await anext(batches)
        following = asyncio.create_task(anext(batches))
        for number in range(1, 4):
            asked.append(asyncio.create_task(feed.ask(number)))
            for _ in range(10):
                await asyncio.sleep(0)
        assert not following.done()
        busy.reply(busy.data)
        batch = await following
        assert batch.data == [1, 2, 3]
        batch.fail(ArithmeticError("broken"))
        # It is idle again.
        asked.append(asyncio.create_task(feed.ask(4)))
        batch = await anext(batches)
        assert batch.data == [4]
        batch.reply(batch.data)
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(answer) for answer in found] == ["0", *["broken"] * 3, "4"]


async def test_the_model_is_idle_again_when_all_of_a_batch_were_given_up():
    feed, model = Feed(), Model()
    async with feed.serve(DataLoader2(feed.batch(32).map(model))):
        given_up = asyncio.create_task(feed.ask(1))
        await model.has_begun()
        given_up.cancel()
        await asyncio.wait([given_up])
        later = asyncio.create_task(feed.ask(2))
        model.answer(2)
        assert await asyncio.wait_for(later, LONG) == 2
    assert model.sizes == [1, 1]


async def test_those_who_wait_for_the_model_may_give_up():
    feed, model = Feed(), Model()
    async with feed.serve(DataLoader2(feed.batch(32).map(model))):
        first = asyncio.create_task(feed.ask(1))
        await model.has_begun()
        with pytest.raises(TimeoutError):
            await feed.ask(2, timeout=0.01)
        assert feed.stats().queued == 0
        third = asyncio.create_task(feed.ask(3))
        await asyncio.sleep(0)
        model.answer(2)
        assert await asyncio.gather(first, third) == [1, 3]
    assert model.sizes == [1, 1]


async def test_a_batch_that_an_earlier_loader_left_unanswered_holds_up_nobody():
    feed = Feed()
    async with DataLoader2(feed.batch(32)) as loader:
        asked = asyncio.create_task(feed.ask(1))
        left = await anext(aiter(loader))
    async with feed.serve(DataLoader2(feed.batch(32).map(list))):
        assert await asyncio.wait_for(feed.ask(2), LONG) == 2
    # It is answered late, or its loader was closed before.
    left.reply(left.data)
    await asyncio.wait([asked])
