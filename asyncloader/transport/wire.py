"""What both kinds of channel end do with the socket itself.

This file is about reading frames and descriptors from a stream socket without
waiting, and about what the kernel wants to hear when descriptors are sent.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Iterable, Sequence

from asyncloader.errors import LoaderError, TransportError
from asyncloader.runtime import without_descriptor
from asyncloader.transport.frame import MAX_FDS, Frame, FrameDecoder

BUFFERS_PER_CALL = 512  # the kernel takes at most 1024
FRAME_DEADLINE = 10.0

_READ_BYTES = 256 << 10
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * 4)
# Python makes received descriptors close-on-exec nowhere; the kernel does it on Linux.
# Plain numbers: they are looked at for every read.
_FLAGS = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_AT_ONCE = int(socket.MSG_DONTWAIT)
_TRUNCATED = int(socket.MSG_CTRUNC)
GONE = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class Incoming:
    """Reads one direction of a stream socket as frames."""

    def __init__(self, sock: socket.socket, max_payload: int) -> None:
        self._sock = sock
        self._decoder = FrameDecoder(max_payload=max_payload)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self.filled = False  # whether the last read ended because the buffer did
        self.total = 0  # bytes read so far

    @property
    def partial(self) -> bool:
        """Whether a frame has begun that is not complete."""
        return self._decoder.partial

    def read(self, *, waits: bool = False) -> list[Frame]:
        """Read once and return the frames that are complete now.

        Raises ``BlockingIOError`` if nothing is there, unless it ``waits`` for something,
        ``EOFError`` if nothing will be, and ``ResourceExhausted`` if descriptors came and this
        process may have no more of them.
        """
        how = _FLAGS if waits else _FLAGS | _AT_ONCE
        try:
            count, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY, how)
        except GONE as error:
            raise gone() from error
        fds = _received(ancillary) if ancillary else ()
        if flags & _TRUNCATED:
            close_all(fds)
            raise _lost(len(fds))
        if not count:
            self._decoder.eof()
            raise EOFError("the other end of the channel is closed")
        self.filled = count == _READ_BYTES
        self.total += count
        return self._decoder.feed(self._buffer[:count], fds)

    def check(self) -> None:
        """Raise the fault that came behind the frames of the last read, if there was one."""
        self._decoder.check()

    def close(self) -> None:
        """Close the descriptors that came for no frame; nothing more is read."""
        close_all(self._decoder.take_fds())
        # Of a thread that is reading this very moment, the memory is its own.
        self._buffer = memoryview(bytearray())


def rights(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
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


def without(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """What is left of ``buffers`` when the first ``sent`` bytes are gone."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that were given to us to give away."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def gone() -> EOFError:
    """The error for what the kernel says when the other end is gone: one of ``GONE``."""
    return EOFError("the other end of the channel is gone")


def _lost(received: int) -> LoaderError:
    """The error for a frame of whose descriptors only so many could be received."""
    if received >= MAX_FDS:
        return TransportError(f"a frame came with more than {MAX_FDS} descriptors")
    return without_descriptor("what another process sends", "the kernel dropped what it sent")


def truncated(deadline: float) -> TransportError:
    """The error for a frame that began and did not go on."""
    return TransportError(f"a frame began and then nothing more came for {deadline:g} s")
