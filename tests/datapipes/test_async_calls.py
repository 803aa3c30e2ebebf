"""async_map: time limits, retries, what calls share, and many calls that fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import weakref
from collections import Counter
from functools import partial

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import TooManyErrors
from tests.collecting import drain_with_cancels
from tests.leaks import leaves_nothing


def numbers(count=20):
    return IterableWrapper(range(count))


async def drained(pipe):
    return [item async for item in pipe]


async def collect(pipe, into):
    async for item in pipe:
        into.append(item)


async def for_ever(number):
    await asyncio.Event().wait()


class Flaky:
    """Fails so many times for each item, and counts its calls."""

    def __init__(self, times, error=ConnectionError):
        self.times = times
        self.error = error
        self.calls = Counter()

    async def __call__(self, number):
        self.calls[number] += 1
        if self.calls[number] <= self.times:
            raise self.error(number)
        return number


async def test_a_call_that_takes_too_long_is_a_timeout():
    with pytest.raises(TimeoutError, match=r"timeout=0\.01 s") as caught:
        await drained(numbers().async_map(for_ever, timeout=0.01))
    assert "raised in async_map(for_ever" in caught.value.__notes__[0]


async def test_a_timeout_reaches_the_coroutine():
    cancelled = []

    async def waits(number):
        try:
            await for_ever(number)
        finally:
            cancelled.append(number)

    assert await drained(numbers(5).async_map(waits, timeout=0.01, on_error="skip")) == []
    assert sorted(cancelled) == [0, 1, 2, 3, 4]


async def test_errors_that_may_pass_are_tried_again():
    flaky = Flaky(2)
    pipe = numbers().async_map(flaky, retries=2, backoff=0.001)
    assert await drained(pipe) == list(range(20))
    assert set(flaky.calls.values()) == {3}


async def test_each_retry_is_told_to_the_log(caplog):
    caplog.set_level(logging.INFO, "asyncloader")
    await drained(numbers(1).async_map(Flaky(1), retries=2, backoff=0.001))
    (message,) = caplog.messages
    assert re.fullmatch(r"Flaky is called again in \S+ s, retry 1 of 2: \w+Error\(.*\)", message), (
        message
    )


async def test_errors_that_do_not_pass_say_how_often_it_was_tried():
    with pytest.raises(ConnectionError) as caught:
        await drained(numbers().async_map(Flaky(9), retries=2, backoff=0.001))
    assert caught.value.__notes__[0] == "it was tried 3 times"


async def test_one_error_that_is_raised_for_every_item_says_it_once():
    error = ConnectionError("the server is gone")

    async def fail(number):
        raise error.with_traceback(None)

    pipe = numbers().async_map(fail, retries=1, backoff=0.001, on_error="skip")
    assert await drained(pipe) == []
    assert [note.partition("(")[0] for note in error.__notes__] == [
        "it was tried 2 times",
        "raised in async_map",
    ]


async def test_other_errors_are_not_tried_again():
    flaky = Flaky(1, LookupError)
    with pytest.raises(LookupError):
        await drained(numbers(1).async_map(flaky, retries=3))
    assert flaky.calls[0] == 1
    assert await drained(
        numbers(1).async_map(Flaky(1, LookupError), retries=1, retry_on=LookupError, backoff=0.001)
    ) == [0]


async def test_leaving_early_cancels_a_wait_before_a_retry():
    with leaves_nothing():
        stream = aiter(numbers().async_map(first_only, retries=5, backoff=60, concurrency=4))
        assert await anext(stream) == 0
        await stream.aclose()


async def first_only(number):
    if number:
        raise ConnectionError
    return number


# What calls share -----------------------------------------------------------------------


class Client:
    """A client that notes what happens to it."""

    def __init__(self):
        self.events = []

    async def __aenter__(self):
        self.events.append("opened")
        self.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, kind, error, traceback):
        await asyncio.sleep(0)
        self.events.append("closed")

    async def get(self, number):
        assert self.loop is asyncio.get_running_loop()
        assert self.events == ["opened"]
        await asyncio.sleep(0)
        return number


async def ask(number, client):
    return await client.get(number)


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_a_resource_is_opened_once_a_pass_on_the_loop_of_the_calls(form):
    clients = []

    def open_client():
        clients.append(Client())
        return clients[-1]

    pipe = numbers().async_map(ask, resource=open_client, concurrency=4)
    for _ in range(2):
        items = await (asyncio.to_thread(list, pipe) if form == "sync" else drained(pipe))
        assert items == list(range(20))
    assert [client.events for client in clients] == [["opened", "closed"]] * 2


async def test_each_worker_opens_its_own():
    @contextlib.asynccontextmanager
    async def open_client():
        yield [0]

    async def count(number, client):
        client[0] += 1
        return client[0]

    graph = numbers().sharding_filter().async_map(count, resource=open_client)
    async with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert sorted(await drained(loader)) == sorted([*range(1, 11)] * 2)


async def fails(number, client):
    raise LookupError(number)


async def waits_for_ever(number, client):
    if number:
        await asyncio.Event().wait()
    return number


@pytest.mark.parametrize("ending", ["error", "break", "cancel"])
async def test_a_resource_is_closed_after_its_calls_whatever_ends_the_pass(ending):
    client = Client()
    with leaves_nothing():
        function = fails if ending == "error" else waits_for_ever
        stream = aiter(numbers().async_map(function, resource=lambda: client))
        if ending == "error":
            with pytest.raises(LookupError):
                await anext(stream)
        else:
            assert await anext(stream) == 0
        if ending == "cancel":
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await stream.aclose()
    assert client.events == ["opened", "closed"]


async def test_what_calls_share_is_not_kept_when_the_pass_is_over():
    clients = []

    def open_client():
        client = Client()
        clients.append(weakref.ref(client))
        return client

    pipe = numbers().async_map(ask, resource=open_client)
    assert await drained(pipe) == list(range(20))
    # The loop lets go of a task that is done in one of its next turns.
    for _ in range(5):
        await asyncio.sleep(0)
    assert clients[0]() is None


async def test_columns_come_before_the_resource():
    async def add(left, right, client):
        assert isinstance(client, Client)
        return left + right

    rows = IterableWrapper([(1, 2, 3)])
    pipe = rows.async_map(add, [0, 1], -1, resource=Client)
    assert await drained(pipe) == [(1, 2, 3, 3)]


async def test_what_is_no_resource_is_named():
    with pytest.raises(TypeError, match="must return an async context manager, got int"):
        await drained(numbers().async_map(ask, resource=lambda: 3))
    with pytest.raises(TypeError, match="got a Client that was made already"):
        numbers().async_map(ask, resource=Client())
    with pytest.raises(ValueError, match=r"cannot be called with 2 positional"):
        numbers().async_map(for_ever, resource=Client)


async def test_a_resource_that_does_not_open_is_an_error_of_the_pipe():
    class Broken(Client):
        async def __aenter__(self):
            raise ConnectionError("no")

    with pytest.raises(ConnectionError) as caught:
        await drained(numbers().async_map(ask, resource=Broken))
    assert "raised in async_map(ask" in caught.value.__notes__[0]


# Many -----------------------------------------------------------------------------------


@pytest.fixture
async def _quick_loop():
    """Let the loop not note where each of thousands of tasks was made."""
    asyncio.get_running_loop().set_debug(False)


@pytest.mark.soak
@pytest.mark.usefixtures("_quick_loop")
@pytest.mark.parametrize("ordered", [True, False])
async def test_ten_thousand_calls_of_which_many_fail_lose_nothing(ordered):
    chance = random.Random(3)
    # Those that are late take as long as the timeout; on a busy machine others are late too.
    fates = [chance.choice(["good"] * 7 + ["lost", "bad", "cancelled"]) for _ in range(10_000)]
    fates[5000:5100] = ["late"] * 100
    calls = Counter()
    open_now = 0

    async def meets_its_fate(number):
        nonlocal open_now
        calls[number] += 1
        open_now += 1
        try:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            if fates[number] == "late" and calls[number] == 1:
                await asyncio.Event().wait()
            if fates[number] == "lost" and calls[number] < 3:
                raise ConnectionError(number)
            if fates[number] == "bad":
                raise LookupError(number)
            if fates[number] == "cancelled":
                raise asyncio.CancelledError(number)
            return number
        finally:
            open_now -= 1

    expected = [number for number in range(10_000) if fates[number] not in ("bad", "cancelled")]
    pipe = numbers(10_000).async_map(
        meets_its_fate,
        concurrency=256,
        ordered=ordered,
        timeout=2,
        retries=8,
        backoff=0.001,
        on_error="skip",
    )
    with leaves_nothing():
        async with DataLoader2(pipe) as loader:
            items = await drain_with_cancels(loader, chance)
        del loader
    assert (items if ordered else sorted(items)) == expected
    assert open_now == 0
    assert set(calls) == set(range(10_000))


async def in_workers(pipe):
    async with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        return await drained(loader)


class Tracked:
    """What the calls of one pass share, in one process; it notes in a file what they left."""

    def __init__(self, folder):
        self.folder = folder
        self.calls = Counter()
        self.open = 0

    async def __aenter__(self):
        self.tasks = asyncio.all_tasks()
        return self

    async def __aexit__(self, kind, error, traceback):
        left = len(asyncio.all_tasks() - self.tasks)
        note = {"calls": sorted(self.calls), "open": self.open, "tasks": left}
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(note))

    @contextlib.contextmanager
    def connection(self, number):
        self.calls[number] += 1
        self.open += 1
        try:
            yield self.calls[number]
        finally:
            self.open -= 1


@pytest.mark.soak
@pytest.mark.usefixtures("_quick_loop")
async def test_ten_thousand_calls_in_workers_lose_nothing_and_leave_nothing(tmp_path):
    async def meets_its_fate(number, tracked):
        with tracked.connection(number) as attempt:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            if number // 100 == 50 and attempt == 1:
                await asyncio.Event().wait()
            if number % 10 == 1 and attempt < 3:
                raise ConnectionError(number)
            if number % 10 == 2:
                raise LookupError(number)
            if number % 10 == 3:
                raise asyncio.CancelledError(number)
            return number

    pipe = (
        numbers(10_000)
        .sharding_filter()
        .async_map(
            meets_its_fate,
            concurrency=128,
            resource=partial(Tracked, tmp_path),
            timeout=2,
            retries=8,
            backoff=0.001,
            on_error="skip",
        )
    )
    # The first loader of a process starts what the later ones use too.
    assert await in_workers(numbers(4).sharding_filter()) == [0, 1, 2, 3]
    with leaves_nothing():
        async with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
            items = await drain_with_cancels(loader, random.Random(5))
            errors = loader.stats().errors
        del loader
    assert sorted(items) == [number for number in range(10_000) if number % 10 not in (2, 3)]
    assert errors == 2000
    one, other = (json.loads(path.read_text()) for path in tmp_path.iterdir())
    assert sorted(one["calls"] + other["calls"]) == list(range(10_000))
    assert one["open"] == other["open"] == one["tasks"] == other["tasks"] == 0


@pytest.mark.usefixtures("_quick_loop")
async def test_cancelling_at_any_moment_leaves_no_call_and_no_task():
    async def returns(number):
        await asyncio.sleep(0)
        return number

    async def taken(pipe):
        async for _ in pipe:
            pass

    with leaves_nothing():
        before = asyncio.all_tasks()
        for turns in range(60):
            client = Client()
            pipe = numbers(40).async_map(
                lambda_of(returns), concurrency=3, resource=lambda client=client: client
            )
            task = asyncio.ensure_future(taken(pipe))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert client.events in ([], ["opened", "closed"])
            assert asyncio.all_tasks() == before


def lambda_of(function):
    async def with_client(number, client):
        return await function(number)

    return with_client


# Names of torchdata ---------------------------------------------------------------------


class AllAtOnce:
    """Calls that all end together, once the last has begun; one of them fails."""

    def __init__(self, count, failing):
        self.left = count
        self.failing = failing
        self.all_begun = asyncio.Event()

    async def __call__(self, number):
        self.left -= 1
        if not self.left:
            self.all_begun.set()
        await self.all_begun.wait()
        if number == self.failing:
            raise LookupError(number)
        return number


@pytest.mark.parametrize("place", [0, 7, 19])
async def test_of_results_that_are_ready_together_an_error_takes_none_with_it(place):
    failing = AllAtOnce(20, place)
    async with DataLoader2(numbers().async_map(failing)) as loader:
        got = []
        with pytest.raises(LookupError, match=str(place)):
            await collect(loader, got)
        assert got == list(range(place))


@pytest.mark.parametrize("place", [0, 7, 19])
async def test_of_results_that_are_ready_together_one_may_be_left_out(place):
    failing = AllAtOnce(20, place)
    pipe = numbers().async_map(failing, on_error="skip", max_errors=1)
    async with DataLoader2(pipe) as loader:
        assert [number async for number in loader] == [n for n in range(20) if n != place]


async def test_batches_of_async_calls_are_flat_or_lists():
    async def double(number):
        return 2 * number

    assert await drained(numbers(5).async_map_batches(double, 2)) == [0, 2, 4, 6, 8]
    pipe = numbers(5).async_map_batches(double, 2, flatten=False)
    assert await drained(pipe) == [[0, 2], [4, 6], [8]]
    assert len(pipe) == 3
    rows = IterableWrapper([(1, 2)])
    assert await drained(rows.async_map_batches(double, 2, 1, -1)) == [(1, 2, 4)]


async def test_errors_too_many_are_those_of_the_window_in_order():
    with pytest.raises(TooManyErrors):
        await drained(numbers().async_map(Flaky(1, LookupError), on_error="skip", max_errors=0))


def test_options_are_checked_when_the_pipe_is_made():
    for how, text in [
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"backoff": -1}, "backoff must be more than 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            numbers().async_map(for_ever, **how)
    with pytest.raises(TypeError, match="retry_on must be an exception class"):
        numbers().async_map(for_ever, retry_on="OSError")


@pytest.mark.parametrize("seed", range(30))
async def test_of_results_that_come_in_one_turn_of_the_loop_an_error_takes_none_with_it(seed):
    rng = random.Random(seed)
    hops = [rng.randrange(6) for _ in range(40)]

    async def after_some_hops(number):
        for _ in range(hops[number]):
            await asyncio.sleep(0)
        if number == 25:
            raise ValueError(number)
        return number

    graph = numbers(40).async_map(after_some_hops, concurrency=rng.choice([2, 3, 4, 8, 16]))
    got = []
    async with DataLoader2(graph) as loader:
        with pytest.raises(ValueError, match="25"):
            await collect(loader, got)
    assert got == list(range(25))


def test_an_interrupt_in_a_call_ends_the_loop_though_an_earlier_item_is_not_done() -> None:
    async def call(number: int) -> int:
        if number == 0:
            await asyncio.Event().wait()
        raise KeyboardInterrupt

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            DataLoader2(IterableWrapper(range(2)).async_map(call)) as it,
        ):
            await anext(aiter(it))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
