"""What a pass says of the calls that it waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import own_tree_of
from asyncloader.datapipes.running.watch.under_way import UnderWay, frames_of_task, stack_of


def under_way(pipe: Any) -> list[UnderWay]:
    return list(own_tree_of(pipe).latest_pass(pipe).under_way())


class Door:
    """A door that calls wait at, which says how many have come."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.all_there = threading.Event()
        self.opened = threading.Event()

    def come(self) -> None:
        self.left -= 1
        if not self.left:
            self.all_there.set()

    def pass_through(self, number: int) -> int:
        self.come()
        self.opened.wait(30.0)
        return number


@contextmanager
def iterated(pipe: Any, door: Door) -> Iterator[None]:
    """Iterate a pipe in another thread while the calls wait at the door."""
    own_tree_of(pipe)
    thread = threading.Thread(target=lambda: list(pipe))
    thread.start()
    try:
        assert door.all_there.wait(30.0)
        yield
    finally:
        door.opened.set()
        thread.join(30.0)


async def test_async_calls_are_named_with_their_items_and_stacks() -> None:
    door, came = asyncio.Event(), asyncio.Semaphore(0)

    async def inner() -> None:
        came.release()
        await door.wait()

    async def ask(number: int) -> int:
        if number:
            await inner()
        return number

    pipe = IterableWrapper(range(3)).async_map(ask)
    own_tree_of(pipe)
    items = aiter(pipe)
    assert await anext(items) == 0
    for _ in range(2):
        await came.acquire()
    first, second = under_way(pipe)
    assert (first.what, first.item, second.item, first.attempt) == ("async_map(ask)", 1, 2, 1)
    assert [line.rpartition(".")[2] for line in first.stack] == ["ask", "inner", "wait"]
    assert f"{__file__}:" in first.stack[0]
    assert first.seconds is not None
    door.set()
    assert [item async for item in items] == [1, 2]
    assert not under_way(pipe)


async def test_an_attempt_is_counted() -> None:
    door, came = asyncio.Event(), asyncio.Event()
    tries = []

    async def ask(number: int) -> int:
        tries.append(number)
        if len(tries) < 3:
            raise OSError("the server is away")
        came.set()
        await door.wait()
        return number

    pipe = IterableWrapper([5]).async_map(ask, retries=3, backoff=0.001)
    own_tree_of(pipe)
    items = aiter(pipe)
    following = asyncio.ensure_future(anext(items))
    await came.wait()
    assert [each.attempt for each in under_way(pipe)] == [3]
    assert str(under_way(pipe)[0]).startswith("async_map(ask, retries=3")
    door.set()
    assert await following == 5


def check_threads(make: Callable[[Door], Any]) -> None:
    door = Door(2)
    pipe = make(door)
    with iterated(pipe, door):
        calls = under_way(pipe)
        assert [each.item for each in calls] == [0, 1]
        assert all("pass_through" in "".join(each.stack) for each in calls)
        assert all(each.where.startswith("thread 'asyncloader") for each in calls)
        assert all(each.seconds is not None for each in calls)


def test_calls_in_threads_are_named_with_their_items_and_stacks() -> None:
    check_threads(
        lambda door: IterableWrapper(range(3)).thread_map(door.pass_through, concurrency=2)
    )


def test_calls_with_a_timeout_are_named_with_the_stack_of_who_makes_them() -> None:
    numbers = IterableWrapper(range(3))
    check_threads(lambda door: numbers.thread_map(door.pass_through, concurrency=2, timeout=60.0))


async def test_a_stack_leads_through_async_generators_and_tasks() -> None:
    door = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        await door.wait()
        yield 1

    async def read() -> int:
        return await anext(numbers())

    async def outer() -> int:
        return await asyncio.create_task(read())

    task = asyncio.create_task(outer())
    for _ in range(3):
        await asyncio.sleep(0)
    functions = [line.rpartition(" in ")[2].rpartition(".")[2] for line in stack(task)]
    assert functions == ["outer", "read", "numbers", "wait"]
    door.set()
    assert await task == 1


def stack(task: asyncio.Task[Any]) -> tuple[str, ...]:
    return stack_of(frames_of_task(task))
