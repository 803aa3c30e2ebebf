"""A worker that owes an answer and says nothing: given up after ``timeout`` seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService, WorkerTimeout
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.workers import silence

LONG = 60.0


@pytest.fixture(autouse=True, scope="module")
def _template() -> None:
    """The process that workers are forked from outlives every loader."""
    graph = IterableWrapper([1]).sharding_filter()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        list(loader)


def stop_once(path: str) -> str:
    """Stop the process for good, unless that was done before."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGSTOP)
    return "never"


def stop_or_double(item: int | str) -> Any:
    return stop_once(item) if isinstance(item, str) else 2 * item


def pid_of_worker(item: Any) -> int:
    return os.getpid()


def restarting(count: int, **settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(count, on_worker_death="restart", **settings)


async def test_who_says_nothing_is_replaced_and_only_its_requests_fail(tmp_path):
    feed = Feed()
    graph = feed.map(stop_or_double)
    async with feed.serve(DataLoader2(graph, reading_service=restarting(2, timeout=0.5))):
        stuck = asyncio.create_task(feed.ask(str(tmp_path / "stopped"), timeout=LONG))
        with pytest.raises(WorkerTimeout, match=r"said nothing for 0\.5 s; it was killed"):
            await stuck
        assert await asyncio.gather(*map(feed.ask, range(20))) == [2 * n for n in range(20)]


async def test_an_idempotent_request_is_begun_once_more_after_a_silence(tmp_path):
    feed = Feed()
    graph = feed.map(stop_or_double)
    async with feed.serve(DataLoader2(graph, reading_service=restarting(1, timeout=0.5))):
        assert await feed.ask(str(tmp_path / "stopped"), idempotent=True, timeout=LONG) == "done"
        assert feed.stats().retried == 1


async def test_a_worker_that_owes_nothing_may_be_silent():
    feed = Feed()
    service = MultiProcessingReadingService(1, timeout=0.05)
    async with feed.serve(DataLoader2(feed.map(pid_of_worker), reading_service=service)):
        first = await feed.ask(1)
        await asyncio.sleep(0.2)
        assert await feed.ask(2) == first


async def test_without_a_timeout_a_silence_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(silence, "WARN_SECONDS", 0.05)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    feed = Feed()
    service = MultiProcessingReadingService(1)
    with caplog.at_level(logging.WARNING, "asyncloader"):
        async with feed.serve(
            DataLoader2(feed.map(lambda _: gate.read_bytes()), reading_service=service)
        ):
            asked = asyncio.create_task(feed.ask(1))
            async with asyncio.timeout(LONG):
                while not caplog.messages:  # noqa: ASYNC110 - a log has nothing to wait on
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(gate.write_bytes, b"at last")
            assert await asked == b"at last"
    assert "waiting for worker 0" in caplog.messages[0]
