"""Requests and their answers, with the graph in this process: identity, errors, limits, ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from asyncloader import (
    DataLoader2,
    Feed,
    IterDataPipe,
    LoaderClosed,
    LoaderError,
    LoopMismatchError,
    Overloaded,
    SnapshotError,
)
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.serving import feed as feed_module
from tests.leaks import leaves_nothing

LONG = 60.0


def double(number: int) -> int:
    return 2 * number


async def double_soon(number: int) -> int:
    await asyncio.sleep(random.random() * 0.002)
    return 2 * number


def odd_only(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def doubles(batch: list[int]) -> list[int]:
    return [2 * number for number in batch]


async def never(item: Any) -> Any:
    await asyncio.Event().wait()


class Plus(OneToOne, IterDataPipe[int]):
    """A user's own one-to-one pipe, which fails for some."""

    def __init__(self, source: Any, number: int) -> None:
        self.source = source
        self.number = number

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            yield odd_only(item) + self.number


class PlusSoon(OneToOne, IterDataPipe[int]):
    """One that waits."""

    def __init__(self, source: Any) -> None:
        self.source = source

    async def __aiter__(self) -> AsyncIterator[int]:
        async for item in self.source:
            yield item + await soon(1)


class Pairs(OneToOne, IterDataPipe[Any]):
    """A pipe that says it is one to one, and is not."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.source)
        for item in items:
            yield item, next(items)


class Twice(OneToOne, IterDataPipe[Any]):
    """Another one, whose second item is made of the same request as its first."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item
            yield -item


@contextlib.asynccontextmanager
async def answering(feed: Feed, loader: DataLoader2[Any]) -> AsyncIterator[asyncio.Task[None]]:
    """Reply to batches with twice their data, as a model task would."""

    async def model() -> None:
        async for batch in loader:
            batch.reply(doubles(batch.data))

    async with loader:
        task = asyncio.create_task(model())
        try:
            yield task
        finally:
            await feed.drain()
            await task


GRAPHS = {
    "alone": lambda feed: feed.map(double),
    "map": lambda feed: feed.map(double),
    "async map": lambda feed: feed.map(double_soon),
    "async_map": lambda feed: feed.async_map(double_soon, concurrency=8),
    "async_map, unordered": lambda feed: feed.async_map(double_soon, ordered=False),
    "thread_map": lambda feed: feed.thread_map(double, concurrency=3),
    "thread_map, unordered": lambda feed: feed.thread_map(double, concurrency=3, ordered=False),
    "batch": lambda feed: feed.batch(5, max_wait=0.001).map(doubles),
    "batch without a wait": lambda feed: feed.batch(5, max_wait=0).map(doubles),
    "batch and collate": lambda feed: feed.batch(5, max_wait=0.001).collate(doubles),
    "batch that does not wait": lambda feed: feed.batch(5).map(doubles),
    "map, batch that does not wait": lambda feed: feed.map(int).batch(5).thread_map(doubles),
    "prefetch": lambda feed: feed.prefetch(2).map(double).prefetch(2),
    "set_length": lambda feed: feed.set_length(3).map(double),
    "columns": lambda feed: feed.map(lambda n: (n, n)).map(double, 0).map(lambda pair: pair[0]),
    "map, async_map, thread_map, batch": lambda feed: (
        feed.map(str).async_map(soon).thread_map(int).batch(7, max_wait=0.001).map(doubles)
    ),
}


class Weighty:
    """Something of which one may ask whether it is still held."""


def another(item: Any) -> Weighty:
    return Weighty()


async def another_soon(item: Any) -> Weighty:
    return Weighty()


def end_of(thing: Any) -> asyncio.Event:
    """Return what is set when nobody holds the thing any more."""
    end = asyncio.Event()
    weakref.finalize(thing, asyncio.get_running_loop().call_soon_threadsafe, end.set)
    return end


LEAVING = {
    "map": lambda feed: feed.map(another),
    "async_map": lambda feed: feed.async_map(another_soon),
    "thread_map": lambda feed: feed.thread_map(another),
    "batch": lambda feed: feed.map(another).batch(4, max_wait=0.001),
    "prefetch": lambda feed: feed.map(another).prefetch(2),
}


@pytest.mark.parametrize("graph", LEAVING.values(), ids=LEAVING)
async def test_nothing_of_a_request_is_held_once_it_is_answered(graph):
    feed = Feed()
    async with feed.serve(DataLoader2(graph(feed))):
        for _ in range(2):
            asked = Weighty()
            answer = await feed.ask(asked)
            ends = [end_of(asked), end_of(answer)]
            del asked, answer
            async with asyncio.timeout(LONG):
                for end in ends:
                    await end.wait()


async def soon(item: Any) -> Any:
    await asyncio.sleep(random.random() * 0.002)
    return item


async def test_stats_and_errors_name_the_pipes_that_were_written():
    feed = Feed()
    graph = Plus(feed.map(double), 1).thread_map(double, concurrency=2)
    loader = DataLoader2(graph.batch(2, max_wait=0, wrapper_class=refused_list))
    async with feed.serve(loader):
        with pytest.raises(ArithmeticError) as caught:
            await feed.ask(1.5)
        names = [stage.name for stage in loader.stats().stages]
    batch = "batch(2, wrapper_class=refused_list, max_wait=0)"
    assert f"raised in {batch}" in caught.value.__notes__[0]
    written = ["Feed()", "map(double)", "Plus(1)", "thread_map(double, concurrency=2)", batch]
    assert names[:5] == written
    assert not {"Lockstep()", "Hand('Plus(1)')"} & {*names}


def refused_list(items: Any) -> Any:
    raise ArithmeticError("no list today")


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
async def test_every_request_gets_its_own_answer(graph):
    with leaves_nothing():
        feed = Feed()
        async with feed.serve(DataLoader2(graph(feed))):
            answers = await asyncio.gather(*[feed.ask(number) for number in range(200)])
        assert answers == [2 * number for number in range(200)]
        assert feed.stats().answered == 200


async def test_a_model_task_answers_batches():
    feed = Feed()
    async with answering(feed, DataLoader2(feed.map(double).batch(4, max_wait=LONG))):
        answers = await asyncio.gather(*[feed.ask(number) for number in range(12)])
    assert answers == [4 * number for number in range(12)]
    assert feed.stats().batch_fill == 1


async def test_a_model_task_answers_single_requests():
    feed = Feed()
    async with DataLoader2(feed.map(double)) as loader:
        asked = asyncio.create_task(feed.ask(4))
        async for request in loader:
            request.reply(request.data + 1)
            break
        assert await asked == 9


async def test_a_model_in_a_thread_may_reply_from_there():
    feed = Feed()
    async with DataLoader2(feed.batch(2, max_wait=LONG)) as loader:
        asked = asyncio.gather(feed.ask(4), feed.ask(5))
        async for batch in loader:
            await asyncio.to_thread(lambda batch=batch: batch.reply(doubles(batch.data)))
            break
        assert await asked == [8, 10]


# Errors ---------------------------------------------------------------------------------

FAILING = {
    "map": lambda feed: feed.map(odd_only),
    "async_map": lambda feed: feed.async_map(odd_only_soon),
    "thread_map": lambda feed: feed.thread_map(odd_only),
    "then batch": lambda feed: feed.map(odd_only).batch(4, max_wait=0.001),
    "a user's own pipe": lambda feed: Plus(feed, 0),
    "a user's own pipe, then batch": lambda feed: Plus(feed, 0).batch(4, max_wait=0.001),
}


async def odd_only_soon(number: int) -> int:
    await asyncio.sleep(0)
    return odd_only(number)


@pytest.mark.parametrize("graph", FAILING.values(), ids=FAILING)
async def test_an_error_reaches_only_its_own_request(graph):
    feed = Feed()
    async with feed.serve(DataLoader2(graph(feed))):
        asks = [feed.ask(number) for number in range(40)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 2:
            assert answer == number
        else:
            assert type(answer) is ValueError
            assert str(answer) == f"{number} is even"
    assert feed.stats().failed == 20


async def test_an_error_names_the_pipe():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(odd_only))):
        with pytest.raises(ValueError, match="2 is even") as failure:
            await feed.ask(2)
    assert failure.value.__notes__ == ["raised in map(odd_only)"]


async def test_an_error_that_refuses_notes_reaches_its_own_request():
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    def fail(item: Any) -> Any:
        raise Frozen(item)

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(fail))):
        for number in range(2):
            with pytest.raises(Frozen) as failure:
                await feed.ask(number)
            assert failure.value.args == (number,)
            assert failure.value.__notes__ == ["raised in map(fail)"]


async def test_a_timeout_that_is_no_number_is_refused():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double))):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, got str"):
            await feed.ask(1, timeout="5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be a number of seconds, got nan"):
            await feed.ask(1, timeout=float("nan"))
        with pytest.raises(TimeoutError):
            await feed.ask(1, timeout=-1.0)
        assert await feed.ask(1, timeout=float("inf")) == 2
    with pytest.raises(TypeError, match="drain_timeout must be a number of seconds"):
        feed.serve(DataLoader2(feed), drain_timeout="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got nan"):
        await Feed().drain(float("nan"))


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit])
async def test_what_ends_generators_is_an_error_like_any_other(kind):
    def stop(item: Any) -> Any:
        raise kind

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(stop))):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"raised {kind.__name__}"):
                await feed.ask(1)


async def test_a_batch_that_fails_fails_for_all_that_are_in_it():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.batch(3, max_wait=LONG).map(sum).map(odd_only))):
        answers = await asyncio.gather(*map(feed.ask, [1, 2, 5]), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["8 is even"] * 3


async def test_a_pipe_that_is_not_one_to_one_is_found_out():
    feed = Feed()
    async with feed.serve(DataLoader2(Pairs(feed))):
        with pytest.raises(LoaderError, match="not one to one"):
            await feed.ask(1)


async def test_nobody_gets_the_second_item_of_somebody_elses_request():
    feed = Feed()
    async with feed.serve(DataLoader2(Twice(feed))):
        assert await feed.ask(1) == 1
        with pytest.raises(LoaderError, match="not one to one"):
            await feed.ask(2)
        assert await feed.ask(3) == 3, "the pipe is iterated afresh"


async def test_a_graph_without_one_answer_per_request_is_found_out():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.batch(2, max_wait=LONG).map(sum))):
        answers = await asyncio.gather(feed.ask(1), feed.ask(2), return_exceptions=True)
    assert {type(answer) for answer in answers} == {LoaderError}
    assert "one answer per request" in str(answers[0])


@pytest.mark.parametrize(
    ("outputs", "kind", "says"),
    [
        ([1], ValueError, "one output for each of the 2 requests, got 1"),
        ([1, 2, 3], ValueError, "one output for each of the 2 requests, got 3"),
        ({1: 2, 3: 4}, TypeError, "got a dict"),
        (None, TypeError, "one output for each of the 2 requests, in their order, got a NoneType"),
        ({1, 2}, TypeError, "got a set"),
        ("ab", TypeError, "got a str"),
    ],
)
async def test_a_reply_that_does_not_fit_is_refused_and_may_be_given_again(outputs, kind, says):
    feed = Feed()
    async with DataLoader2(feed.batch(2, max_wait=LONG)) as loader:
        asked = asyncio.gather(feed.ask(1), feed.ask(2))
        async for batch in loader:
            with pytest.raises(kind, match=says):
                batch.reply(outputs)
            batch.reply(batch.data)
            with pytest.raises(RuntimeError, match="answered already"):
                batch.fail(ValueError())
            break
        assert await asked == [1, 2]


async def test_a_batch_may_be_failed():
    feed = Feed()
    async with DataLoader2(feed.batch(2, max_wait=LONG)) as loader:
        asked = asyncio.gather(feed.ask(1), feed.ask(2), return_exceptions=True)
        async for batch in loader:
            with pytest.raises(TypeError, match="got str"):
                batch.fail("broken")
            batch.fail(ArithmeticError("broken"))
            break
        assert [str(answer) for answer in await asked] == ["broken"] * 2


async def test_what_is_dropped_without_an_answer_fails():
    feed = Feed()
    async with DataLoader2(feed.map(double)) as loader:

        async def forget() -> None:
            async for _ in loader:
                pass

        forgetting = asyncio.create_task(forget())
        asked = asyncio.create_task(feed.ask(1))
        await asyncio.sleep(0.01)
        # The loop's variable held the first until the second came.
        last = asyncio.create_task(feed.ask(2))
        with pytest.raises(LoaderError, match="dropped without an answer"):
            await asked
        feed.close()
        with pytest.raises(LoaderError, match="dropped without an answer"):
            await last
        await forgetting


# Limits and those who go away -----------------------------------------------------------


async def test_a_full_feed_refuses_at_once():
    feed = Feed(max_pending=2)
    asked = [asyncio.create_task(feed.ask(number)) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 requests are pending"):
        await feed.ask(3)
    async with feed.serve(DataLoader2(feed.map(double))):
        assert await asyncio.gather(*asked) == [0, 2]
        assert await feed.ask(4) == 8
    assert feed.stats().refused == 1


async def test_under_overload_those_accepted_wait_for_no_more_than_max_pending_others():
    answered = refused = 0
    overtaken: list[int] = []

    async def client(number: int) -> None:
        nonlocal answered, refused
        for _ in range(40):
            before = answered
            try:
                assert await feed.ask(number) == 2 * number
            except Overloaded:
                refused += 1
                await asyncio.sleep(0)
            else:
                overtaken.append(answered - before)
                answered += 1

    feed = Feed(max_pending=8)
    async with feed.serve(DataLoader2(feed.map(double))), asyncio.TaskGroup() as group:
        for number in range(64):
            group.create_task(client(number))
    assert (answered, refused) == (feed.stats().answered, feed.stats().refused)
    assert answered + refused == 64 * 40
    assert refused > 0
    # Those before it in the feed, and those whose clients had not yet heard their answers.
    assert max(overtaken) < 2 * 8


async def test_requests_are_begun_in_the_order_in_which_they_were_asked():
    begun: list[str] = []

    def begin(name: str) -> str:
        begun.append(name)
        return name

    feed = Feed()
    names = [*(f"flood {n}" for n in range(50)), "one", *(f"flood {n}" for n in range(50, 100))]
    async with feed.serve(DataLoader2(feed.thread_map(begin, concurrency=1))):
        await asyncio.gather(*map(feed.ask, names))
    assert begun == names


async def test_stats_say_how_many_wait_for_how_long_and_how_full_batches_are():
    feed = Feed()
    asked = [asyncio.create_task(feed.ask(number)) for number in range(6)]
    await asyncio.sleep(0.01)
    before = feed.stats()
    assert (before.queued, before.under_way, before.answered) == (6, 0, 0)
    async with DataLoader2(feed.batch(4, max_wait=LONG)) as loader:
        feed.close()
        counts = []
        async for batch in loader:
            stats = feed.stats()
            counts.append((stats.queued + stats.under_way, stats.answered))
            batch.reply(batch.data)
            # An answer counts when its client has it.
            await asyncio.wait(asked[:4])
    assert counts == [(6, 0), (2, 4)]
    assert await asyncio.gather(*asked) == [*range(6)]
    stats = feed.stats()
    assert (stats.queued, stats.under_way, stats.answered) == (0, 0, 6)
    assert 0.009 < stats.mean_wait <= stats.longest_wait
    # A batch of four, and one of two that was closed by the end.
    assert stats.batch_fill == (1 + 0.5) / 2


async def test_a_request_that_waited_in_vain_times_out():
    feed = Feed(max_pending=1)
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            await feed.ask(1, timeout=0.01)
    assert feed.stats().expired == 3
    assert feed.stats().queued == 0


async def test_a_pipes_own_timeout_error_is_the_answer():
    def time_out(item: Any) -> Any:
        raise TimeoutError("the pipe's own")

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(time_out))):
        with pytest.raises(TimeoutError, match="the pipe's own"):
            await feed.ask(1, timeout=LONG)
    assert feed.stats().expired == 0


async def test_a_request_that_was_given_up_while_it_waited_is_never_begun():
    begun: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        entered.set()
        leave.wait()
        return number

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(work))):
        first = asyncio.create_task(feed.ask(1))
        second = asyncio.create_task(feed.ask(2))
        third = asyncio.create_task(feed.ask(3))
        await asyncio.to_thread(entered.wait)
        second.cancel()
        await asyncio.wait([second])
        leave.set()
        assert await asyncio.gather(first, third) == [1, 3]
    assert begun == [1, 3]
    assert feed.stats().cancelled == 1


async def test_a_request_under_way_that_was_given_up_holds_its_place_until_it_is_through():
    entered, leave = threading.Event(), threading.Event()

    def work(number: int) -> int:
        entered.set()
        leave.wait()
        return number

    feed = Feed(max_pending=1)
    async with feed.serve(DataLoader2(feed.map(work))):
        first = asyncio.create_task(feed.ask(1))
        await asyncio.to_thread(entered.wait)
        first.cancel()
        await asyncio.wait([first])
        with pytest.raises(Overloaded):
            await feed.ask(2)
        leave.set()
        await feed.drain()
    assert feed.stats().under_way == 0


async def test_clients_that_go_away_leave_nothing_and_disturb_nobody():
    chance = random.Random(5)
    feed = Feed(max_pending=256)
    graph = feed.thread_map(double, concurrency=2).batch(8, max_wait=0.001).map(doubles)

    async def client(number: int) -> None:
        for turn in range(50):
            asked = asyncio.create_task(feed.ask(1000 * number + turn))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.002)
                asked.cancel()
                await asyncio.wait([asked])
            elif chance.random() < 0.2:
                asked.cancel()
                await asyncio.wait([asked])
            else:
                assert await asked == 4 * (1000 * number + turn)
                answered.append(turn)

    answered: list[int] = []
    with leaves_nothing():
        async with feed.serve(DataLoader2(graph)):
            async with asyncio.TaskGroup() as group:
                for number in range(32):
                    group.create_task(client(number))
            await feed.drain(timeout=LONG)
            stats = feed.stats()
        assert (stats.queued, stats.under_way, stats.failed) == (0, 0, 0)
        assert stats.cancelled > 100
        assert stats.answered >= len(answered) > 500


# Ends -----------------------------------------------------------------------------------


async def test_leaving_finishes_what_was_accepted_and_refuses_what_is_new():
    leave = threading.Event()

    def work(number: int) -> int:
        leave.wait()
        return 2 * number

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(work).batch(3, max_wait=LONG))):
        asked = [asyncio.create_task(feed.ask(number)) for number in range(5)]
        await asyncio.sleep(0)
        feed.close()
        with pytest.raises(LoaderClosed, match="takes no more requests"):
            await feed.ask(7)
        leave.set()
    # Nobody waits for company in a feed that is closed.
    assert await asyncio.gather(*asked) == [0, 2, 4, 6, 8]


async def test_a_drain_has_an_end():
    entered, leave = threading.Event(), threading.Event()

    def work(number: int) -> int:
        entered.set()
        leave.wait()
        return number

    feed = Feed()
    server = feed.serve(DataLoader2(feed.map(work)), drain_timeout=0.05)
    await server.__aenter__()
    asked = asyncio.create_task(feed.ask(1))
    await asyncio.to_thread(entered.wait)
    closing = asyncio.create_task(server.__aexit__(None, None, None))
    with pytest.raises(LoaderClosed, match=r"no answer in 0\.05 s"):
        await asked
    leave.set()
    await closing


async def test_a_drain_that_nobody_would_ever_end_says_so(monkeypatch):
    monkeypatch.setattr(feed_module, "READER_SECONDS", 0.02)
    feed = Feed()
    asked = [asyncio.create_task(feed.ask(number)) for number in range(2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(LONG):
        with pytest.raises(LoaderError, match=r"2 requests were left.*nobody has iterated"):
            await feed.drain()
    for each in asked:
        with pytest.raises(LoaderClosed, match="nobody has iterated a loader of this feed"):
            await each


async def test_a_drain_ends_when_its_reader_leaves(monkeypatch):
    feed = Feed()
    async with DataLoader2(feed.async_map(never)) as loader:
        reading = asyncio.create_task(anext(aiter(loader)))
        asked = asyncio.create_task(feed.ask(1))
        while not feed.stats().under_way:  # noqa: ASYNC110 - the feed tells nobody
            await asyncio.sleep(0)
        draining = asyncio.create_task(feed.drain())
        await asyncio.sleep(0)
        monkeypatch.setattr(feed_module, "READER_SECONDS", 0.02)
    # It was never answered, and the loader is closed.
    with pytest.raises(LoaderClosed, match="when its loader was closed"):
        await asked
    await draining
    with pytest.raises(LoaderClosed):
        await reading


async def test_a_drain_waits_for_a_reader_that_is_about_to_come():
    feed = Feed()
    asked = asyncio.create_task(feed.ask(1))
    await asyncio.sleep(0)
    draining = asyncio.create_task(feed.drain())
    await asyncio.sleep(0)
    async with DataLoader2(feed.map(double)) as loader:
        async for one in loader:
            one.reply(one.data)
    assert await asked == 2
    await draining


async def test_requests_under_way_fail_when_the_iteration_is_ended_and_the_others_wait():
    feed = Feed()
    async with DataLoader2(feed.async_map(never).batch(2, max_wait=LONG)) as loader:
        items = aiter(loader)
        waiting = asyncio.create_task(anext(items))
        asked = asyncio.create_task(feed.ask(1))
        while not feed.stats().under_way:  # noqa: ASYNC110 - the feed tells nobody
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await items.aclose()
        with pytest.raises(LoaderClosed, match="when its loader was closed"):
            await asked


async def test_a_request_that_waits_for_company_waits_for_the_next_reader_too():
    feed = Feed()
    async with DataLoader2(feed.batch(2, max_wait=LONG)) as loader:
        items = aiter(loader)
        waiting = asyncio.create_task(anext(items))
        asked = [asyncio.create_task(feed.ask(3))]
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await items.aclose()
        # A new iteration goes on with it, and with what was asked since.
        asked.append(asyncio.create_task(feed.ask(4)))
        batch = await anext(aiter(loader))
        batch.reply(batch.data)
        assert await asyncio.gather(*asked) == [3, 4]


async def test_a_feed_has_one_loader_at_a_time():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double))):
        assert await feed.ask(1) == 2
        async with DataLoader2(feed.map(double)) as other:
            with pytest.raises(LoaderError, match="being read already"):
                await anext(aiter(other))
        assert await feed.ask(1) == 2


async def test_a_feed_belongs_to_one_loop():
    feed = Feed()
    asked = asyncio.create_task(feed.ask(1))
    await asyncio.sleep(0)

    with pytest.raises(LoopMismatchError, match="ask on the loop"):
        await asyncio.to_thread(asyncio.run, feed.ask(1))
    asked.cancel()
    await asyncio.wait([asked])


def test_a_feed_may_serve_one_loop_after_another():
    async def main(feed: Feed) -> int:
        async with DataLoader2(feed.map(double)) as loader:
            asked = asyncio.create_task(feed.ask(4))
            async for request in loader:
                request.reply(request.data)
                break
            return await asked

    feed = Feed()
    assert [asyncio.run(main(feed)) for _ in range(2)] == [8, 8]


# Graphs ---------------------------------------------------------------------------------

REFUSED = {
    "filter": (lambda feed: feed.filter(bool), r"filter\(bool\) cannot follow a Feed"),
    "flatmap": (lambda feed: feed.flatmap(list), "cannot follow a Feed"),
    "map with on_error": (lambda feed: feed.map(double, on_error="skip"), "leave on_error out"),
    "thread_map with on_error": (
        lambda feed: feed.thread_map(double, on_error=lambda error, item: 0),
        "leave on_error out",
    ),
    "an async pipe": (PlusSoon, r"PlusSoon\(\) .*it has an __aiter__: .*for async_map"),
    "drop_last": (lambda feed: feed.batch(2, True, max_wait=1), "leave drop_last out"),
    "batch of batches": (
        lambda feed: feed.batch(2, max_wait=1).batch(2, max_wait=1),
        "can be batched only once",
    ),
    "zip": (lambda feed: feed.zip(IterableWrapper([1])), "only a single chain of pipes"),
    "two feeds": (lambda feed: feed.zip(Feed()), "can have one Feed only"),
}


@pytest.mark.parametrize(("graph", "says"), REFUSED.values(), ids=REFUSED)
def test_what_loses_requests_is_refused_by_name(graph, says):
    with pytest.raises(LoaderError, match=says):
        DataLoader2(graph(Feed()))


def test_snapshots_are_refused():
    feed = Feed()
    with DataLoader2(feed.map(double)) as loader, pytest.raises(SnapshotError, match="Feed"):
        loader.state_dict()


async def test_a_feed_remembers_no_order_in_which_it_answered():
    feed = Feed()
    loader = DataLoader2(feed.async_map(double_soon, ordered=False).batch(3, max_wait=0.0))
    async with feed.serve(loader):
        sizes = []
        for _ in range(2):
            for _ in range(20):
                assert await asyncio.gather(*map(feed.ask, range(50))) == [*range(0, 100, 2)]
            gc.collect()
            sizes.append(len(gc.get_objects()))
        assert sizes[1] - sizes[0] < 500


@pytest.mark.parametrize("value", [0, -1])
def test_a_feed_has_room_for_a_request(value):
    with pytest.raises(ValueError, match="max_pending must be at least 1"):
        Feed(max_pending=value)
