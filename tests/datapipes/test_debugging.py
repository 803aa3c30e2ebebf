"""Debug mode names the pipe whose function stops everything, or returns what nobody awaits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from asyncloader import DataLoader2, LoaderClosed, MultiProcessingReadingService, set_debug
from asyncloader.datapipes.call import VARIABLE, Pulse, is_debug
from asyncloader.datapipes.iter import IterableWrapper


@pytest.fixture(autouse=True)
def debug(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")


async def blocks(item: int) -> int:
    await asyncio.sleep(0)
    time.sleep(0.06)  # noqa: ASYNC251  the mistake that is to be named
    await asyncio.sleep(0)
    return item + 1


async def fails_after_a_wait(item: int) -> int:
    try:
        await asyncio.sleep(0)
    finally:
        await asyncio.sleep(0)
    raise KeyError(item)


class Holding:
    """Adds up numbers in C, without letting go of the GIL, for a tenth of a second or so."""

    def __init__(self) -> None:
        self.numbers = range(1_000_000)
        used = 0.0
        # The machine may be quicker when this is called.
        while used < 0.15:
            self.numbers = range(2 * len(self.numbers))
            begun = time.thread_time()
            sum(self.numbers)
            used = time.thread_time() - begun

    def __call__(self, item: int) -> int:
        sum(self.numbers)
        return item + 1


@pytest.fixture(scope="module")
def holds() -> Holding:
    return Holding()


def test_an_async_function_that_blocks_in_a_map_is_named(caplog):
    assert list(IterableWrapper([1]).map(blocks)) == [2]
    assert held(caplog) == {"map(blocks)"}


async def test_an_async_function_that_blocks_in_an_async_map_is_named(caplog):
    async with DataLoader2(IterableWrapper([1]).async_map(blocks)) as loader:
        assert [item async for item in loader] == [2]
    assert held(caplog) == {"async_map(blocks)"}


def held(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Return who held the loop: each of its steps is told of, and a machine may prolong one."""
    return {message.partition(" held the event loop for ")[0] for message in said(caplog)}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "asyncloader"]


def held_the_gil(caplog: pytest.LogCaptureFixture) -> list[str]:
    parts = [
        message.partition(" held the GIL, and the event loop with it, ") for message in said(caplog)
    ]
    return [name for name, held, _ in parts if held]


def test_a_worker_names_its_pipes_too_but_may_hold_the_gil(capfd, holds):
    graph = IterableWrapper([0]).sharding_filter().map(holds).async_map(blocks)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert list(loader) == [2]
    told = capfd.readouterr().err
    assert "async_map(blocks) held the event loop for" in told
    assert "held the GIL" not in told


async def test_a_plain_function_that_holds_the_gil_beside_the_loop_is_named(caplog, holds):
    async with DataLoader2(IterableWrapper([1]).map(str).map(int).map(holds)) as loader:
        assert [item async for item in loader] == [2]
    assert held_the_gil(caplog) == ["map(Holding)"]
    assert "let worker processes call it (MultiProcessingReadingService)" in said(caplog)[0]


async def test_a_function_that_holds_the_gil_in_one_of_many_threads_is_named(caplog, holds):
    async with DataLoader2(IterableWrapper([1, 2]).thread_map(holds)) as loader:
        assert [item async for item in loader] == [2, 3]
    assert set(held_the_gil(caplog)) == {"thread_map(Holding)"}


async def test_a_function_that_waits_is_not_blamed_for_what_others_hold(caplog, holds):
    begun, held = threading.Event(), threading.Event()

    def waits(item: int) -> int:
        begun.set()
        held.wait()
        return item

    async with DataLoader2(IterableWrapper([1]).map(waits)) as loader:
        waiting = asyncio.create_task(anext(aiter(loader)))
        await asyncio.to_thread(begun.wait)
        holds(1)
        held.set()
        assert await waiting == 1
    assert held_the_gil(caplog) == []


def test_without_a_loop_beside_it_a_function_may_hold_the_gil(caplog, holds):
    assert list(IterableWrapper([1]).map(holds)) == [2]
    with DataLoader2(IterableWrapper([1]).map(holds)) as loader:
        assert list(loader) == [2]
    assert said(caplog) == []


def test_the_pulse_ends_with_the_last_who_listens(holds):
    pulse = Pulse()
    with pulse.listening(), pulse.listening():
        (thread,) = (each for each in threading.enumerate() if each.name == "asyncloader pulse")
        begun = time.perf_counter()
        holds(1)
        assert pulse.silence(begun) > 0.05
    thread.join(60)
    assert not thread.is_alive()


async def test_awaiting_goes_on_as_without_debug_mode():
    graph = IterableWrapper([1]).async_map(fails_after_a_wait)
    with pytest.raises(KeyError, match="1"):
        await anext(aiter(graph))

    begun, never, left = asyncio.Event(), asyncio.Event(), []

    async def waits(item: int) -> None:
        begun.set()
        try:
            await never.wait()
        finally:
            left.append(item)

    async with DataLoader2(IterableWrapper([1]).async_map(waits)) as loader:
        waiting = asyncio.create_task(anext(aiter(loader)))
        await begun.wait()
    with pytest.raises(LoaderClosed):
        await waiting
    assert left == [1]


def test_results_that_nobody_will_await_are_named(caplog):
    async def parts() -> Any:
        yield 1

    def returns_a_generator(item: int) -> Any:
        return parts()

    class Later:
        def __await__(self) -> Any:
            return iter(())

    def returns_later(item: int) -> Any:
        return Later()

    list(IterableWrapper([1]).map(returns_a_generator))
    list(IterableWrapper([1]).map(returns_later))
    list(IterableWrapper([1]).thread_map(returns_later))
    assert said(caplog) == [
        "map(returns_a_generator) returned an async generator, which nobody will iterate",
        "map(returns_later) returned a Later, which nobody will await; use async_map",
        "thread_map(returns_later) returned a Later, which nobody will await; use async_map",
    ]


def test_debug_mode_is_off_unless_it_is_asked_for(monkeypatch, caplog):
    for value in ("", "0"):
        monkeypatch.setenv(VARIABLE, value)
        assert not is_debug()
    monkeypatch.delenv(VARIABLE)
    assert list(IterableWrapper([1]).map(blocks)) == [2]
    assert said(caplog) == []
    set_debug(True)
    assert is_debug()
    set_debug(False)
    assert not is_debug()
