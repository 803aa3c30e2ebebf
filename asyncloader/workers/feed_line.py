"""One worker's share of what the loader feeds.

This file is about ``FeedLine``: the loader's end of the channel by which a worker is dealt
items as it asks for them, and the items that have not come back yet.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.envelope import Envelope, Key
from asyncloader.transport.arena import Arena
from asyncloader.transport.encoder import Encoder
from asyncloader.transport.frame import Frame
from asyncloader.transport.loop_channel import LoopChannel
from asyncloader.workers.messages import (
    NO_EPOCH,
    EndEpoch,
    Grant,
    Kind,
    StreamEnded,
    dump_message,
    items_head,
    load_command,
    load_slots,
)


class FeedLine:
    """Deals items to one worker, as far as it grants. All methods belong to the loop."""

    def __init__(self, sock: socket.socket, arena_bytes: int) -> None:
        #: How many more items the worker asks for.
        self.credits = 0
        #: What the worker has and has not given back, oldest first, with the time of dealing.
        self.out: dict[Key, tuple[Envelope, float]] = {}
        self.on_credit: Callable[[], None] = _nothing
        self._channel = LoopChannel(sock)
        self._arena = Arena(arena_bytes)
        self._encoder = Encoder(self._arena)
        self._epoch = NO_EPOCH

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the worker on a loop."""
        self._channel.attach(loop, self._receive, _gone)

    def detach(self) -> None:
        """Leave the loop."""
        self._channel.detach()

    def begin_epoch(self, epoch: int) -> None:
        """Deal for an epoch, as soon as the worker asks."""
        self.end_epoch()
        self._epoch = epoch

    def end_epoch(self) -> None:
        """Tell a worker that waits for items that none will come."""
        if self._epoch != NO_EPOCH:
            self._say(EndEpoch(self._epoch))
        self._epoch = NO_EPOCH
        self.credits = 0
        self.out.clear()
        self.on_credit = _nothing

    def deal(self, item: Any) -> None:
        """Send an item; raises what pickling it raised, and nothing is sent then."""
        key = item.key if isinstance(item, Envelope) else None
        # The key stands beside the item, to be known where the item cannot be read.
        encoded = self._encoder.encode([key, item])
        head = items_head(self._epoch, 0)
        self._channel.send(Kind.ITEMS, [head, *encoded.parts], encoded.fds)
        self.credits -= 1
        if key is not None:
            self.out[key] = (item, time.monotonic())

    def finish(self) -> None:
        """Say that every item was dealt."""
        self._say(StreamEnded(self._epoch, 0))

    def close(self) -> None:
        """Close the channel, and give the shared memory back."""
        self._channel.close()
        self._arena.close()

    def _say(self, message: EndEpoch | StreamEnded) -> None:
        self._channel.send(Kind.MESSAGE, dump_message(message))

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind == Kind.RELEASED:
                self._arena.release(load_slots(frame.payload))
            else:
                self._heed(frame)

    def _heed(self, frame: Frame) -> None:
        command = load_command(frame.payload)
        if isinstance(command, Grant) and command.epoch == self._epoch:
            self.credits += command.credits
            self.on_credit()


def _gone(error: Exception) -> None:
    """What to do when the worker is gone: nothing, its link sees that and says so."""


def _nothing() -> None:
    """What to do about credits that nobody waits for."""
