"""A cancelled wait for an item loses nothing and doubles nothing."""

import asyncio
import gc
import itertools

import anyio
import pytest

from asyncloader import (
    DataLoader2,
    LoaderClosed,
    MultiProcessingReadingService,
    ReadingServiceInterface,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.workers.process.process import Process
from tests.leaks import worker_processes


class Stepping(IterDataPipe):
    """An async pipe that takes a varying number of turns of the loop for an item."""

    def __init__(self, source):
        self.source = source

    async def __aiter__(self):
        async for item in self.source:
            for _ in range(item % 5):
                await asyncio.sleep(0)
            yield item


async def double(number):
    await asyncio.sleep(0)
    return 2 * number


GRAPHS = {
    "sync": IterableWrapper(range(200)).map(lambda x: 2 * x),
    "async": Stepping(IterableWrapper(range(200))).map(double),
    "window": IterableWrapper(range(200)).async_map(double, concurrency=3),
    "ahead": IterableWrapper(range(200)).prefetch(3).map(lambda x: 2 * x),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
async def test_cancelling_at_every_turn_loses_and_doubles_nothing(graph):
    async with DataLoader2(graph) as loader:
        iterator = aiter(loader)
        items = []
        for turns in itertools.cycle(range(8)):
            task = asyncio.create_task(anext(iterator, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                item = await task
            except asyncio.CancelledError:
                continue
            if item is None:
                break
            items.append(item)
    assert items == [2 * x for x in range(200)]


async def test_a_deadline_around_the_next_item_loses_nothing():
    async with DataLoader2(Stepping(IterableWrapper(range(50)))) as loader:
        iterator = aiter(loader)
        items = []
        while True:
            try:
                async with asyncio.timeout(0):
                    items.append(await anext(iterator))
            except TimeoutError:
                continue
            except StopAsyncIteration:
                break
    assert items == list(range(50))


class SlowToStart(ReadingServiceInterface):
    """Waits at each moment until it is let go, and tells what was reached."""

    def __init__(self, log):
        self.log = log

    def __deepcopy__(self, memo):
        return self

    async def initialize(self, datapipe):
        self.log.append("initialize")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return datapipe

    async def finalize(self):
        self.log.append("finalize")
        await asyncio.sleep(0)
        self.log.append("finalized")


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancelled_start_is_rolled_back_and_may_be_tried_again(turns):
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToStart(log))
    task = asyncio.create_task(loader.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    await asyncio.wait([task])
    if cancelled and "initialize" in log:
        assert log == ["initialize", "finalize", "finalized"]
    assert [item async for item in loader] == [0, 1, 2]
    await loader.aclose()
    assert log.count("finalize") == log.count("initialize")


async def test_a_cancelled_close_is_finished_all_the_same():
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToStart(log))
    await loader.start()
    task = asyncio.create_task(loader.aclose())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["initialize", "finalize", "finalized"]


async def test_who_stops_waiting_for_anothers_close_does_not_disturb_it():
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToStart(log))
    await loader.start()
    closing = asyncio.create_task(loader.aclose())
    second = asyncio.create_task(loader.aclose())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not closing.done()
    second.cancel()
    await asyncio.wait([closing, second])
    assert second.cancelled()
    assert await closing is None
    assert log == ["initialize", "finalize", "finalized"]


class SlowToEnd(SlowToStart):
    """Takes many turns of the loop to be finalized."""

    async def finalize(self):
        self.log.append("finalize")
        for _ in range(20):
            await asyncio.sleep(0)
        self.log.append("finalized")


async def test_a_close_that_is_cancelled_again_and_again_is_finished_all_the_same():
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToEnd(log))
    await loader.start()
    task = asyncio.create_task(loader.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["initialize", "finalize", "finalized"]


async def test_a_close_in_a_cancelled_scope_of_anyio_is_finished_all_the_same():
    log = []
    with anyio.CancelScope() as scope:
        async with DataLoader2(IterableWrapper(range(3)), reading_service=SlowToEnd(log)):
            scope.cancel()
            await anyio.sleep(60)
    assert log == ["initialize", "finalize", "finalized"]


async def test_a_start_in_a_cancelled_scope_of_anyio_is_rolled_back():
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToEnd(log))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await loader.start()
    assert log == ["initialize", "finalize", "finalized"]
    assert [item async for item in loader] == [0, 1, 2]
    await loader.aclose()


async def test_a_loader_that_is_closed_while_it_starts_is_rolled_back():
    log = []
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=SlowToEnd(log))
    starting = asyncio.create_task(loader.start())
    await asyncio.sleep(0)
    assert log == ["initialize"]
    await loader.aclose()
    with pytest.raises(LoaderClosed):
        await starting
    assert log == ["initialize", "finalize", "finalized"]


def test_an_interrupt_that_strikes_while_workers_are_ended_comes_out_once(caplog, monkeypatch):
    wait, main_is_done = Process.wait, []

    async def struck(process):
        monkeypatch.setattr(Process, "wait", wait)
        raise KeyboardInterrupt

    async def main():
        graph = IterableWrapper(range(9)).sharding_filter()
        loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(2))
        try:
            async with loader:
                await anext(aiter(loader))
                monkeypatch.setattr(Process, "wait", struck)
        finally:
            main_is_done.append(asyncio.current_task().cancelling() == 0)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    gc.collect()
    assert main_is_done == [True], "not cancelled by the end of the loop"
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert not worker_processes()
