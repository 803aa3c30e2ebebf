"""Channels: frames over one inherited socketpair.

This file is about its two ends: ``Channel``, which blocks and may be used from several threads,
and ``LoopChannel``, which belongs to an event loop. Descriptors travel with the frame they were
sent with.

    LoopChannel  ◀── AF_UNIX stream ──▶  Channel
    (loader)         frames, fds         (worker)
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from asyncloader.errors import LoaderError, LoopMismatchError, ResourceExhausted, TransportError
from asyncloader.runtime import without_descriptor
from asyncloader.system import AT_ONCE, RECEIVING, is_readable, room_for_fds
from asyncloader.transport.ends import BlockingEnd, End, LoopEnd, OnClosed, OnFrames
from asyncloader.transport.frame import (
    MAX_FDS,
    Buffer,
    Frame,
    FrameDecoder,
    encode_frame,
)

_READ_BYTES = 256 << 10
_BUFFERS_PER_CALL = 512  # the kernel takes at most 1024
_READS_PER_WAKE_UP = 8  # so that a fast peer cannot block the loop's other work
#: How many seconds the rest of a frame that has begun may take.
_FRAME_DEADLINE = 10.0

_ANCILLARY = room_for_fds(MAX_FDS)
_TRUNCATED = int(socket.MSG_CTRUNC)
_GONE = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class _SocketEnd(End):
    """What both ends have: frames that are read from a socket, and frames that wait for it."""

    def __init__(self, sock: socket.socket, frame_deadline: float) -> None:
        self._sock = sock
        self._frame_deadline = frame_deadline
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        #: How many bytes were read so far, and whether the last read ended as the buffer did.
        self._total = 0
        self._is_filled = False
        self._sequence = 0
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody received or was sent."""
        close_all(self._decoder.take_fds())
        # A thread that is reading at this moment keeps its own reference to the memory.
        self._buffer = memoryview(bytearray())
        self._drop_outgoing()
        self._sock.close()

    def _read(self, flags: int) -> list[Frame]:
        """Read once and return the frames that are complete now.

        Raises the fault that came after the frames of the last read, if there was one;
        ``BlockingIOError`` if nothing is there, unless the flags let it wait; ``EOFError`` if
        nothing will be; and ``ResourceExhausted`` if descriptors came and this process may have
        no more of them.
        """
        if self._decoder.fault is not None:
            raise self._decoder.fault
        try:
            count, ancillary, found, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY, flags)
        except _GONE as error:
            raise _gone() from error
        fds = _received(ancillary) if ancillary else ()
        if found & _TRUNCATED:
            close_all(fds)
            raise _lost(len(fds))
        if not count:
            self._decoder.eof()
            raise EOFError("the other end of the channel is closed")
        self._total += count
        self._is_filled = count == _READ_BYTES
        return self._decoder.feed(self._buffer[:count], fds)

    def _keep(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer],
        fds: Sequence[int],
        then: Sequence[tuple[int, Buffer]],
    ) -> None:
        """Add frames to those that wait for the socket; ``fds`` are given away."""
        try:
            buffers = encode_frame(kind, payload, self._sequence, fds=len(fds), then=then)
        except BaseException:
            close_all(fds)
            raise
        self._sequence += 1 + len(then)
        self._outgoing.append((memoryview(b"".join(buffers)), tuple(fds)))

    def _send_kept(self) -> None:
        """Send what the socket takes of the frames that wait; OSError if the peer is gone."""
        while self._outgoing:
            buffer, fds = self._outgoing.popleft()
            try:
                sent = self._sock.sendmsg([buffer], _rights(fds) if fds else (), AT_ONCE)
            except BlockingIOError:
                self._outgoing.appendleft((buffer, fds))
                return
            except OSError:
                close_all(fds)
                raise
            if fds:
                close_all(fds)
            if sent < len(buffer):
                self._outgoing.appendleft((buffer[sent:], ()))

    def _drop_outgoing(self) -> None:
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()


class Channel(_SocketEnd, BlockingEnd):
    """The blocking end of a channel. Frames are either all sent, or all posted.

    Methods raise ``TransportError`` if what came was not a proper frame. Descriptors that
    came and that this process cannot have raise ``ResourceExhausted`` and end the channel.
    """

    def __init__(self, sock: socket.socket, *, frame_deadline: float = _FRAME_DEADLINE) -> None:
        sock.setblocking(True)
        super().__init__(sock, frame_deadline)
        self._torn = False
        self._frames: deque[Frame] = deque()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send a frame, waiting until the kernel has all of it."""
        try:
            with self._sending:
                if self._torn:
                    raise EOFError("an earlier frame could not be sent whole; this channel is over")
                buffers = encode_frame(kind, payload, self._sequence, fds=len(fds), then=then)
                self._sequence += 1 + len(then)
                self._torn = True
                rights = _rights(fds) if fds else ()
                sent = self._sock.sendmsg(buffers[:_BUFFERS_PER_CALL], rights)
                if sent < sum(map(len, buffers)):
                    self._send_rest(buffers, sent)
                self._torn = False
        except _GONE as error:
            raise _gone() from error
        finally:
            if fds:
                close_all(fds)

    def post(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send what the socket takes of a frame; the payload may be changed afterwards."""
        with self._sending:
            self._keep(kind, payload, fds, then)
        self.flush()

    def flush(self) -> None:
        with self._sending:
            try:
                self._send_kept()
            except _GONE as error:
                raise _gone() from error

    def has_unsent(self) -> bool:
        return bool(self._outgoing)

    def receive(self) -> Frame:
        with self._receiving:
            while not self._frames:
                flags = RECEIVING
                if self._decoder.partial:
                    self._wait_for_rest()
                    flags = AT_ONCE
                with contextlib.suppress(BlockingIOError):
                    self._frames.extend(self._read(flags))
            return self._frames.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._receiving:
            if not self._frames:
                with contextlib.suppress(BlockingIOError):
                    self._frames.extend(self._read(AT_ONCE))
            frames = list(self._frames)
            self._frames.clear()
            return frames

    def opened(self, fd: int) -> Channel:
        return Channel(socket.socket(fileno=fd))

    def close(self) -> None:
        for frame in self._frames:
            close_all(frame.fds)
        self._frames.clear()
        super().close()

    def _send_rest(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Send what is left when the first ``sent`` bytes are gone."""
        rest = [memoryview(buffer) for buffer in buffers]
        while rest := _without(rest, sent):
            sent = self._sock.sendmsg(rest[:_BUFFERS_PER_CALL])

    def _wait_for_rest(self) -> None:
        """Wait for the rest of a frame that has begun; it must arrive in time."""
        if not is_readable(self.fileno(), self._frame_deadline):
            raise _truncated(self._frame_deadline)


class LoopChannel(_SocketEnd, LoopEnd):
    """The end of a channel whose events go to an event loop, asyncio's or uvloop's.

    While it is detached, what the peer sends waits in the kernel. All methods belong to the
    loop's thread.
    """

    def __init__(self, sock: socket.socket, *, frame_deadline: float = _FRAME_DEADLINE) -> None:
        sock.setblocking(False)
        super().__init__(sock, frame_deadline)
        self._ended: Exception | None = None
        self._peer_gone = False
        self._subscription: _Subscription | None = None

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        """Listen to the peer.

        ``on_closed`` gets an ``EOFError`` when the peer is gone, or the
        ``TransportError`` or ``ResourceExhausted`` that made the channel useless.
        """
        current = self._subscription
        if current is not None and not current.loop.is_closed():
            raise LoopMismatchError("this channel is attached to a loop; detach it first")
        self._subscription = _Subscription(loop, self._sock.fileno(), on_frames, on_closed)
        if self._ended is not None:
            loop.call_soon(self._report_end)
            return
        loop.add_reader(self._subscription.fd, self._on_readable)
        if self._decoder.partial:
            self._watch_deadline(self._subscription)
        if self._outgoing:
            self._flush()

    def detach(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not subscription.loop.is_closed():
            # When the interpreter exits, the socket may be closed before its loop has stopped.
            subscription.loop.remove_reader(subscription.fd)
            if subscription.deadline is not None:
                subscription.cancel_deadline()
            if subscription.writing:
                subscription.stop_writing()

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send a frame, later if the socket is full. The payload may be changed afterwards."""
        if self._ended is not None or self._peer_gone:
            close_all(fds)
            return
        self._keep(kind, payload, fds, then)
        self._flush()

    def close(self) -> None:
        """Detach, and close the socket and the descriptors nobody received or was sent."""
        self.detach()
        if self._ended is None:
            self._ended = EOFError("this channel is closed")
        super().close()

    def _on_readable(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        frames: list[Frame] = []
        ended: Exception | None = None
        try:
            # Within reason: a fast peer must not keep the loop here.
            for _ in range(_READS_PER_WAKE_UP):
                frames += self._read(AT_ONCE)
                if not self._is_filled:
                    break
        except BlockingIOError:
            pass
        except (EOFError, TransportError, ResourceExhausted) as error:
            ended = error
        except OSError as error:
            ended = EOFError(f"the channel is gone: {error}")
        ended = self._decoder.fault or ended
        if frames:
            subscription.on_frames(frames)
        if ended is not None:
            self._end(ended)
        elif subscription is self._subscription and (
            self._decoder.partial or subscription.deadline is not None
        ):
            self._watch_deadline(subscription)

    def _watch_deadline(self, subscription: _Subscription) -> None:
        subscription.cancel_deadline()
        if self._decoder.partial:
            subscription.deadline = subscription.loop.call_later(
                self._frame_deadline, self._on_deadline, self._total
            )

    def _on_deadline(self, had: int) -> None:
        # After a busy time a loop may run its timers before it reads its sockets.
        self._on_readable()
        if self._total == had and self._subscription is not None:
            self._end(_truncated(self._frame_deadline))

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
            self._drop_outgoing()
            self._report_end()

    def _report_end(self) -> None:
        subscription = self._subscription
        if subscription is not None and self._ended is not None:
            self.detach()
            subscription.on_closed(self._ended)

    def _flush(self) -> None:
        """Send what the socket takes, and watch until it takes the rest."""
        try:
            self._send_kept()
        except OSError:
            # Nothing can be sent any more. Earlier messages of the peer are still read, and
            # then the end, which the shutdown guarantees and which calls on_closed.
            self._peer_gone = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._drop_outgoing()
        subscription = self._subscription
        if subscription is not None:
            if self._outgoing:
                subscription.start_writing(self._flush)
            elif subscription.writing:
                subscription.stop_writing()


class _Subscription:
    """What a channel needs to know of the loop it is attached to."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        self.loop = loop
        self.fd = fd
        self.on_frames = on_frames
        self.on_closed = on_closed
        self.writing = False
        self.deadline: asyncio.TimerHandle | None = None

    def start_writing(self, flush: Callable[[], None]) -> None:
        if not self.writing:
            self.writing = True
            self.loop.add_writer(self.fd, flush)

    def stop_writing(self) -> None:
        if self.writing:
            self.writing = False
            self.loop.remove_writer(self.fd)

    def cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def _rights(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """The ancillary data that carries ``fds``."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _received(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


def _without(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """What is left of ``buffers`` when the first ``sent`` bytes are gone."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that would have been sent."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _gone() -> EOFError:
    """The error for a lost peer: the kernel reported one of ``_GONE``."""
    return EOFError("the other end of the channel is gone")


def _lost(received: int) -> LoaderError:
    """The error for a frame of which only ``received`` descriptors arrived."""
    if received >= MAX_FDS:
        return TransportError(f"a frame came with more than {MAX_FDS} descriptors")
    return without_descriptor("what another process sends", "the kernel dropped what it sent")


def _truncated(deadline: float) -> TransportError:
    """The error for a frame that began and was never completed."""
    return TransportError(f"a frame began and then nothing more came for {deadline:g} s")
