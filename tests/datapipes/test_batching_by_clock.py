"""Batches that are closed by the clock: how full, how soon, and what of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncloader import DataLoader2, IterDataPipe, MultiProcessingReadingService, SnapshotError
from asyncloader.datapipes.iter import IterableWrapper

LONG = 60.0


class Arrivals(IterDataPipe[Any]):
    """Yield what is put in, when it is put in; an exception is raised, None is the end."""

    edges = ()

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def put(self, *items: Any) -> None:
        for item in items:
            self.queue.put_nowait(item)


async def test_a_batch_is_closed_when_it_is_full():
    arrivals = Arrivals()
    batches = aiter(arrivals.batch(3, max_wait=LONG))
    arrivals.put(1, 2, 3, 4)

    assert await anext(batches) == [1, 2, 3]
    await batches.aclose()


async def test_a_batch_is_closed_when_its_oldest_item_has_waited_long_enough():
    loop = asyncio.get_running_loop()
    arrivals = Arrivals()
    batches = aiter(arrivals.batch(100, max_wait=0.05))
    began = loop.time()
    arrivals.put(1, 2)

    assert await anext(batches) == [1, 2]
    assert 0.04 < loop.time() - began < LONG / 2

    # The clock starts with the next item, not with the end of the batch before.
    arrivals.put(3)
    assert await anext(batches) == [3]
    await batches.aclose()


async def test_the_last_batch_is_closed_by_the_end():
    arrivals = Arrivals()
    arrivals.put(1, 2, 3, None)

    assert [batch async for batch in arrivals.batch(2, max_wait=LONG)] == [[1, 2], [3]]


async def test_a_short_last_batch_may_be_left_out():
    arrivals = Arrivals()
    arrivals.put(1, 2, 3, None)

    assert [batch async for batch in arrivals.batch(2, True, max_wait=LONG)] == [[1, 2]]


class Odd(BaseException):
    """An error that is no Exception, as those of test runners are."""


@pytest.mark.parametrize("error", [ValueError, Odd])
async def test_items_before_an_error_come_first(error):
    arrivals = Arrivals()
    batches = aiter(arrivals.batch(5, max_wait=LONG))
    arrivals.put(1, 2, error("broken"))

    assert await anext(batches) == [1, 2]
    with pytest.raises(error, match="broken"):
        await anext(batches)


async def test_without_a_wait_a_batch_has_what_is_there():
    arrivals = Arrivals()
    batches = aiter(arrivals.batch(5, max_wait=0))
    arrivals.put(1)

    assert await anext(batches) == [1]
    await batches.aclose()


def test_a_plain_source_is_batched_in_a_for():
    assert list(IterableWrapper(range(5)).batch(2, max_wait=LONG)) == [[0, 1], [2, 3], [4]]
    assert list(IterableWrapper(range(4)).batch(2, wrapper_class=sum, max_wait=LONG)) == [1, 5]


@pytest.mark.parametrize("num_workers", [0, 1])
async def test_a_loader_runs_timed_batches(num_workers):
    graph = IterableWrapper(range(5)).map(str).batch(2, max_wait=LONG).map("".join)
    async with DataLoader2(
        graph, reading_service=MultiProcessingReadingService(num_workers)
    ) as loader:
        assert [batch async for batch in loader] == ["01", "23", "4"]
        assert [batch async for batch in loader] == ["01", "23", "4"]


PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
CHAINS = {
    "alone": lambda pipe: pipe,
    "prefetch": lambda pipe: pipe.prefetch(2),
    "prefetch and map": lambda pipe: pipe.prefetch(2).map(list),
    "async_map": lambda pipe: pipe.async_map(soon, concurrency=2),
}


async def soon(batch: Any) -> Any:
    await asyncio.sleep(0)
    return batch


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
async def test_limits_and_pauses_stop_between_batches_and_lose_none(chain, num_workers):
    graph = chain(IterableWrapper(range(10)).batch(2, max_wait=LONG))
    service = MultiProcessingReadingService(num_workers)
    async with DataLoader2(graph, reading_service=service) as loader:
        batches = aiter(loader)
        batches.limit(2)
        assert [batch async for batch in batches] == PAIRS[:2]
        batches.limit(None)
        batches.pause()
        assert [batch async for batch in batches] == []
        batches.resume()
        assert [batch async for batch in batches] == PAIRS[2:]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_for_has_the_same_batches(chain, num_workers):
    graph = chain(IterableWrapper(range(10)).batch(2, max_wait=LONG))
    service = MultiProcessingReadingService(num_workers)
    with DataLoader2(graph, reading_service=service) as loader:
        loader.limit(3)
        assert list(loader) == PAIRS[:3]
        loader.limit(None)
        assert list(loader) == PAIRS


async def test_a_batch_that_nobody_takes_holds_no_more_than_there_is_room_for():
    arrivals = Arrivals()
    batches = aiter(arrivals.batch(3, max_wait=LONG))
    arrivals.put(*range(10))
    assert await anext(batches) == [0, 1, 2]
    await asyncio.sleep(0.01)
    # Three are held; the rest waits where it is.
    assert arrivals.queue.qsize() >= 3
    assert [await anext(batches) for _ in range(2)] == [[3, 4, 5], [6, 7, 8]]
    await batches.aclose()


def test_there_is_no_length_and_no_snapshot():
    graph = IterableWrapper(range(5)).batch(2, max_wait=1)
    with pytest.raises(TypeError, match="closes batches after max_wait"):
        len(graph)
    with DataLoader2(graph) as loader, pytest.raises(SnapshotError, match="depends on time"):
        loader.state_dict()


@pytest.mark.parametrize(
    ("wait", "kind", "says"),
    [
        (-1, ValueError, "at least 0 seconds, got -1"),
        (float("nan"), ValueError, "at least 0 seconds, got nan"),
        ("soon", ValueError, "a number of seconds or \"adaptive\", got 'soon'"),
        ((1,), TypeError, "a number of seconds, got tuple"),
        (True, TypeError, "a number of seconds, got bool"),
    ],
)
def test_what_is_no_wait_is_refused(wait, kind, says):
    with pytest.raises(kind, match=says):
        IterableWrapper([1]).batch(2, max_wait=wait)
