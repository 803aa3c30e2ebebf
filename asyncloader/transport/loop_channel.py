"""The end of a channel that an event loop looks after.

This file is about ``LoopChannel``: it works with asyncio and uvloop through
``add_reader`` and ``add_writer`` alone, without tasks and without polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence

from asyncloader.errors import LoopMismatchError, ResourceExhausted, TransportError
from asyncloader.transport.frame import MAX_PAYLOAD, Buffer, Frame, encode_frames
from asyncloader.transport.wire import (
    BUFFERS_PER_CALL,
    FRAME_DEADLINE,
    Incoming,
    close_all,
    rights,
    truncated,
    without,
)

OnFrames = Callable[[list[Frame]], None]
OnClosed = Callable[[Exception], None]

_READS_PER_WAKE_UP = 8  # so that a quick peer cannot keep the loop from its other work


class LoopChannel:
    """The end of a channel whose events go to an event loop, asyncio's or uvloop's.

    It may be attached to one loop after another. While it is detached, what the
    peer sends waits in the kernel. Sending is always possible and never waits.
    All methods belong to the loop's thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_payload: int = MAX_PAYLOAD,
        frame_deadline: float = FRAME_DEADLINE,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._incoming = Incoming(sock, max_payload)
        self._frame_deadline = frame_deadline
        self._sequence = 0
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._ended: Exception | None = None
        self._peer_gone = False
        self._subscription: _Subscription | None = None

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return self._sock.fileno()

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        """Hand what arrives to ``on_frames``, many at once, and the end to ``on_closed``.

        ``on_closed`` gets an ``EOFError`` when the peer is gone, or the
        ``TransportError`` or ``ResourceExhausted`` that made the channel useless; once
        per attachment.
        """
        current = self._subscription
        if current is not None and not current.loop.is_closed():
            raise LoopMismatchError("this channel is attached to a loop; detach it first")
        self._subscription = _Subscription(loop, self.fileno(), on_frames, on_closed)
        if self._ended is not None:
            loop.call_soon(self._report_end)
            return
        loop.add_reader(self._subscription.fd, self._on_readable)
        self._watch_deadline(self._subscription)
        self._flush()

    def detach(self) -> None:
        """Leave the loop; whatever arrives from now on stays in the kernel."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not subscription.loop.is_closed():
            # When the interpreter exits, the socket may be closed before its loop has stopped.
            subscription.loop.remove_reader(subscription.fd)
            subscription.cancel_deadline()
            subscription.stop_writing()

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        """Send a frame, later if the socket is full; ``fds`` are given away.

        The frames of ``then``, each a kind and a payload, go along: the peer wakes up once.
        The payload may be changed afterwards. When the peer is gone this does
        nothing: ``on_closed`` tells.
        """
        if self._ended is not None or self._peer_gone:
            close_all(fds)
            return
        try:
            buffers = encode_frames(kind, payload, self._sequence, fds=len(fds), then=then)
        except BaseException:
            close_all(fds)
            raise
        self._sequence += 1 + len(then)
        rest = [memoryview(buffer).cast("B") for buffer in buffers]
        if not self._outgoing:
            rest, fds = self._send_now(rest, tuple(fds))
        if rest:
            self._outgoing.append((memoryview(b"".join(rest)), tuple(fds)))
            self._watch_writable()

    def close(self) -> None:
        """Detach, and close the socket and the descriptors nobody received or was sent."""
        self.detach()
        if self._ended is None:
            self._ended = EOFError("this channel is closed")
        self._incoming.close()
        self._drop_outgoing()
        self._sock.close()

    def _on_readable(self) -> None:
        frames: list[Frame] = []
        ended = self._read_into(frames)
        subscription = self._subscription
        if frames and subscription is not None:
            subscription.on_frames(frames)
        if ended is not None:
            self._end(ended)
        elif subscription is not None and subscription is self._subscription:
            self._watch_deadline(subscription)

    def _read_into(self, frames: list[Frame]) -> Exception | None:
        """Read what is there, within reason; return what ended the channel, if it did."""
        try:
            for _ in range(_READS_PER_WAKE_UP):
                frames += self._incoming.read()
                self._incoming.check()
                if not self._incoming.filled:
                    break
        except BlockingIOError:
            pass
        except (EOFError, TransportError, ResourceExhausted) as ended:
            return ended
        except OSError as error:
            return EOFError(f"the channel is gone: {error}")
        return None

    def _watch_deadline(self, subscription: _Subscription) -> None:
        subscription.cancel_deadline()
        if self._incoming.partial:
            subscription.deadline = subscription.loop.call_later(
                self._frame_deadline, self._on_deadline, self._incoming.total
            )

    def _on_deadline(self, had: int) -> None:
        # A loop that was busy may run its timers before it looks at its sockets.
        self._on_readable()
        if self._incoming.total == had and self._subscription is not None:
            self._end(truncated(self._frame_deadline))

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

    def _send_now(
        self, buffers: list[memoryview], fds: tuple[int, ...]
    ) -> tuple[list[memoryview], tuple[int, ...]]:
        """Send what the socket takes; return what is left to send."""
        try:
            while buffers:
                sent = self._sock.sendmsg(buffers[:BUFFERS_PER_CALL], rights(fds))
                close_all(fds)
                fds = ()
                buffers = without(buffers, sent)
        except BlockingIOError:
            pass
        except OSError:
            # Nothing can be sent any more. What the peer said before is still read, and
            # then the end of it, which a shutdown makes sure of: that calls on_closed.
            close_all(fds)
            self._peer_gone = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._drop_outgoing()
            return [], ()
        return buffers, fds

    def _watch_writable(self) -> None:
        if self._subscription is not None:
            self._subscription.writing = True
            self._subscription.loop.add_writer(self.fileno(), self._flush)

    def _flush(self) -> None:
        while self._outgoing:
            buffer, fds = self._outgoing.popleft()
            rest, fds = self._send_now([buffer], fds)
            if rest:
                self._outgoing.appendleft((rest[0], fds))
                self._watch_writable()
                return
        if self._subscription is not None:
            self._subscription.stop_writing()

    def _drop_outgoing(self) -> None:
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()


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

    def stop_writing(self) -> None:
        if self.writing:
            self.writing = False
            self.loop.remove_writer(self.fd)

    def cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
