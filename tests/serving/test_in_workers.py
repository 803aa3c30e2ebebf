"""Requests worked on in worker processes: identity, errors, deaths, ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncloader import (
    DataLoader2,
    Feed,
    IterDataPipe,
    LoaderClosed,
    MultiProcessingReadingService,
    Overloaded,
    PipelineError,
    WorkerDied,
)
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.worker_info import get_worker_info
from asyncloader.workers import handle
from asyncloader.workers.handle import WorkerHandle
from tests.leaks import leaves_nothing

LONG = 60.0


@pytest.fixture(autouse=True, scope="module")
def _template() -> None:
    """The process that workers are forked from outlives every loader."""
    with DataLoader2(IterableWrapper([1]).sharding_filter(), reading_service=workers(1)) as loader:
        list(loader)


def workers(count: int = 2, **settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(count, **settings)


def double(number: int) -> int:
    return 2 * number


def doubles(batch: list[int]) -> list[int]:
    return [2 * number for number in batch]


async def double_soon(number: int) -> int:
    await asyncio.sleep(random.random() * 0.002)
    return 2 * number


def odd_only(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def where(item: Any) -> tuple[int, int]:
    info = get_worker_info()
    return os.getpid(), -1 if info is None else info.worker_id


def with_place(item: Any) -> tuple[Any, tuple[int, int]]:
    return item, where(item)


class Plus(OneToOne, IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            yield odd_only(item)


GRAPHS = {
    "map": lambda feed: feed.map(double),
    "async map": lambda feed: feed.map(double_soon),
    "async_map": lambda feed: feed.async_map(double_soon, concurrency=8),
    "async_map, unordered": lambda feed: feed.async_map(double_soon, ordered=False),
    "thread_map": lambda feed: feed.thread_map(double, concurrency=3),
    "prefetch": lambda feed: feed.map(double).prefetch(3),
    "batch": lambda feed: feed.batch(5, max_wait=0.001).map(doubles),
    "map and batch": lambda feed: feed.map(str).map(int).batch(5, max_wait=0.001).collate(doubles),
}


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
async def test_every_request_gets_its_own_answer(graph):
    with leaves_nothing():
        feed = Feed()
        loader = DataLoader2(graph(feed), reading_service=workers())
        async with feed.serve(loader):
            answers = await asyncio.gather(*[feed.ask(number) for number in range(300)])
        assert answers == [2 * number for number in range(300)]


async def test_nothing_of_an_answer_is_held_until_the_next():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(np.copy), reading_service=workers(1))):
        end = asyncio.Event()
        weakref.finalize(await feed.ask(np.ones(100_000)), end.set)
        async with asyncio.timeout(LONG):
            await end.wait()


@pytest.mark.sweep
@pytest.mark.parametrize("worker_prefetch_cnt", [0, 1, 10])
@pytest.mark.parametrize("num_workers", [1, 3])
async def test_one_request_after_the_other_is_answered(num_workers, worker_prefetch_cnt):
    feed = Feed()
    service = workers(num_workers, worker_prefetch_cnt=worker_prefetch_cnt)
    async with feed.serve(DataLoader2(feed.map(double), reading_service=service)):
        assert [await feed.ask(number) for number in range(60)] == [2 * n for n in range(60)]


async def test_requests_are_worked_on_in_all_workers_and_batches_are_made_by_the_loader():
    feed = Feed()
    graph = feed.map(where).batch(8, max_wait=0.01)
    async with feed.serve(DataLoader2(graph, reading_service=workers())):
        places: set[tuple[int, int]] = set()
        # A worker that is slow to start begins when it is ready.
        while len(places) < 2:
            places |= {*await asyncio.gather(*[feed.ask(number) for number in range(64)])}
    assert {worker for _, worker in places} == {0, 1}
    assert os.getpid() not in {pid for pid, _ in places}
    assert feed.stats().batch_fill > 1 / 8


async def test_the_least_busy_worker_gets_the_next_request(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def wait_for_gate(name: str) -> tuple[str, int]:
        if name == "slow":
            gate.read_bytes()
        return name, where(None)[1]

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(wait_for_gate), reading_service=workers())):
        awake: set[Any] = set()
        while len(awake) < 2:
            awake |= {*await asyncio.gather(*[feed.ask("quick") for _ in range(8)])}
        slow = asyncio.create_task(feed.ask("slow"))
        quick = [await feed.ask("quick", timeout=LONG) for _ in range(20)]
        assert len(set(quick)) == 1
        gate.write_bytes(b"")
        assert (await slow)[1] != quick[0][1]


async def test_arrays_travel_both_ways():
    feed = Feed()
    image = np.arange(400_000, dtype=np.float32)
    graph = feed.map(lambda array: array * 2).batch(4, max_wait=0.001)
    async with feed.serve(DataLoader2(graph, reading_service=workers())):
        for _ in range(5):
            answers = await asyncio.gather(*[feed.ask(image + n) for n in range(8)])
            for n, answer in enumerate(answers):
                assert np.array_equal(answer, (image + n) * 2)


# Errors ---------------------------------------------------------------------------------

FAILING = {
    "map": lambda feed: feed.map(odd_only),
    "thread_map": lambda feed: feed.thread_map(odd_only),
    "a user's own pipe": Plus,
    "then batch": lambda feed: feed.map(odd_only).batch(4, max_wait=0.001),
}


@pytest.mark.parametrize("graph", FAILING.values(), ids=FAILING)
async def test_an_error_reaches_only_its_own_request(graph):
    feed = Feed()
    async with feed.serve(DataLoader2(graph(feed), reading_service=workers())):
        asks = [feed.ask(number) for number in range(60)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 2:
            assert answer == number
        else:
            assert type(answer) is ValueError
            assert str(answer) == f"{number} is even"
            assert any("in worker" in note for note in answer.__notes__)


class NotToBePickled:
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def explode(text: str) -> Any:
    raise ImportError(text)


class ExplodesOnArrival:
    """Pickles well, and cannot be read again."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return (explode, (self.where,))


async def test_an_item_that_cannot_be_pickled_fails_alone():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double), reading_service=workers(1))):
        answers = await asyncio.gather(
            feed.ask(1), feed.ask(NotToBePickled()), feed.ask(3), return_exceptions=True
        )
    assert answers[0::2] == [2, 6]
    assert type(answers[1]) is PipelineError
    assert "not to be pickled" in str(answers[1])


async def test_an_item_that_cannot_be_read_in_the_worker_fails_alone():
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(double), reading_service=workers(1))):
        answers = await asyncio.gather(
            feed.ask(1), feed.ask(ExplodesOnArrival("in the worker")), feed.ask(3),
            return_exceptions=True,
        )  # fmt: skip
    assert answers[0::2] == [2, 6]
    assert "in the worker" in str(answers[1])


async def test_a_result_that_cannot_be_pickled_fails_alone():
    def lock_for_two(number: int) -> Any:
        return threading.Lock() if number == 2 else number

    feed = Feed()
    graph = feed.thread_map(lock_for_two, concurrency=1)
    async with feed.serve(DataLoader2(graph, reading_service=workers(1))):
        answers = await asyncio.gather(*map(feed.ask, range(5)), return_exceptions=True)
        assert await feed.ask(7) == 7
    assert [type(answer) for answer in answers] == [int, int, PipelineError, int, int]
    assert "item 2 of thread_map(lock_for_two, concurrency=1)" in str(answers[2])


async def test_the_feed_goes_on_after_a_result_that_cannot_be_read():
    def explosive_for_two(number: int) -> Any:
        return ExplodesOnArrival("in the loader") if number == 2 else number

    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(explosive_for_two), reading_service=workers(1))):
        with pytest.raises(Exception, match="in the loader"):
            await feed.ask(2)
        assert await asyncio.gather(*map(feed.ask, range(3, 9))) == [*range(3, 9)]


# Deaths ---------------------------------------------------------------------------------


def die_once(path: str) -> str:
    """End the process, unless somebody did so before."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def die_or_double(item: int | str) -> Any:
    return die_once(item) if isinstance(item, str) else 2 * item


@pytest.mark.parametrize("on_worker_death", ["raise", "restart"])
async def test_a_request_fails_with_the_worker_that_has_it_and_the_others_go_on(
    tmp_path, on_worker_death
):
    feed = Feed()
    service = workers(2, on_worker_death=on_worker_death)
    async with feed.serve(DataLoader2(feed.map(die_or_double), reading_service=service)):
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await feed.ask(str(tmp_path / "died"))
        assert await asyncio.gather(*map(feed.ask, range(50))) == [2 * n for n in range(50)]


@pytest.mark.parametrize(("count", "settings"), [(2, {}), (1, {"on_worker_death": "restart"})])
async def test_an_idempotent_request_is_begun_once_more(tmp_path, count, settings):
    feed = Feed()
    service = workers(count, **settings)
    async with feed.serve(DataLoader2(feed.map(die_or_double), reading_service=service)):
        assert await feed.ask(str(tmp_path / "died"), idempotent=True) == "done"
        assert feed.stats().retried == 1
        assert await feed.ask(4) == 8


async def test_an_idempotent_request_that_kills_twice_fails():
    def die(item: Any) -> Any:
        if item == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    feed = Feed()
    service = workers(1, on_worker_death="restart", max_restarts=5)
    async with feed.serve(DataLoader2(feed.map(die), reading_service=service)):
        assert await feed.ask(1) == 1
        with pytest.raises(WorkerDied):
            await feed.ask("die", idempotent=True)
        assert await feed.ask(2) == 2


async def test_without_workers_all_requests_fail(tmp_path):
    feed = Feed()
    service = workers(1, on_worker_death="raise")
    server = feed.serve(DataLoader2(feed.map(die_or_double), reading_service=service))
    await server.__aenter__()
    assert feed.stats().is_ready
    with pytest.raises(WorkerDied):
        await feed.ask(str(tmp_path / "died"))
    with pytest.raises((LoaderClosed, WorkerDied)):
        await feed.ask(1)
    with pytest.raises(LoaderClosed, match="no longer read"):
        await feed.ask(2)
    assert not feed.stats().is_ready
    # Nor does the server keep quiet about it.
    with pytest.raises(WorkerDied):
        await server.__aexit__(None, None, None)


async def test_requests_that_kill_the_only_worker_one_after_another_fail_alone(tmp_path):
    feed = Feed()
    async with feed.serve(DataLoader2(feed.map(die_or_double), reading_service=workers(1))):
        for turn in range(6):
            with pytest.raises(WorkerDied, match="SIGKILL"):
                await feed.ask(str(tmp_path / f"died {turn}"))
            assert feed.stats().is_ready
        assert await feed.ask(4) == 8
    assert not feed.stats().is_ready


async def test_a_worker_that_cannot_start_again_ends_the_server_after_a_few_tries(tmp_path):
    def start_once(pipe: Any, info: Any) -> Any:
        if (tmp_path / "begun").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "begun").touch()
        return pipe

    feed = Feed()
    service = workers(1, worker_init_fn=start_once, max_restarts=2)
    server = feed.serve(DataLoader2(feed.map(die_or_double), reading_service=service))
    await server.__aenter__()
    with pytest.raises(WorkerDied):
        await feed.ask(str(tmp_path / "died"))
    with pytest.raises((LoaderClosed, WorkerDied)):
        await feed.ask(1, timeout=LONG)
    assert not feed.stats().is_ready
    with pytest.raises(WorkerDied):
        await server.__aexit__(None, None, None)


async def test_many_requests_survive_workers_that_die_all_the_time():
    feed = Feed(max_pending=64)
    service = workers(2, on_worker_death="restart", max_restarts=100)
    chance = random.Random(3)
    answered: list[int] = []

    async def client(number: int) -> None:
        for turn in range(60):
            item = 1000 * number + turn
            while True:
                try:
                    pid, doubled = await feed.ask(item, timeout=LONG)
                    break
                except WorkerDied:
                    continue
            assert doubled == 2 * item
            answered.append(item)
            if chance.random() < 0.01:
                # Another client may have been quicker.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pid_and_double(number: int) -> tuple[int, int]:
        return os.getpid(), 2 * number

    loader = DataLoader2(feed.map(pid_and_double), reading_service=service)
    with leaves_nothing():
        async with feed.serve(loader), asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(client(number))
    assert sorted(answered) == [1000 * n + turn for n in range(16) for turn in range(60)]
    assert feed.stats().under_way == 0


def links_now() -> int:
    gc.collect()
    return sum(isinstance(each, WorkerHandle) for each in gc.get_objects())


async def test_a_served_loader_holds_nothing_for_workers_that_died(tmp_path, monkeypatch):
    monkeypatch.setattr(handle, "_DEATH_SECONDS", 0.01)
    before, feed = links_now(), Feed()
    service = workers(1, on_worker_death="restart")
    async with feed.serve(DataLoader2(feed.map(die_or_double), reading_service=service)):
        for turn in range(6):
            with pytest.raises(WorkerDied):
                await feed.ask(str(tmp_path / f"died {turn}"))
            assert await feed.ask(turn) == 2 * turn
        async with asyncio.timeout(LONG / 4):
            # One that was replaced may still be waited for.
            while links_now() > before + 1:
                await feed.ask(1)


# Limits and ends ------------------------------------------------------------------------


async def test_cancelled_clients_leave_nothing():
    chance = random.Random(7)
    feed = Feed(max_pending=128)
    graph = feed.map(double).batch(8, max_wait=0.001).map(doubles)

    async def client(number: int) -> None:
        for turn in range(50):
            item = 1000 * number + turn
            asked = asyncio.create_task(feed.ask(item))
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() * 0.003)
                asked.cancel()
                await asyncio.wait([asked])
            else:
                assert await asked == 4 * item

    with leaves_nothing():
        async with feed.serve(DataLoader2(graph, reading_service=workers())):
            async with asyncio.TaskGroup() as group:
                for number in range(32):
                    group.create_task(client(number))
            await feed.drain(LONG)
            stats = feed.stats()
    assert (stats.queued, stats.under_way, stats.failed) == (0, 0, 0)


async def test_a_full_feed_refuses_while_workers_are_busy(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    feed = Feed(max_pending=8)
    graph = feed.map(lambda item: item or gate.read_bytes())
    async with feed.serve(DataLoader2(graph, reading_service=workers(1))):
        asked = [asyncio.create_task(feed.ask(number)) for number in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await feed.ask(9)
        await asyncio.to_thread(gate.write_bytes, b"go on")
        assert await asyncio.gather(*asked) == [b"go on", *range(1, 8)]


async def test_one_loader_is_iterated_again_and_again():
    feed = Feed()
    async with DataLoader2(feed.map(double), reading_service=workers()) as loader:
        for number in range(5):
            asked = asyncio.create_task(feed.ask(number))
            async for request in loader:
                request.reply(request.data)
                break
            assert await asked == 2 * number


class Ticks(IterDataPipe[int]):
    """A user's own source that lives with the loader."""

    edges = ()

    def __init__(self, count: int) -> None:
        self.count = count

    def lives_with_loader(self) -> bool:
        return True

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(self.count):
            await asyncio.sleep(0)
            yield number


async def test_any_source_may_live_with_the_loader():
    graph = Ticks(100).map(double).filter(lambda number: number % 3 == 0).map(with_place)
    async with DataLoader2(graph, reading_service=workers()) as loader:
        for _ in range(2):
            items = [item async for item in loader]
            assert sorted(number for number, _ in items) == [*range(0, 200, 6)]
            # On a busy machine one of them may be quick enough for all.
            assert {worker for _, (_, worker) in items} <= {0, 1}


async def test_the_error_of_a_source_that_lives_with_the_loader_is_raised():
    class Failing(Ticks):
        async def __aiter__(self) -> AsyncIterator[int]:
            yield 1
            raise ArithmeticError("broken")

    async with DataLoader2(Failing(1).map(double), reading_service=workers()) as loader:
        with pytest.raises(ArithmeticError, match="broken"):
            [item async for item in loader]


@pytest.mark.parametrize("on_worker_death", ["raise", "restart"])
async def test_a_source_whose_items_have_no_names_fails_with_the_worker_that_has_some(
    tmp_path, on_worker_death
):
    def die_at_twenty(number: int) -> int:
        if number == 20:
            die_once(str(tmp_path / "died"))
        return number

    service = workers(on_worker_death=on_worker_death)
    async with DataLoader2(Ticks(40).map(die_at_twenty), reading_service=service) as loader:
        with pytest.raises(WorkerDied):
            [item async for item in loader]
        assert sorted([item async for item in loader]) == [*range(40)]


async def test_a_feed_that_is_closed_while_a_worker_is_replaced_comes_to_its_end():
    feed = Feed()
    service = workers(on_worker_death="restart")
    async with DataLoader2(feed.map(with_place), reading_service=service) as loader:

        async def answer() -> None:
            async for request in loader:
                request.reply(request.data)

        answering = asyncio.create_task(answer())
        _, (pid, _) = await feed.ask(1)
        os.kill(pid, signal.SIGKILL)
        feed.close()
        await answering


@pytest.mark.parametrize("method", [None, "fork"])
async def test_forked_workers_work_on_requests(method: str | None) -> None:
    feed = Feed()
    service = workers(1, multiprocessing_context=method)
    async with feed.serve(DataLoader2(feed.map(double), reading_service=service)):
        assert await asyncio.gather(*map(feed.ask, range(20))) == [2 * n for n in range(20)]
