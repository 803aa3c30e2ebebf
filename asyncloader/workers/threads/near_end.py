"""A channel within one process.

This file is about ``NearEnd``, which blocks, and ``NearLoopEnd``, which belongs to an event loop.
Frames are put into the other end's queue, with what is sent beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import OnClosed, OnFrames
from asyncloader.transport.frame import Buffer, Frame
from asyncloader.waiting import call_soon

#: Rings that nobody has heard yet are heard at once.
_MOST_RINGS = 1 << 10


def channel_to_loop() -> tuple[NearLoopEnd, NearEnd]:
    """Return the two ends of a channel: a loader's, and that of a thread of its own."""
    ends = NearLoopEnd(), NearEnd()
    _connect(*ends)
    return ends


def channel_between() -> tuple[NearEnd, NearEnd]:
    """Return the two ends of a channel between two threads."""
    ends = NearEnd(), NearEnd()
    _connect(*ends)
    return ends


def _connect(one: NearEnd, other: NearEnd) -> None:
    one.connect(other)
    other.connect(one)


class NearEnd:
    """The blocking end of a channel. All of it may be used from any thread.

    An end does not keep the other one alive, and when that is gone the channel has ended: a
    loader that is dropped ends its threads.
    """

    place = ""
    hands_over = True

    def __init__(self) -> None:
        # The lock may be taken twice: a garbage collection within a method may end the other end.
        self._changed = threading.Condition()
        self._frames: deque[Frame] = deque()
        self._count = 0
        self._has_ended = False
        #: When the channel has ended, on the clock of ``time.monotonic``.
        self.ended_at = 0.0
        self._other: weakref.ref[NearEnd] | None = None
        #: Its first end is readable while a frame waits, once somebody has asked for a descriptor.
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def connect(self, other: NearEnd) -> None:
        """Learn which is the other end."""
        self._other = weakref.ref(other, lambda _: self.end())

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        other = self._other_end()
        if other is None or self._has_ended:
            raise EOFError("the other end of the channel is closed")
        parts = payload if isinstance(payload, list | tuple) else (payload,)
        other._put([(kind, b"".join(parts), tuple(fds)), *((*each, ()) for each in then)])

    post = send

    def flush(self) -> None:
        """Do nothing: there is room for all."""

    def has_unsent(self) -> bool:
        return False

    def receive(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._has_ended)
            self._check_not_over()
            return self._frames.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._changed:
            if self._bell is not None:
                with contextlib.suppress(BlockingIOError):
                    self._bell[0].recv(_MOST_RINGS)
            if self._has_ended:
                self._check_not_over()
            frames, self._frames = list(self._frames), deque()
            return frames

    def opened(self, end: NearEnd) -> NearEnd:
        """Return an end that came over this one."""
        return end

    def lend_from(self, arena: Arena) -> None:
        """Do nothing: items are in no arena."""

    def fileno(self) -> int:
        with self._changed:
            if self._bell is None:
                self._bell = socket.socketpair()
                for each in self._bell:
                    each.setblocking(False)
                if self._frames or self._has_ended:
                    self._wake()
            return self._bell[0].fileno()

    def close(self) -> None:
        """End the channel, for both ends."""
        self.end()
        other = self._other_end()
        if other is not None:
            other.end()
        with self._changed:
            for each in self._bell or ():
                each.close()
            self._bell = None

    def end(self) -> None:
        """Note that nothing more will arrive; from any thread."""
        with self._changed:
            if not self._has_ended:
                self._has_ended, self.ended_at = True, time.monotonic()
            self._wake()

    def _other_end(self) -> NearEnd | None:
        return None if self._other is None else self._other()

    def _put(self, frames: Sequence[tuple[int, Any, tuple[Any, ...]]]) -> None:
        with self._changed:
            if self._has_ended:
                raise EOFError("the other end of the channel is closed")
            for kind, payload, things in frames:
                self._frames.append(Frame(kind, payload, self._count, things))
                self._count += 1
            self._wake()

    def _wake(self) -> None:
        """Wake whoever waits for frames, or for the end; with the lock."""
        self._changed.notify_all()
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                self._bell[1].send(b"!")

    def _check_not_over(self) -> None:
        if self._has_ended and not self._frames:
            raise EOFError("the other end of the channel is closed")


class NearLoopEnd(NearEnd):
    """The end of a channel whose frames go to an event loop. What is sent to nobody is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frames: OnFrames = _ignore
        self._on_closed: OnClosed = _ignore
        #: Whether the loop will look at what has arrived.
        self._is_due = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = loop, on_frames, on_closed
            self._is_due = True
        loop.call_soon(self._deliver)

    def detach(self) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = None, _ignore, _ignore

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        with contextlib.suppress(EOFError):
            super().send(kind, payload, fds, then)

    def close(self) -> None:
        self.detach()
        super().close()

    def _wake(self) -> None:
        super()._wake()
        if self._loop is not None and not self._is_due:
            self._is_due = True
            call_soon(self._loop, self._deliver)

    def _deliver(self) -> None:
        with self._changed:
            self._is_due = False
            if self._loop is None:
                return
            frames, self._frames = list(self._frames), deque()
            on_frames, on_closed = self._on_frames, self._on_closed
            if has_ended := self._has_ended:
                self._on_closed = _ignore
        if frames:
            on_frames(frames)
        if has_ended:
            on_closed(EOFError("the worker's thread is gone"))


def _ignore(news: object) -> None:
    """Ignore news that nobody waits for."""
