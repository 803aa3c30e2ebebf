"""Pipes with thousands of items at once let other tasks of their loop have their turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from functools import partial

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.waiting import do_nothing

COUNT = 2000
#: So many may begin or end in one turn of the loop.
AT_ONCE = 64


class NeverWaiting(IterDataPipe):
    """An async source that has its next item at once."""

    def __init__(self, note=do_nothing):
        self.note = note

    async def __aiter__(self):
        for number in range(10 * COUNT):
            self.note()
            yield number


class Turns:
    """Counts the turns of a loop, and what happens in each."""

    def __init__(self):
        self.number = 0
        self.seen = {"begun": Counter(), "ended": Counter()}

    def note(self, what):
        self.seen[what][self.number] += 1

    def total(self, what):
        return self.seen[what].total()

    def most(self, what):
        return max(self.seen[what].values())

    @contextlib.asynccontextmanager
    async def counted(self):
        async def count():
            while True:
                self.number += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        yield
        task.cancel()

    async def call(self, number):
        self.note("begun")
        try:
            await asyncio.Event().wait()
        finally:
            self.note("ended")


async def until(ready):
    while not ready():  # noqa: ASYNC110 - turns of the loop are what is counted
        await asyncio.sleep(0)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("source", [NeverWaiting, lambda: IterableWrapper(range(10 * COUNT))])
async def test_thousands_of_calls_begin_and_are_cancelled_in_many_turns_of_the_loop(
    source, ordered
):
    turns = Turns()
    graph = source().async_map(turns.call, concurrency=COUNT, ordered=ordered)
    async with turns.counted():
        async with DataLoader2(graph) as loader:
            reading = asyncio.create_task(anext(aiter(loader)))
            await until(lambda: turns.total("begun") == COUNT)
            reading.cancel()
        assert turns.total("ended") == COUNT
    assert turns.most("begun") <= 2 * AT_ONCE
    assert turns.most("ended") <= 2 * AT_ONCE


async def test_a_source_that_never_waits_is_read_ahead_in_many_turns_of_the_loop():
    turns = Turns()
    graph = NeverWaiting(partial(turns.note, "begun")).prefetch(COUNT)
    async with turns.counted(), DataLoader2(graph) as loader:
        items = aiter(loader)
        await anext(items)
        await until(lambda: turns.total("begun") >= COUNT)
    assert turns.most("begun") <= 2 * AT_ONCE


async def test_who_is_cancelled_while_it_cancels_many_leaves_none_running():
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(COUNT)]
    await asyncio.sleep(0)
    cancelling = asyncio.create_task(cancelled(tasks))
    await until(lambda: any(task.done() for task in tasks))
    assert not all(task.done() for task in tasks)
    cancelling.cancel()
    await asyncio.wait(tasks, timeout=10)
    assert all(task.cancelled() for task in tasks)
    assert cancelling.cancelled()


async def test_tasks_that_take_several_turns_to_end_are_waited_for():
    ended = []

    async def end_slowly(number):
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append(number)

    tasks = [asyncio.create_task(end_slowly(number)) for number in range(COUNT)]
    await asyncio.sleep(0)
    await cancelled(tasks)
    assert sorted(ended) == list(range(COUNT))


async def test_a_call_in_flight_is_few_objects_more_than_a_task():
    # A collection of garbage looks at each of them, and no other task has a turn meanwhile.
    async def call(number):
        await asyncio.sleep(1000)

    before = tracked()
    tasks = [asyncio.create_task(call(number)) for number in range(COUNT)]
    await asyncio.sleep(0)
    of_task = (tracked() - before) / COUNT
    await cancelled(tasks)
    del tasks

    turns = Turns()

    async def noted(number):
        turns.note("begun")
        await asyncio.sleep(1000)

    graph = IterableWrapper(range(10 * COUNT)).async_map(noted, concurrency=COUNT)
    async with DataLoader2(graph) as loader:
        before = tracked()
        reading = asyncio.create_task(anext(aiter(loader)))
        await until(lambda: turns.total("begun") == COUNT)
        of_call = (tracked() - before) / COUNT
        reading.cancel()
    # The coroutine around the user's, the callback at its end, and a little for the rest.
    assert of_call < of_task + 2.5


def tracked():
    gc.collect()
    return len(gc.get_objects())
