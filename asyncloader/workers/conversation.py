"""One end of a conversation that blocks: a worker's, or the dispatching process's.

This file is about ``Conversation``: commands in, reports and items out, and the slots of
shared memory that come and go beside them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Encoded, Encoder, never_wait
from asyncloader.transport.frame import Frame
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

# Looking whether something was said costs about as much as making a few tiny items.
_LISTEN_SECONDS = 0.0002

#: What is smaller is packed into a slot with others.
_WORTH_A_SLOT = 64 << 10


def refuse(sock: socket.socket, error: ResourceExhausted) -> None:
    """Tell the loader that a new process cannot work for it."""
    failure = StartFailed(NO_EPOCH, pack_error(error, "in a new process"))
    with contextlib.suppress(EOFError):
        Channel(sock).send(FrameKind.MESSAGE, dump_message(failure))


class Conversation:
    """What a process hears and says; every wait ends when the other closes the channel.

    With ``waits``, sending waits until the socket and the shared memory have room.
    Without, what finds no room is kept, and ``flush`` sends it later.
    """

    def __init__(self, channel: Channel, *, waits: bool = True) -> None:
        self._channel = channel
        self._arena = Arena(0)
        self._heard: deque[Command] = deque()
        self._listen_at = 0.0
        #: Descriptors that came with commands; the one who takes them closes them.
        self.fds: list[int] = []
        #: The streams, by epoch and number, whose next item the loader waits for.
        self._hurried: set[tuple[int, int]] = set()
        #: Gives what is told of this process's work along with the end of a stream.
        self.tally: Callable[[], bytes] = bytes
        #: Held while a frame of items is made or sent.
        self.lock = threading.RLock()
        self._say = channel.send if waits else channel.post
        on_full = self._wait_for_slot if waits else never_wait
        self.encoder = Encoder(self._arena, on_full=on_full)

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
        """Return the commands that are there already."""
        for frame in self._channel.receive_ready():
            self._hear(frame)
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def commands_by_now(self) -> list[Command]:
        """Return the commands that were there a moment ago; for a process that asks often."""
        now = monotonic()
        if now < self._listen_at and not self._heard:
            return []
        self._listen_at = now + _LISTEN_SECONDS
        return self.commands()

    def fileno(self) -> int:
        """The channel's descriptor, readable when there is something to hear."""
        return self._channel.fileno()

    def flush(self) -> None:
        """Send what there was no room for, as far as there is now."""
        self._channel.flush()

    def has_unsent(self) -> bool:
        """Whether something waits for room."""
        return self._channel.has_unsent()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def allocate(self, nbytes: int) -> memoryview | None:
        """Return memory that an item may be made in and is then sent from, if there is any."""
        if nbytes < _WORTH_A_SLOT:
            return None
        try:
            with self.lock:
                slot = self._arena.allocate(nbytes)
        except ResourceExhausted:
            return None  # sending the item raises this, if it is still so then
        return None if slot is None else slot.view

    def report(self, report: Report | Dealt) -> None:
        """Tell the other end something."""
        if isinstance(report, StreamEnded | StreamFailed):
            self._hurried.discard((report.epoch, report.stream))
            report = self._with_tally(report)
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
        """Send a frame of items, and that it is the last; waits while the socket is full.

        ``cost`` is how many credits it uses up, and ``note`` what it says of its stream.
        """
        self._hurried.discard((epoch, stream))
        head = items_head(epoch, stream, cost, note)
        then = [(FrameKind.MESSAGE, dump_message(self._with_tally(each))) for each in ending]
        self._say(FrameKind.ITEMS, [head, *items.parts], items.fds, then)

    def take_fds(self, plan_fds: int) -> tuple[list[int], list[int]]:
        """Hand over the descriptors that came with a Setup: the plan's, and the channels."""
        fds, self.fds = self.fds, []
        return fds[:plan_fds], fds[plan_fds:]

    def _with_tally(self, ending: StreamEnded | StreamFailed) -> StreamEnded | StreamFailed:
        return replace(ending, tally=self.tally())

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.MESSAGE:
                self.fds += frame.fds
                self._note_command(load_command(frame.payload))
            case FrameKind.RELEASED:
                with self.lock:
                    self._arena.release(load_slots(frame.payload))
            case _:
                raise TransportError(f"a frame of kind {frame.kind} is not for a worker")

    def _note_command(self, command: Command) -> None:
        if isinstance(command, Hurry):
            self._hurried.add((command.epoch, command.stream))
            return
        # An epoch whose streams have all come to their end is not ended, but another begins.
        if isinstance(command, EndEpoch | StartEpoch):
            self._hurried.clear()
        self._heard.append(command)

    def _wait_for_slot(self, nbytes: int) -> bool:
        """Wait until something was said; False where waiting on cannot help.

        A loader that waits for an item may hold all the memory meanwhile: leased to its
        consumer, or in frames of another stream.
        """
        if not self._hurried:
            self._hear(self._channel.receive())
        return not self._hurried and not any(isinstance(each, EndEpoch) for each in self._heard)
