"""A worker, as its loader sees it, without a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncloader.errors import ResourceExhausted, TransportError, WorkerStartupError
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.channel import Channel, LoopChannel
from asyncloader.transport.codec import Decoder
from asyncloader.workers import handle as handle_module
from asyncloader.workers.handle import LOST, READY, REFUSING, WorkerHandle
from asyncloader.workers.messages import (
    NO_EPOCH,
    FrameKind,
    Ready,
    StartFailed,
    Tallied,
    dump_message,
    dump_slots,
)
from asyncloader.workers.remote_errors import pack_error
from tests.descriptors import only_free

LONG = 60.0


@dataclass
class Worker:
    """A worker that is the far end of its channel, and a note of whether it was killed."""

    sock: socket.socket
    channel: Channel
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    def open_channel(self) -> LoopChannel:
        return LoopChannel(self.sock)

    def open_items(self, wake: Any, *, copy_beyond: int) -> Decoder:
        return Decoder(ArenaView(wake, copy_beyond=copy_beyond))

    def work_for(self, home: Any) -> None:
        pass

    def kill(self) -> None:
        self.killed.set()

    def on_death(self, *_: Any) -> Any:
        # A watch has a descriptor of its own.
        fd = os.dup(self.sock.fileno())
        return lambda: os.close(fd)


@contextlib.contextmanager
def fed() -> Iterator[tuple[WorkerHandle, Worker, socket.socket]]:
    """Give a handle on the running loop, its worker, and the worker's end of its line."""
    ours, theirs = socket.socketpair()
    to_worker, from_loader = socket.socketpair()
    worker = Worker(ours, Channel(theirs))
    handle = WorkerHandle("worker 3", 3, worker)  # type: ignore[arg-type]  # of a process it has enough
    handle.attach(asyncio.get_running_loop(), lambda: None)
    handle.add_line(LoopChannel(to_worker), 1 << 20)
    with theirs, from_loader:
        try:
            yield handle, worker, from_loader
        finally:
            handle.close()


async def test_without_a_descriptor_for_a_worker_it_is_not_listened_to_until_there_is_one():
    ours, theirs = socket.socketpair()
    worker, loop = Worker(ours, Channel(theirs)), asyncio.get_running_loop()
    handle = WorkerHandle("worker 3", 3, worker)  # type: ignore[arg-type]  # of a process it has enough
    with theirs:
        with only_free(0), pytest.raises(ResourceExhausted, match="watching over worker 3"):
            handle.attach(loop, lambda: None)
        handle.attach(loop, lambda: None)
        handle.detach()
        # The watch stays, so a later epoch on the same loop needs none.
        with only_free(0):
            handle.attach(loop, lambda: None)
        assert not worker.killed.is_set()
        handle.close()


async def test_a_worker_whose_descriptors_could_not_be_received_is_not_said_to_make_no_sense():
    with fed() as (handle, worker, _):
        worker.channel.send(FrameKind.MESSAGE, b"", os.pipe())
        with only_free(1):
            async with asyncio.timeout(LONG):
                await worker.killed.wait()
        assert type(handle.failure) is ResourceExhausted
        assert "close files, or raise the limit" in str(handle.failure)
        assert handle.failure.__notes__ == [
            "what worker 3 sent could not be received; it was killed"
        ]


NONSENSE = {
    "noise": (lambda sock: sock.sendall(b"noise" * 20), "begins with b'nois'"),
    "a message": (
        lambda sock: Channel(sock).send(FrameKind.MESSAGE, b"noise"),
        "could not be read",
    ),
    "a slot": (lambda sock: Channel(sock).send(FrameKind.RELEASED, dump_slots([7])), "is not lent"),
}


@pytest.mark.parametrize(("speak", "says"), NONSENSE.values(), ids=NONSENSE)
async def test_a_worker_that_makes_no_sense_on_its_line_is_killed_with_an_error_that_names_it(
    speak, says
):
    with fed() as (handle, worker, line):
        speak(line)
        async with asyncio.timeout(LONG):
            await worker.killed.wait()
        assert type(handle.failure) is TransportError
        assert says in str(handle.failure)
        assert handle.failure.worker == 3
        assert "what worker 3 sent was malformed" in handle.failure.__notes__[0]


class Speechless(Exception):
    def __repr__(self) -> str:
        raise TypeError("no words")

    __str__ = __repr__


async def test_an_error_at_the_start_that_cannot_say_what_it_is_is_heard():
    with fed() as (handle, worker, _):
        failed = asyncio.Event()
        handle.on_news = failed.set
        error = pack_error(Speechless(), "in worker 3 of 4")
        worker.channel.send(FrameKind.MESSAGE, dump_message(StartFailed(NO_EPOCH, error)))
        async with asyncio.timeout(LONG):
            await failed.wait()
        assert type(handle.failure) is WorkerStartupError
        assert "could not be set up: Speechless" in str(handle.failure)
        assert type(handle.failure.__cause__) is Speechless


async def test_a_worker_that_cannot_begin_an_epoch_may_begin_the_next():
    with fed() as (handle, worker, _):
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        handle.detach()
        handle.join_epoch(1, loop, news.set)
        error = pack_error(ValueError("not this one"), "in worker 3 of 4")
        worker.channel.send(FrameKind.MESSAGE, dump_message(Ready()))
        worker.channel.send(FrameKind.MESSAGE, dump_message(StartFailed(1, error)))
        await _until(lambda: handle.life is REFUSING, news)
        assert "not this one" in str(handle.failure)
        handle.detach()
        handle.join_epoch(2, loop, news.set)
        assert handle.life is READY
        assert handle.failure is None


async def test_a_worker_that_was_given_up_stays_lost_whatever_it_says():
    with fed() as (handle, worker, _):
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        handle.detach()
        handle.join_epoch(1, loop, news.set)
        first = WorkerStartupError("it took too long")
        handle.fail(first)
        handle.fail(WorkerStartupError("it took longer still"))
        worker.channel.send(FrameKind.MESSAGE, dump_message(Ready(has_other_length=True)))
        error = pack_error(ValueError("not this one"), "in worker 3 of 4")
        worker.channel.send(FrameKind.MESSAGE, dump_message(StartFailed(1, error)))
        worker.channel.send(FrameKind.MESSAGE, dump_message(Tallied(1, b"the last")))
        await _until(lambda: handle.tally == b"the last", news)
        handle.detach()
        handle.join_epoch(2, loop, news.set)
        assert handle.life is LOST
        assert handle.failure is first


async def _until(ready: Callable[[], bool], news: asyncio.Event) -> None:
    async with asyncio.timeout(LONG):
        while not ready():
            await news.wait()
            news.clear()


async def test_a_worker_that_closes_its_line_and_lives_on_is_killed(monkeypatch):
    monkeypatch.setattr(handle_module, "_DEATH_SECONDS", 0.01)
    with fed() as (_, worker, line):
        line.shutdown(socket.SHUT_RDWR)
        async with asyncio.timeout(LONG):
            await worker.killed.wait()
