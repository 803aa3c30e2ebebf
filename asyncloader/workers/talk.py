"""The worker's end of the conversation.

This file is about ``Talk``: commands in, reports and items out, and the slots of
shared memory that come and go beside them.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic

from asyncloader.errors import TransportError
from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Encoded, Encoder
from asyncloader.transport.frame import Frame
from asyncloader.workers.messages import (
    Command,
    EndEpoch,
    Kind,
    Report,
    dump_message,
    items_head,
    load_command,
    load_slots,
)

# Looking whether something was said costs about as much as making a few tiny items.
_LISTEN_SECONDS = 0.0002


class Talk:
    """What a worker hears and says; every wait ends when the loader closes the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arena = Arena(0)
        self._heard: deque[Command] = deque()
        self._listen_at = 0.0
        #: Held by whoever makes or sends a frame of items.
        self.lock = threading.Lock()
        self.encoder = Encoder(self._arena, on_full=self._wait_for_slot)

    @property
    def arena(self) -> Arena:
        """The shared memory that items are sent through."""
        return self._arena

    def command(self) -> Command:
        """Wait for the next command; EOFError once the loader is gone."""
        while not self._heard:
            self._hear(self._channel.receive())
        return self._heard.popleft()

    def commands(self) -> list[Command]:
        """Return the commands that are there already; who asks often is told a bit later."""
        now = monotonic()
        if now >= self._listen_at:
            self._listen_at = now + _LISTEN_SECONDS
            for frame in self._channel.receive_ready():
                self._hear(frame)
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def report(self, report: Report) -> None:
        """Tell the loader something."""
        self._channel.send(Kind.MESSAGE, dump_message(report))

    def send_items(self, epoch: int, stream: int, items: Encoded) -> None:
        """Send a frame of items, waiting while the socket is full."""
        self._channel.send(Kind.ITEMS, [items_head(epoch, stream), *items.parts], items.fds)

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.MESSAGE:
                self._heard.append(load_command(frame.payload))
            case Kind.RELEASED:
                self._arena.release(load_slots(frame.payload))
            case _:
                raise TransportError(f"a frame of kind {frame.kind} is not for a worker")

    def _wait_for_slot(self, nbytes: int) -> bool:
        """Wait until something was said; False where waiting on would be in vain."""
        self._hear(self._channel.receive())
        return not any(isinstance(command, EndEpoch) for command in self._heard)
