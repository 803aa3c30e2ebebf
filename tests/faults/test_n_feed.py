"""Row N21: what those who ask a feed see agrees with what it counts."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, LoaderClosed

LONG = 60.0
CALLERS = 300


async def outcome(feed: Feed, item: int, timeout: float | None, **options: Any) -> str:
    """Return what a caller saw, by the name that the feed has for it."""
    try:
        answer = await feed.ask(item, timeout, **options)
    except TimeoutError:
        return "expired"
    except asyncio.CancelledError:
        return "cancelled"
    except ValueError:
        return "failed"
    return "answered" if answer == -item else f"{answer} for {item}"


def stand_still() -> None:
    """Keep the loop from its work until all deadlines have passed."""
    time.sleep(0.5)


def counted(feed: Feed) -> Counter[str]:
    stats = feed.stats()
    kinds = ("answered", "failed", "expired", "cancelled")
    return Counter({kind: getattr(stats, kind) for kind in kinds if getattr(stats, kind)})


async def settle(feed: Feed, how: str) -> None:
    """Answer as many requests as there are callers, in the tick in which their time is up."""
    async with DataLoader2(feed) as loader:
        held = []
        async for item in loader:
            held.append(item)
            if len(held) == CALLERS:
                break
        stand_still()
        # In its next turn the loop goes on here first, and comes to the deadlines then.
        await asyncio.sleep(0)
        for item in held:
            if how == "answered":
                item.reply(-item.data)
            else:
                item.fail(ValueError(f"refused {item.data}"))


@pytest.mark.parametrize("how", ["answered", "failed"])
async def test_n21_an_answer_in_the_tick_of_its_deadline_is_given(how):
    feed = Feed()
    async with asyncio.timeout(LONG), asyncio.TaskGroup() as group:
        asked = [group.create_task(outcome(feed, item, 0.4)) for item in range(CALLERS)]
        group.create_task(settle(feed, how))
    seen = Counter(task.result() for task in asked)
    assert seen == counted(feed) == {how: CALLERS}


async def test_n21_a_caller_that_goes_away_in_the_tick_of_its_answer_is_counted_once():
    feed = Feed()
    async with asyncio.timeout(LONG), asyncio.TaskGroup() as group:
        asked = [group.create_task(outcome(feed, item, None)) for item in range(CALLERS)]

        async def reply_and_cancel() -> None:
            async with DataLoader2(feed) as loader:
                left = CALLERS
                async for item in loader:
                    item.reply(-item.data)
                    asked[item.data].cancel()
                    left -= 1
                    if not left:
                        break

        group.create_task(reply_and_cancel())
    seen = Counter(task.result() for task in asked)
    assert seen == counted(feed) == {"cancelled": CALLERS}


def work(number: int) -> int:
    time.sleep(0.0005)
    if number % 7 == 0:
        raise ValueError(f"refused {number}")
    return -number


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
async def test_n21_thousands_of_callers_with_deadlines_like_their_answers(seed):
    luck = random.Random(seed)
    feed = Feed(max_pending=10_000)
    seen: Counter[str] = Counter()

    async def client(first: int) -> None:
        usual = 0.02
        for item in range(first, first + 60):
            begun = time.monotonic()
            # About as long as the last answer took, so that the two often meet.
            kind = await outcome(feed, item, usual * luck.uniform(0.9, 1.1))
            usual = 0.5 * usual + 0.5 * min(1.0, max(0.001, time.monotonic() - begun))
            seen[kind] += 1

    async with feed.serve(DataLoader2(feed.map(work))):
        await asyncio.gather(*(client(1000 * number) for number in range(50)))
        await feed.drain(LONG)
    assert seen == counted(feed)
    assert seen.total() == 3000
    assert min(seen["answered"], seen["failed"], seen["expired"]) > 0, seen


async def test_n21_requests_that_fail_in_the_tick_of_their_deadline_are_counted_so():
    feed = Feed()
    asked = [asyncio.create_task(feed.ask(item, 0.4)) for item in range(CALLERS)]
    await asyncio.sleep(0)
    stand_still()
    await asyncio.sleep(0)
    feed.fail_all(LoaderClosed("closed"))
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(result) for result in results} == {LoaderClosed}
    assert counted(feed) == {"failed": CALLERS}
