"""What is asked of a feed wrongly: an error that says so, to whoever did it; nobody hangs."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader import (
    DataLoader2,
    Feed,
    LoaderClosed,
    LoaderError,
    LoopMismatchError,
    MultiProcessingReadingService,
    WorkerDied,
    WorkerStartupError,
)
from asyncloader.datapipes.iter import IterableWrapper

LONG = 60.0


@pytest.fixture(autouse=True, scope="module")
def _template() -> None:
    """The process that workers are forked from outlives every loader."""
    with DataLoader2(IterableWrapper([1]).sharding_filter(), reading_service=workers()) as loader:
        list(loader)


def workers(count: int = 1, **settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(count, **settings)


def double(number: Any) -> Any:
    return 2 * number


def same(item: Any) -> Any:
    return item


async def answer_to(item: Any, graph: Callable[[Feed], Any], service: Any = None) -> Any:
    feed = Feed()
    async with feed.serve(DataLoader2(graph(feed), reading_service=service)):
        return await feed.ask(item, timeout=LONG)


# Who asks -------------------------------------------------------------------------------


async def test_what_is_asked_before_anybody_serves_waits_for_it():
    feed = Feed()
    early = asyncio.create_task(feed.ask(3))
    await asyncio.sleep(0)
    assert feed.stats().queued == 1
    async with feed.serve(DataLoader2(feed.map(double))):
        assert await early == 6


async def test_what_is_asked_after_the_end_is_refused_at_once():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double))):
        pass
    with pytest.raises(LoaderClosed, match="takes no more requests"):
        await feed.ask(1)


async def test_asking_from_another_loop_is_an_error_there_and_harms_nobody_here():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double))):
        # Nothing is pending, so nothing but the reading itself says where the feed belongs.
        assert await feed.ask(1) == 2
        with pytest.raises(LoopMismatchError, match="ask on the loop that iterates its loader"):
            await asyncio.to_thread(lambda: asyncio.run(feed.ask(1)))
        assert await feed.ask(2) == 4


async def test_a_function_of_the_graph_that_asks_the_feed_itself_is_told_so():
    feed = Feed()
    graph = feed.map(lambda item: asyncio.run(feed.ask(item)))
    async with feed.serve(DataLoader2(graph)):
        with pytest.raises(LoopMismatchError, match="ask on the loop"):
            await feed.ask(1, timeout=LONG)


async def test_a_loader_that_is_read_by_for_is_told_that_nobody_can_ask():
    feed = Feed()

    def read(graph: Any) -> None:
        with pytest.raises(LoopMismatchError, match="where nobody can ask: use `async for`"):
            list(graph)

    loader = DataLoader2(feed.map(double))
    await asyncio.to_thread(read, loader)
    await loader.aclose()
    await asyncio.to_thread(read, feed.map(double))
    # It harms nobody on this loop.
    async with feed.serve(DataLoader2(feed.map(double))):
        assert await feed.ask(1, timeout=LONG) == 2


def test_a_loop_that_is_gone_takes_its_requests_along():
    feed = Feed(max_pending=2)
    gone = asyncio.new_event_loop()
    lost = [gone.create_task(feed.ask(number)) for number in range(2)]
    gone.run_until_complete(asyncio.sleep(0))
    for task in lost:
        task._log_destroy_pending = False
    gone.close()

    async def main() -> Any:
        async with feed.serve(DataLoader2(feed.map(double))):
            return await asyncio.gather(feed.ask(3, timeout=LONG), feed.ask(4, timeout=LONG))

    assert asyncio.run(main()) == [6, 8]
    # They are dropped here, and not in the middle of another test.
    del lost, task
    gc.collect()


# Who answers ----------------------------------------------------------------------------


async def test_a_second_server_is_refused_when_it_is_entered_and_harms_the_first_in_nothing():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double))):
        with pytest.raises(
            LoaderError, match="being read already by another loader; give each loader a feed"
        ):
            await feed.serve(DataLoader2(feed.map(same))).__aenter__()
        assert await feed.ask(1) == 2


async def test_a_server_whose_epoch_cannot_begin_says_so_to_all():
    def broken(pipe: Any, info: Any, seeds: Any) -> Any:
        raise ArithmeticError("broken")

    feed = Feed()
    service = workers(worker_reset_fn=broken)
    server = feed.serve(DataLoader2(feed.map(double), reading_service=service))
    await server.__aenter__()
    with pytest.raises(WorkerStartupError, match="broken"):
        await feed.ask(1, timeout=LONG)
    with pytest.raises(LoaderClosed, match="no longer read, after WorkerStartupError"):
        await feed.ask(2, timeout=LONG)
    with pytest.raises(WorkerStartupError, match="broken"):
        await server.__aexit__(None, None, None)


async def test_a_server_that_cannot_start_leaves_the_feed_to_another():
    def broken(pipe: Any, info: Any) -> Any:
        raise ArithmeticError("broken")

    feed = Feed()
    service = workers(worker_init_fn=broken)
    with pytest.raises(WorkerStartupError, match="broken"):
        await feed.serve(DataLoader2(feed.map(double), reading_service=service)).__aenter__()
    with pytest.raises(LoaderClosed, match="could not be started"):
        await feed.ask(1, timeout=LONG)
    async with feed.serve(DataLoader2(feed.map(double))):
        assert await feed.ask(1) == 2


@pytest.mark.parametrize("end", ["limit", "aclose"])
async def test_when_the_loader_of_a_server_hands_out_no_more_everybody_hears(end):
    feed = Feed()
    loader = DataLoader2(feed.map(double))
    if end == "limit":
        loader.limit(1)
    async with feed.serve(loader):
        assert await feed.ask(1) == 2
        if end == "aclose":
            await loader.aclose()
        for _ in range(2):
            with pytest.raises(LoaderClosed):
                await feed.ask(2, timeout=LONG)


async def test_a_feed_cannot_be_sent_to_a_worker():
    feed = Feed()
    with pytest.raises(WorkerStartupError, match="a Feed belongs to its process"):
        await feed.serve(
            DataLoader2(feed.map(lambda item: feed.stats()), reading_service=workers())
        ).__aenter__()


# What is answered -----------------------------------------------------------------------


@pytest.mark.parametrize("service", [None, workers()], ids=["here", "in a worker"])
async def test_an_exception_that_is_returned_is_an_answer(service):
    answer = await answer_to("text", lambda feed: feed.map(ValueError), service)
    assert type(answer) is ValueError
    assert answer.args == ("text",)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, asyncio.CancelledError])
async def test_a_request_that_is_failed_with_what_ends_something_else_just_fails(kind):
    feed = Feed()
    async with DataLoader2(feed.map(double)) as loader:
        asked = asyncio.create_task(feed.ask(1, timeout=LONG))
        async for request in loader:
            request.fail(kind())
            break
        with pytest.raises(RuntimeError, match=f"was failed with {kind.__name__}"):
            await asked


def interrupt(item: Any) -> Any:
    if item == "interrupt":
        raise KeyboardInterrupt
    return item


async def test_an_interrupt_in_a_worker_is_an_error_like_any_other():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(interrupt), reading_service=workers())):
        with pytest.raises(RuntimeError, match="raised KeyboardInterrupt"):
            await feed.ask("interrupt", timeout=LONG)
        assert await feed.ask("next", timeout=LONG) == "next"


def test_an_interrupt_here_interrupts():
    # It is the user who presses Ctrl-C in a function that runs in this process.
    async def main() -> None:
        feed = Feed()
        async with feed.serve(DataLoader2(feed.map(interrupt))):
            await feed.ask("interrupt", timeout=LONG)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


async def test_a_worker_that_leaves_is_a_death():
    def leave(item: Any) -> Any:
        raise SystemExit(3)

    feed = Feed()
    service = workers(on_worker_death="raise")
    server = feed.serve(DataLoader2(feed.map(leave), reading_service=service))
    await server.__aenter__()
    with pytest.raises(WorkerDied, match="exited with code 3"):
        await feed.ask(1, timeout=LONG)
    # There was but one.
    with pytest.raises((WorkerDied, LoaderClosed)):
        await feed.ask(2, timeout=LONG)
    with pytest.raises(WorkerDied):
        await server.__aexit__(None, None, None)


async def test_what_cannot_be_pickled_is_named_by_its_own_type():
    for graph, item in (
        (lambda feed: feed.map(lambda item: threading.Lock()), 1),
        (lambda feed: feed.map(same), threading.Lock()),
    ):
        with pytest.raises(LoaderError, match=r"of type \S*lock .*could not be pickled"):
            await answer_to(item, graph, workers())


@pytest.mark.parametrize("kind", [bytes, bytearray, list])
async def test_a_request_of_many_megabytes_is_answered_and_those_beside_it_too(kind):
    large = kind(bytes(range(256))) * ((2 << 20) // 256)
    feed = Feed()
    service = workers(2, prefetch_bytes=6 << 20)
    async with feed.serve(DataLoader2(feed.map(same), reading_service=service)):
        asks = [feed.ask(large if n % 3 == 0 else n, timeout=LONG) for n in range(10)]
        for number, answer in enumerate(await asyncio.gather(*asks)):
            assert answer == (large if number % 3 == 0 else number)
            assert type(answer) is (kind if number % 3 == 0 else int)


class Untimely:
    """Is asked for its pickle after its client went away."""

    def __init__(self, entered: threading.Event, leave: threading.Event) -> None:
        self.padding = bytes(2 << 20)
        self.entered = entered
        self.leave = leave

    def __reduce__(self) -> Any:
        self.entered.set()
        self.leave.wait()
        return bytes, (10,)


async def test_a_loader_that_is_closed_while_a_thread_pickles_a_request_waits_for_it():
    entered, leave = threading.Event(), threading.Event()
    feed = Feed()
    service = workers()
    async with DataLoader2(feed.map(len), reading_service=service) as loader:
        items = aiter(loader)
        waiting = asyncio.ensure_future(anext(items))
        asked = asyncio.create_task(feed.ask(Untimely(entered, leave)))
        await asyncio.to_thread(entered.wait)
        waiting.cancel()
        asyncio.get_running_loop().call_later(0.05, leave.set)
        await items.aclose()
        with pytest.raises(LoaderClosed, match="when its loader was closed"):
            await asked
        # What the thread had begun is over, and the worker understands what comes next.
        again = asyncio.create_task(feed.ask(bytes(3 << 20)))
        async for request in loader:
            request.reply(request.data)
            break
        assert await again == 3 << 20
