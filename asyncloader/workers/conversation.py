"""The blocking end of a conversation with the loader: a worker's, or the dispatching process's.

This file is about ``Conversation``: it receives commands, sends reports and items, and exchanges
the slots of shared memory that they use.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.memory import Segment
from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Encoded, never_wait
from asyncloader.transport.ends import BlockingEnd
from asyncloader.transport.frame import Frame
from asyncloader.workers.handing import encoder_for
from asyncloader.workers.messages import (
    NO_EPOCH,
    NO_NOTE,
    Command,
    Dealt,
    EndEpoch,
    FrameKind,
    Hurry,
    Note,
    Report,
    StartEpoch,
    StartFailed,
    StreamEnded,
    StreamFailed,
    dump_message,
    items_head,
    load_command,
    load_slots,
)
from asyncloader.workers.remote_errors import pack_error
from asyncloader.workers.whereabouts import Whereabouts

# Checking for messages costs about as much as making a few tiny items.
_LISTEN_SECONDS = 0.0002

#: Smaller buffers share a slot.
_WORTH_A_SLOT = 64 << 10


def refuse(sock: socket.socket, error: ResourceExhausted) -> None:
    """Tell the loader that a new process cannot work for it."""
    failure = StartFailed(NO_EPOCH, pack_error(error, "in a new process"))
    with contextlib.suppress(EOFError):
        Channel(sock).send(FrameKind.MESSAGE, dump_message(failure))


class Conversation:
    """Receives commands and sends messages; every wait ends when the other end closes the channel.

    With ``waits``, sending blocks until the socket and the shared memory have room.
    Without it, messages that do not fit are kept, and ``flush`` sends them later.
    """

    def __init__(self, channel: BlockingEnd, *, waits: bool = True) -> None:
        self._channel = channel
        #: Where this process is, for messages.
        self.place = channel.place
        self._arena = Arena(0)
        channel.lend_from(self._arena)
        self._heard: deque[Command] = deque()
        self._listen_at = 0.0
        #: Descriptors that came with commands; the code that takes them closes them.
        self._fds: list[Any] = []
        #: The streams (epoch and number) whose next item the loader is waiting for.
        self._hurried: set[tuple[int, int]] = set()
        #: Returns this process's tally, which is sent with the end of a stream.
        self.tally: Callable[[], bytes] = bytes
        #: Held while a frame of items is made or sent.
        self.lock = threading.RLock()
        self._say = channel.send if waits else channel.post
        on_full = self._wait_for_slot if waits else never_wait
        self.encoder = encoder_for(channel, self._arena, on_full=on_full)
        #: Whether items are handed over as they are, and may be in whatever memory.
        self.hands_over = channel.hands_over
        #: Where it notes what it is making; nobody reads it until there is memory for it.
        self.whereabouts = Whereabouts()

    @property
    def arena(self) -> Arena:
        """The shared memory that items are sent through."""
        return self._arena

    def command(self) -> Command:
        """Wait for the next command; EOFError once the loader is gone."""
        while not self._heard:
            self._hear(self._channel.receive())
        self._listen_at = monotonic() + _LISTEN_SECONDS
        return self._heard.popleft()

    def commands(self) -> list[Command]:
        """Return the commands that have arrived; do not wait."""
        for frame in self._channel.receive_ready():
            self._hear(frame)
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def commands_by_now(self) -> list[Command]:
        """Return the commands that have arrived; check only now and then, for frequent calls."""
        now = monotonic()
        if now < self._listen_at and not self._heard:
            return []
        self._listen_at = now + _LISTEN_SECONDS
        return self.commands()

    def fileno(self) -> int:
        """The channel's descriptor, which is readable when a message has arrived."""
        return self._channel.fileno()

    def flush(self) -> None:
        """Send kept messages as far as there is room now."""
        self._channel.flush()

    def has_unsent(self) -> bool:
        """Whether messages are kept for lack of room."""
        return self._channel.has_unsent()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def allocate(self, nbytes: int) -> memoryview | None:
        """Return shared memory in which an item can be made, or None if there is none."""
        if nbytes < _WORTH_A_SLOT or self.hands_over:
            return None
        try:
            with self.lock:
                return self._arena.allocate(nbytes)
        except ResourceExhausted:
            return None  # if it is still so, sending the item raises this

    def report(self, report: Report | Dealt) -> None:
        """Send a message to the other end."""
        if isinstance(report, StreamEnded | StreamFailed):
            self._hurried.discard((report.epoch, report.stream))
            report = replace(report, tally=self.tally())
        self._say(FrameKind.MESSAGE, dump_message(report))

    def send_items(
        self,
        epoch: int,
        stream: int,
        cost: int,
        items: Encoded,
        note: Note = NO_NOTE,
        ending: Sequence[StreamEnded | StreamFailed] = (),
    ) -> None:
        """Send a frame of items, maybe with the end of the stream; wait while the socket is full.

        ``cost`` is the number of credits it uses, and ``note`` is about its stream.
        """
        self._hurried.discard((epoch, stream))
        head = items_head(epoch, stream, cost, note)
        then = [
            (FrameKind.MESSAGE, dump_message(replace(each, tally=self.tally()))) for each in ending
        ]
        self._say(FrameKind.ITEMS, [head, *items.parts], items.fds, then)

    def take_fds(self, plan_fds: int, *, has_memory: bool) -> tuple[list[Any], list[Any]]:
        """Return the descriptors that came with a Setup for its plan, and the channels.

        With ``has_memory`` the last one is of the memory for the whereabouts.
        """
        fds, self._fds = self._fds, []
        if has_memory:
            self.whereabouts = Whereabouts(Segment.attach(fds.pop()).view)
        return fds[:plan_fds], list(map(self._channel.opened, fds[plan_fds:]))

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.MESSAGE:
                self._fds += frame.fds
                command = load_command(frame.payload)
                if isinstance(command, Hurry):
                    self._hurried.add((command.epoch, command.stream))
                    return
                # An epoch whose streams have all ended may get no EndEpoch: the next one begins.
                if isinstance(command, EndEpoch | StartEpoch):
                    self._hurried.clear()
                self._heard.append(command)
            case FrameKind.RELEASED:
                with self.lock:
                    self._arena.release(load_slots(frame.payload))
            case _:
                raise TransportError(f"a frame of kind {frame.kind} is not for a worker")

    def _wait_for_slot(self, nbytes: int) -> bool:
        """Wait for a message; False if waiting longer cannot help.

        A loader that waits for this item may itself hold all the memory: leased to its
        consumer, or in frames of another stream.
        """
        if not self._hurried:
            self._hear(self._channel.receive())
        return not self._hurried and not any(isinstance(each, EndEpoch) for each in self._heard)
