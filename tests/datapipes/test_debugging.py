"""Debug mode names the pipe whose function stops everything, or returns what nobody awaits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from asyncloader import DataLoader2, LoaderClosed, MultiProcessingReadingService, set_debug
from asyncloader.datapipes.debugging import VARIABLE, is_debug
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


def test_an_async_function_that_blocks_in_a_map_is_named(caplog):
    assert list(IterableWrapper([1]).map(blocks)) == [2]
    assert held(caplog) == ["map(blocks)"]


async def test_an_async_function_that_blocks_in_an_async_map_is_named(caplog):
    async with DataLoader2(IterableWrapper([1]).async_map(blocks)) as loader:
        assert [item async for item in loader] == [2]
    assert held(caplog) == ["async_map(blocks)"]


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.partition(" held the event loop for ")[0] for message in said(caplog)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "asyncloader"]


def test_a_worker_names_its_pipes_too(capfd):
    graph = IterableWrapper([1]).sharding_filter().async_map(blocks)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert list(loader) == [2]
    assert "async_map(blocks) held the event loop for" in capfd.readouterr().err


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
    assert said(caplog) == [
        "map(returns_a_generator) returned an async generator, which nobody will iterate",
        "map(returns_later) returned a Later, which nobody will await; use async_map",
    ]


def test_debug_mode_is_off_unless_it_is_asked_for(monkeypatch, caplog):
    for value in ("", "0"):
        monkeypatch.setenv(VARIABLE, value)
        assert not is_debug()
    monkeypatch.delenv(VARIABLE)
    assert list(IterableWrapper([1]).map(blocks)) == [2]
    assert held(caplog) == []
    set_debug(True)
    assert is_debug()
    set_debug(False)
    assert not is_debug()
