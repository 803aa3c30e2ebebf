"""A life with a feed is cancelled at each of its awaits: nothing is left, nobody waits on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, LoaderClosed, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.faults.test_d_sweep import stepped
from tests.leaks import leaves_nothing

#: What no wait here takes on the slowest machine.
LONG = 60.0

Life = Callable[[Feed, DataLoader2[Any]], Awaitable[None]]


async def double_soon(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def doubles(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


GRAPHS = {
    "map": lambda feed: feed.map(double_soon),
    "async_map": lambda feed: feed.async_map(double_soon, concurrency=2),
    "thread_map and batch": lambda feed: feed.thread_map(int, concurrency=1).batch(2, max_wait=0),
    "batch that does not wait": lambda feed: feed.batch(2).map(doubles),
    "batch and map": lambda feed: feed.batch(2, max_wait=0.001).map(doubles),
}


def loader_of(pipe: Any, num_workers: int) -> DataLoader2[Any]:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers))


@pytest.fixture(autouse=True, scope="module")
def _template() -> None:
    """The process that workers are forked from outlives every loader."""
    with loader_of(IterableWrapper([1]).sharding_filter(), 1) as loader:
        list(loader)


async def cancelled(work: Coroutine[Any, Any, Any], at: int) -> bool:
    """Whether the work was cancelled at its wait ``at``; it may have ended before."""
    task = asyncio.ensure_future(stepped(work, at, []))
    done, _ = await asyncio.wait([task], timeout=LONG)
    assert done, f"cancelled at its wait {at}, it did not end"
    return task.cancelled()


async def asked(feed: Feed, number: int) -> Any:
    """Ask as a client does, who has to hear something."""
    try:
        async with asyncio.timeout(LONG):
            return await feed.ask(number)
    except LoaderClosed as error:
        return error


async def serve(feed: Feed, loader: DataLoader2[Any]) -> None:
    async with feed.serve(loader):
        assert await feed.ask(1) is not None
        assert await feed.ask(2) is not None


async def serve_clients(
    feed: Feed, loader: DataLoader2[Any], clients: list[asyncio.Task[Any]]
) -> None:
    async with feed.serve(loader):
        clients += [asyncio.create_task(asked(feed, number)) for number in range(3)]
        await clients[-1]


async def iterate(feed: Feed, loader: DataLoader2[Any]) -> None:
    async with loader:
        left = 2
        async for answer in loader:
            answer.reply([0] * len(answer) if hasattr(answer, "__len__") else 0)
            left -= len(answer) if hasattr(answer, "__len__") else 1
            if left <= 0:
                break


@pytest.mark.sweep
@pytest.mark.parametrize("life", [serve, iterate])
@pytest.mark.parametrize(
    ("graph", "num_workers"),
    [*((graph, 0) for graph in GRAPHS.values()), (GRAPHS["batch and map"], 1)],
    ids=[*GRAPHS, "in a worker"],
)
async def test_a_server_cancelled_at_any_await_leaves_nothing_and_nobody_waiting(
    graph, num_workers, life: Life
):
    at, was_cancelled = 0, True
    while was_cancelled:
        with leaves_nothing():
            feed = Feed()
            clients = [asyncio.create_task(asked(feed, number)) for number in range(2)]
            was_cancelled = await cancelled(life(feed, loader_of(graph(feed), num_workers)), at)
            for client in clients:
                # Those that were accepted before anybody read the feed may wait for a reader.
                client.cancel()
            await asyncio.wait(clients)
        assert (feed.stats().queued, feed.stats().under_way) == (0, 0)
        at += 1
    assert at > 2


@pytest.mark.parametrize("num_workers", [0, 1])
async def test_after_a_server_that_was_cancelled_every_client_has_heard(num_workers):
    at, was_cancelled = 0, True
    while was_cancelled:
        feed = Feed()
        clients: list[asyncio.Task[Any]] = []
        loader = loader_of(GRAPHS["batch and map"](feed), num_workers)
        was_cancelled = await cancelled(serve_clients(feed, loader, clients), at)
        if clients:
            done, _ = await asyncio.wait(clients, timeout=LONG)
            assert len(done) == len(clients)
        at += 1
    assert [client.result() for client in clients] == [0, 2, 4]


@pytest.mark.parametrize(
    ("graph", "num_workers"),
    [*((graph, 0) for graph in GRAPHS.values()), (GRAPHS["batch and map"], 1)],
    ids=[*GRAPHS, "in a worker"],
)
async def test_a_request_cancelled_at_any_await_leaves_nothing_and_disturbs_nobody(
    graph, num_workers
):
    feed = Feed()
    async with feed.serve(loader_of(graph(feed), num_workers)):
        for turn in range(1, 31):
            # Whatever happens in so many rounds of the loop, then the client goes away.
            going = asyncio.create_task(feed.ask(1))
            staying = asyncio.create_task(asked(feed, 2))
            for _ in range(turn):
                await asyncio.sleep(0)
            going.cancel()
            await asyncio.wait([going])
            assert await staying in (2, 4)
        await feed.drain(LONG)
        stats = feed.stats()
    assert (stats.queued, stats.under_way, stats.failed) == (0, 0, 0)
    assert stats.answered + stats.cancelled == 60
