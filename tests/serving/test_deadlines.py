"""Deadlines of requests: who expires when, whoever else waits."""

from __future__ import annotations

import asyncio

import pytest

from asyncloader import DataLoader2, Feed

LONG = 60.0


async def expire(feed: Feed, timeout: float) -> None:
    with pytest.raises(TimeoutError, match="no answer within"):
        await feed.ask(timeout, timeout=timeout)


async def test_those_with_shorter_timeouts_expire_first_in_whatever_order_they_came():
    feed = Feed()
    ended: list[float] = []

    async def client(timeout: float) -> None:
        await expire(feed, timeout)
        ended.append(timeout)

    timeouts = [0.2, 0.05, 0.1, -1.0, 0.0]
    async with asyncio.timeout(LONG):
        await asyncio.gather(*map(client, timeouts))
    assert ended[2:] == [0.05, 0.1, 0.2]
    assert feed.stats().expired == 5


async def test_each_of_those_with_one_timeout_expires_at_its_own_time():
    feed, loop = Feed(), asyncio.get_running_loop()

    async def client(pause: float) -> float:
        await asyncio.sleep(pause)
        began = loop.time()
        await expire(feed, 0.1)
        return loop.time() - began

    async with asyncio.timeout(LONG):
        waits = await asyncio.gather(*[client(0.03 * number) for number in range(5)])
    # A timer may fire a clock tick early.
    assert min(waits) > 0.099


async def test_a_timeout_that_was_used_before_holds_again_after_everybody_was_answered():
    feed = Feed()
    async with feed.serve(
        DataLoader2(feed.async_map(asyncio.sleep, ordered=False)), drain_timeout=0
    ):
        for _ in range(2):
            assert await feed.ask(0, timeout=0.2) is None
            await asyncio.sleep(0.25)
            with pytest.raises(TimeoutError):
                await feed.ask(LONG, timeout=0.2)


async def test_any_number_of_different_timeouts():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(int))):
        for number in range(300):
            assert await feed.ask(number, timeout=LONG + number) == number
        asked = [feed.ask(number, timeout=LONG + number / 7) for number in range(300)]
        assert await asyncio.gather(*asked) == [*range(300)]


def test_a_timeout_holds_on_the_next_loop_too():
    feed = Feed()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            asyncio.run(feed.ask(1, timeout=0.01))
    assert feed.stats().expired == 2
