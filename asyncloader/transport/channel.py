"""Channels: frames over one inherited socketpair.

This file is about ``Channel``, the end that blocks and may be used from several
threads; ``LoopChannel`` is the end that belongs to an event loop. Descriptors
travel with the frame they were sent with.

    LoopChannel  ◀── AF_UNIX stream ──▶  Channel
    (loader)         frames, fds         (worker)
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence

from asyncloader.transport.frame import MAX_PAYLOAD, Buffer, Frame, encode_frames
from asyncloader.transport.wire import (
    BUFFERS_PER_CALL,
    FRAME_DEADLINE,
    GONE,
    Incoming,
    close_all,
    gone,
    rights,
    truncated,
    without,
)


class Channel:
    """The blocking end of a channel. All of it may be used from any thread.

    Frames are either all sent, or all posted: a posted one does not wait.

    Every method that meets the end of the channel raises ``EOFError``, and
    ``TransportError`` if what came before was not a proper frame. Descriptors that
    came and that this process may not have are a ``ResourceExhausted``, and the end.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_payload: int = MAX_PAYLOAD,
        frame_deadline: float = FRAME_DEADLINE,
    ) -> None:
        sock.setblocking(True)
        self._incoming = Incoming(sock, max_payload)
        self._sock = sock
        self._frame_deadline = frame_deadline
        self._sequence = 0
        self._torn = False
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._frames: deque[Frame] = deque()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return self._sock.fileno()

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send a frame, waiting until the kernel has all of it; ``fds`` are given away.

        The frames of ``then``, each a kind and a payload, go along: the peer wakes up once.
        """
        try:
            with self._sending:
                self._send(self._encoded(kind, payload, fds, then), fds)
        finally:
            close_all(fds)

    def post(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send frames as ``send`` does, but only what the socket takes; ``flush`` the rest.

        The payload may be changed afterwards; ``fds`` are given away.
        """
        with self._sending:
            try:
                buffers = self._encoded(kind, payload, fds, then)
            except BaseException:
                close_all(fds)
                raise
            self._outgoing.append((memoryview(b"".join(buffers)), tuple(fds)))
            self._flush()

    def flush(self) -> None:
        """Send what the socket takes of the frames that were posted."""
        with self._sending:
            self._flush()

    def has_unsent(self) -> bool:
        """Whether a posted frame waits for the socket to be writable."""
        return bool(self._outgoing)

    def receive(self) -> Frame:
        """Wait for the next frame and return it."""
        with self._receiving:
            while not self._frames:
                self._incoming.check()
                has_begun = self._incoming.partial
                if has_begun:
                    self._wait_for_rest()
                self._read(waits=not has_begun)
            return self._frames.popleft()

    def receive_ready(self) -> list[Frame]:
        """Return the frames that are there already; does not wait."""
        with self._receiving:
            if not self._frames:
                self._incoming.check()
                self._read()
            frames = list(self._frames)
            self._frames.clear()
            return frames

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody received."""
        for frame in self._frames:
            close_all(frame.fds)
        self._frames.clear()
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()
        self._incoming.close()
        self._sock.close()

    def _encoded(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer],
        fds: Sequence[int],
        then: Sequence[tuple[int, Buffer]],
    ) -> list[Buffer]:
        buffers = encode_frames(kind, payload, self._sequence, fds=len(fds), then=then)
        self._sequence += 1 + len(then)
        return buffers

    def _send(self, buffers: list[Buffer], fds: Sequence[int]) -> None:
        if self._torn:
            raise EOFError("an earlier frame could not be sent whole; this channel is over")
        self._torn = True
        try:
            self._write(buffers, fds)
        except GONE as error:
            raise gone() from error
        self._torn = False

    def _flush(self) -> None:
        while self._outgoing:
            buffer, fds = self._outgoing.popleft()
            try:
                sent = self._sock.sendmsg([buffer], rights(fds), socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._outgoing.appendleft((buffer, fds))
                return
            except GONE as error:
                close_all(fds)
                raise gone() from error
            close_all(fds)
            if sent < len(buffer):
                self._outgoing.appendleft((buffer[sent:], ()))

    def _write(self, buffers: list[Buffer], fds: Sequence[int]) -> None:
        rest = [memoryview(buffer).cast("B") for buffer in buffers]
        sent = self._sock.sendmsg(rest[:BUFFERS_PER_CALL], rights(fds))
        while rest := without(rest, sent):
            sent = self._sock.sendmsg(rest[:BUFFERS_PER_CALL])

    def _read(self, *, waits: bool = False) -> None:
        with contextlib.suppress(BlockingIOError):
            self._frames.extend(self._incoming.read(waits=waits))

    def _wait_for_rest(self) -> None:
        """Wait for more of a frame that has begun, which must go on."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(self._frame_deadline * 1000):
            raise truncated(self._frame_deadline)
