"""The ends of a conversation, whatever carries its frames.

This file is about what everybody may ask of an end: ``BlockingEnd``, at which a thread waits, and
``LoopEnd``, which tells an event loop. ``QueuedEnd`` is both, for frames that come from other
threads of this process.

                             in the loader         in a worker
    over a socket            LoopChannel   ◀────▶  Channel
    between threads          NearLoopEnd   ◀────▶  NearEnd
    by calls of Ray          FarEnd        ◀────▶  Mailbox

Two workers talk over two ends of the second column, or over a ``FarEnd`` and a ``Mailbox``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asyncloader.transport.arena import Arena
from asyncloader.transport.frame import Buffer, Frame
from asyncloader.waiting import call_soon, do_nothing

OnFrames = Callable[[list[Frame]], None]
OnClosed = Callable[[Exception], None]

#: Rings that nobody has heard yet are heard at once.
_MOST_RINGS = 1 << 10


class End(ABC):
    """One end of a conversation: it sends frames in order, until either end is closed."""

    #: Where this end is, for messages; empty on the loader's own machine.
    place = ""
    #: Whether both ends are in one process, so that items are handed over as they are.
    hands_over = False

    @abstractmethod
    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send a frame; ``fds`` are given away.

        The frames of ``then``, each a kind and a payload, are sent with it: one wake-up. Where no
        descriptors can be sent, ``fds`` are other things for the same purpose.
        """

    @abstractmethod
    def close(self) -> None:
        """End the conversation, for both ends."""


class BlockingEnd(End):
    """An end that any thread may use, and at which it waits.

    Every method that meets the end of the conversation raises ``EOFError``; what had arrived
    before is received first. By default there is room for all that is sent.
    """

    @abstractmethod
    def receive(self) -> Frame:
        """Wait for the next frame and return it."""

    @abstractmethod
    def receive_ready(self) -> list[Frame]:
        """Return the frames that are there already; does not wait."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when a frame, or the end, has come."""

    def post(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send frames as ``send`` does, but only what there is room for; ``flush`` the rest."""
        self.send(kind, payload, fds, then)

    def flush(self) -> None:
        """Send what there is room for of the frames that were posted."""

    def has_unsent(self) -> bool:
        """Whether a posted frame waits for room."""
        return False

    def opened(self, fd: Any) -> BlockingEnd:
        """Return the end of another conversation that came over this one."""
        end: BlockingEnd = fd
        return end

    def lend_from(self, arena: Arena) -> None:
        """Note that frames of items speak of slots of this arena."""


class LoopEnd(End):
    """An end that belongs to an event loop, to one after another. To send never waits.

    What is sent when the other end is gone is dropped: ``on_closed`` tells.
    """

    @abstractmethod
    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        """Pass what arrives to ``on_frames``, many frames at once, and the end to ``on_closed``.

        That is called once for each attachment, after the last frames.
        """

    @abstractmethod
    def detach(self) -> None:
        """Leave the loop; what arrives waits."""


class QueuedEnd(BlockingEnd, LoopEnd):
    """An end at which other threads of this process put what arrives, by ``arrive``.

    A thread takes it, or a loop to which this is attached. All of it may be used from any thread.
    """

    #: What is said of the other end when that is gone.
    gone = "the other end of the channel is closed"

    def __init__(self) -> None:
        # The lock may be taken twice: a garbage collection within a method may end a conversation.
        self._changed = threading.Condition()
        self._arrived: deque[Frame] = deque()
        self._count = 0
        self._has_ended = False
        #: When nothing more was to arrive, on the clock of ``time.monotonic``.
        self.ended_at = 0.0
        #: Its first end is readable while a frame waits, once somebody has asked for a descriptor.
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frames: OnFrames = do_nothing
        self._on_closed: OnClosed = do_nothing
        #: Whether the loop will look at what has arrived.
        self._is_due = False

    def arrive(self, frames: Iterable[tuple[int, bytes, tuple[Any, ...]]]) -> bool:
        """Add frames, each a kind, a payload and what came beside it; False after the end."""
        with self._changed:
            if self._has_ended:
                return False
            for kind, payload, things in frames:
                self._arrived.append(Frame(kind, payload, self._count, things))
                self._count += 1
            self._wake()
            return True

    def end(self) -> None:
        """Note that nothing more will arrive."""
        with self._changed:
            if not self._has_ended:
                self._has_ended, self.ended_at = True, time.monotonic()
            self._wake()

    def close(self) -> None:
        self.detach()
        self.end()
        with self._changed:
            for each in self._bell or ():
                each.close()
            self._bell = None

    def receive(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._has_ended)
            self._check_not_over()
            return self._arrived.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._changed:
            if self._bell is not None:
                with contextlib.suppress(BlockingIOError):
                    self._bell[0].recv(_MOST_RINGS)
            self._check_not_over()
            return self._taken()

    def fileno(self) -> int:
        with self._changed:
            if self._bell is None:
                self._bell = socket.socketpair()
                for each in self._bell:
                    each.setblocking(False)
                if self._arrived or self._has_ended:
                    self._wake()
            return self._bell[0].fileno()

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = loop, on_frames, on_closed
            self._is_due = True
        loop.call_soon(self._deliver)

    def detach(self) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = None, do_nothing, do_nothing

    def _wake(self) -> None:
        """Wake whoever waits for frames, or for the end; with the lock."""
        self._changed.notify_all()
        if self._bell is not None:
            # If it is full, it rings already.
            with contextlib.suppress(BlockingIOError):
                self._bell[1].send(b"!")
        if self._loop is not None and not self._is_due:
            self._is_due = True
            call_soon(self._loop, self._deliver)

    def _deliver(self) -> None:
        with self._changed:
            self._is_due = False
            if self._loop is None:
                return
            frames = self._taken()
            on_frames, on_closed = self._on_frames, self._on_closed
            if has_ended := self._has_ended:
                self._on_closed = do_nothing
        if frames:
            on_frames(frames)
        if has_ended:
            on_closed(EOFError(self.gone))

    def _taken(self) -> list[Frame]:
        frames, self._arrived = list(self._arrived), deque()
        return frames

    def _check_not_over(self) -> None:
        if self._has_ended and not self._arrived:
            raise EOFError(self.gone)


def joined(payload: Buffer | Sequence[Buffer]) -> bytes:
    """Return a payload in one piece."""
    return b"".join(payload if isinstance(payload, list | tuple) else (payload,))
