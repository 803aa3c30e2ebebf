"""A worker that owes an answer and says nothing: given up after ``timeout`` seconds."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService, WorkerTimeout
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.channel import LoopChannel
from asyncloader.transport.codec import Decoder
from asyncloader.workers import fed_stream
from asyncloader.workers.fed_stream import Silence
from asyncloader.workers.handle import WorkerHandle
from asyncloader.workers.process import process
from tests.needs import needs_last_words

LONG = 60.0


def workers(count: int, **settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(count, **settings)


@pytest.fixture(autouse=True, scope="module")
def _template() -> None:
    """The process that workers are forked from outlives every loader."""
    with DataLoader2(IterableWrapper([1]).sharding_filter(), reading_service=workers(1)) as loader:
        list(loader)


# Without a process ----------------------------------------------------------------------


@dataclass
class Line:
    """What is known of a worker's requests."""

    dealt: float = math.inf
    last_heard: float = 0.0

    def owes_since(self) -> float:
        return self.dealt


@dataclass(eq=False)
class Worker:
    """A worker that is a note of what it was told."""

    line: Line
    last_heard: float = 0.0
    name: str = "worker 7"
    worker: int = 7
    place: str = "pid 1073741824"
    when_silent: str = "it was killed"
    failure: BaseException | None = None
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    is_killed: bool = False

    @property
    def process(self) -> Worker:
        return self

    def kill(self) -> None:
        self.is_killed = True

    async def add_stack(self, failure: BaseException) -> None:
        """Know nothing of a stack: there is no process."""

    def fail(self, failure: BaseException) -> None:
        self.failure = failure
        self.failed.set()


async def test_who_owes_and_is_silent_is_given_up_and_who_owes_nothing_is_not():
    ended = asyncio.Event()
    owing, idle = Worker(Line(dealt=time.monotonic())), Worker(Line())
    watch = Silence(lambda: [owing, idle], limit=0.02, on_end=ended.set)
    watch.watch()
    async with asyncio.timeout(LONG):
        await owing.failed.wait()
        assert watch.dying == {owing}
        await ended.wait()
    assert watch.dying == set()
    assert isinstance(owing.failure, WorkerTimeout)
    assert str(owing.failure) == (
        "worker 7 (pid 1073741824) owes an answer and said nothing for 0.02 s; it was killed"
    )
    assert owing.is_killed
    assert not idle.is_killed
    await watch.aclose()


@pytest.mark.parametrize("heard_by", ["frames", "the line"])
async def test_who_says_something_is_heard(heard_by):
    ended = asyncio.Event()
    later = time.monotonic() + LONG
    line = Line(dealt=0.0, last_heard=later if heard_by == "the line" else 0.0)
    speaking = Worker(line, last_heard=later if heard_by == "frames" else 0.0)
    silent = Worker(Line(dealt=0.0))
    watch = Silence(lambda: [speaking, silent], limit=0.02, on_end=ended.set)
    watch.watch()
    async with asyncio.timeout(LONG):
        await silent.failed.wait()
    assert not speaking.is_killed
    await watch.aclose()


async def test_without_a_limit_a_silence_is_told(monkeypatch, caplog):
    monkeypatch.setattr(fed_stream, "WARN_SECONDS", 0.02)
    worker = Worker(Line(dealt=time.monotonic()))
    told = asyncio.Event()
    heard = logging.Handler()
    heard.emit = lambda record: told.set()  # type: ignore[method-assign]
    fed_stream.logger.addHandler(heard)
    watch = Silence(lambda: [worker], limit=None, on_end=told.set)
    try:
        watch.watch()
        async with asyncio.timeout(LONG):
            await told.wait()
    finally:
        await watch.aclose()
        fed_stream.logger.removeHandler(heard)
    assert caplog.messages[0].startswith("waiting for worker 7")
    assert not worker.is_killed


def test_a_worker_that_was_told_to_pause_is_not_silent():
    ours, theirs = socket.socketpair()
    with theirs:
        process = SimpleNamespace(
            open_channel=lambda: LoopChannel(ours),
            open_items=lambda wake, copy_beyond: Decoder(ArenaView(wake, copy_beyond=copy_beyond)),
        )
        link = WorkerHandle("worker 0", 0, process)
        link.set_paused(True)
        paused = link.last_heard
        time.sleep(0.002)
        assert link.last_heard > paused
        link.set_paused(False)
        resumed = link.last_heard
        time.sleep(0.002)
        assert paused < link.last_heard == resumed
        link.close()


# With processes -------------------------------------------------------------------------


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


async def test_who_says_nothing_is_replaced_and_only_its_requests_fail_or_begin_again(tmp_path):
    feed = Feed()
    service = workers(1, timeout=2.0, on_worker_death="restart")
    async with feed.serve(DataLoader2(feed.map(stop_or_double), reading_service=service)):
        stuck = asyncio.create_task(feed.ask(str(tmp_path / "stopped")))
        behind = asyncio.create_task(feed.ask(3, idempotent=True))
        with pytest.raises(WorkerTimeout, match=r"said nothing for 2 s; it was killed"):
            await stuck
        assert await behind == 6
        assert feed.stats().retried == 1


def sleep_for_ever(item: int) -> int:
    time.sleep(LONG * 60)
    return item


@needs_last_words
async def test_who_hangs_says_where_to_those_who_asked(monkeypatch):
    monkeypatch.setattr(process, "DUMP_SECONDS", 10.0)
    feed = Feed()
    service = workers(1, timeout=1.0, on_worker_death="restart")
    async with feed.serve(DataLoader2(feed.map(sleep_for_ever), reading_service=service)):
        with pytest.raises(WorkerTimeout, match="said nothing for 1 s") as caught:
            await feed.ask(1)
    stack = caught.value.stack or ""
    assert stack.startswith("worker 0 stood here")
    assert "in sleep_for_ever" in stack
    assert stack in caught.value.__notes__
