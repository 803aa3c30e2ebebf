"""What came from a worker waits in order, and goes back where nobody takes it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
import torch

from asyncloader.errors import TransportError
from asyncloader.transport.arena import Arena, ArenaView
from asyncloader.transport.codec import Decoder, Encoder
from asyncloader.workers.inbox import Inbox


class Sender:
    """A worker's end: items become frames, with large buffers in shared memory."""

    def __init__(self, copy_beyond: int = sys.maxsize) -> None:
        self.arena = Arena(64 << 20)
        self.encoder = Encoder(self.arena)
        self.view = ArenaView(copy_beyond=copy_beyond)
        self.decoder = Decoder(self.view)
        self.inbox = Inbox(self.decoder, worker=3)

    def send(self, items: list[Any]) -> None:
        encoded = self.encoder.encode(items)
        self.inbox.put(self.decoder.admit(b"".join(encoded.parts), encoded.fds))

    def take_back(self) -> int:
        """Return how many bytes are lent after what came back was taken."""
        self.arena.release(self.view.take_released())
        return self.arena.lent_bytes


def refuse() -> None:
    raise ValueError("not here")


class NotHere:
    def __reduce__(self) -> Any:
        return refuse, ()


def test_frames_are_opened_one_by_one():
    sender = Sender()
    inbox = sender.inbox
    granted: list[int] = []
    inbox.on_credits(lambda inbox, credits: granted.append(credits), more_than=0)
    assert not inbox.has_something()
    sender.send([1, 2, 3])
    sender.send([4])
    assert (inbox.has_something(), inbox.left, inbox.open()) == (True, 0, 3)
    assert inbox.take(2) == [1, 2]
    assert (inbox.open(), granted) == (1, [])
    assert inbox.take(1) == [3]
    assert (inbox.left, granted) == (0, [1])
    assert inbox.open() == 1
    assert inbox.take(1) == [4]
    assert not inbox.has_something()
    inbox.end()
    assert inbox.has_something()
    assert inbox.is_over()


def test_the_first_end_counts():
    inbox = Sender().inbox
    inbox.end(ValueError("first"))
    inbox.end(ValueError("second"))
    assert inbox.error.args == ("first",)


def test_an_item_that_cannot_be_read_ends_the_stream_in_its_place():
    sender = Sender()
    sender.send([1, NotHere(), 3])
    sender.send([bytes(100_000)])
    inbox = sender.inbox
    assert inbox.open() == 1
    assert inbox.take(1) == [1]
    assert inbox.is_over()
    assert isinstance(inbox.error, TransportError)
    assert inbox.error.worker == 3
    # What was behind it goes back, and so does what still comes.
    assert sender.take_back() == 0
    sender.send([bytes(100_000)])
    assert (inbox.is_over(), inbox.open()) == (True, 0)
    assert sender.take_back() == 0


def test_what_is_dropped_goes_back():
    sender = Sender()
    for _ in range(3):
        sender.send([bytes(100_000)])
    sender.inbox.open()
    assert sender.take_back() > 0
    sender.inbox.drop()
    assert sender.take_back() == 0
    assert not sender.inbox.has_something()


def test_large_memory_is_copied_in_a_thread_and_small_memory_where_it_is_opened():
    sender = Sender(copy_beyond=9 << 20)
    inbox = sender.inbox
    for nbytes in (8 << 20, 8 << 20, 2 << 20):
        sender.send([torch.full((nbytes,), 3, dtype=torch.uint8)])
    assert not inbox.has_slow_frame()
    assert inbox.open() == 1
    held = inbox.take(1)
    assert inbox.has_slow_frame()
    assert inbox.open() == 0
    asyncio.run(inbox.open_slow())
    (copied,) = inbox.take(1)
    assert (copied == 3).all()
    # It is short of memory for this too, but that takes no time.
    assert not inbox.has_slow_frame()
    assert inbox.open() == 1
    assert sender.view.leased_bytes == 8 << 20
    del held


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_a_frame_with_a_large_pickle_is_opened_in_a_thread(count):
    sender = Sender()
    inbox = sender.inbox
    sender.send([list(range(count))])
    is_large = count > 1000
    assert inbox.has_slow_frame() == is_large
    assert inbox.open() == (0 if is_large else 1)
    if is_large:
        asyncio.run(inbox.open_slow())
    assert not inbox.has_slow_frame()
    assert inbox.open() == 1
