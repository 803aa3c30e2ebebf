"""Frames, which separate messages in a stream of bytes.

This file is about ``Frame``, its encoding, and a decoder that takes the bytes in
whatever pieces they arrive. No socket is touched here.

    magic 4 | version 1 | kind 1 | descriptors 2 | sequence 8 | length 8 | crc32 4 | payload
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asyncloader.errors import TransportError

Buffer = bytes | bytearray | memoryview

MAX_PAYLOAD = 1 << 36  # no item that fits memory is refused, but a damaged length is
MAX_FDS = 250  # the kernel passes at most 253 in one message

_MAGIC = b"ALdr"
_VERSION = 1
_FIELDS = struct.Struct("<4sBBHQQ")
_CHECK = struct.Struct("<I")
_HEADER = struct.Struct("<4sBBHQQI")
_HEADER_BYTES = _HEADER.size
_Header = tuple[int, int, int]  # kind, descriptors, length
_COPY_BELOW = 256 << 10


class CutOff(TransportError):
    """The channel ended in the middle of a frame, as it does if the sender was killed."""


class Frame(NamedTuple):
    """One message: its kind, its bytes, its number in its direction, its descriptors.

    The descriptors belong to the code that received the frame.
    """

    kind: int
    payload: bytes | memoryview
    sequence: int
    fds: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Frame(kind={self.kind}, sequence={self.sequence}, fds={self.fds})"


def encode_frame(
    kind: int, payload: Buffer | Sequence[Buffer], sequence: int, *, fds: int = 0
) -> list[Buffer]:
    """Return the buffers that make up a frame; no payload is copied."""
    parts = [payload] if isinstance(payload, Buffer) else list(payload)
    length = sum(map(_nbytes, parts))
    if length > MAX_PAYLOAD:
        raise TransportError(f"a frame carries at most {MAX_PAYLOAD} bytes, got {length}")
    if fds > MAX_FDS:
        raise TransportError(f"a frame carries at most {MAX_FDS} descriptors, got {fds}")
    fields = _FIELDS.pack(_MAGIC, _VERSION, kind, fds, sequence, length)
    return [fields + _CHECK.pack(zlib.crc32(fields)), *parts]


def encode_frames(
    kind: int,
    payload: Buffer | Sequence[Buffer],
    sequence: int,
    *,
    fds: int = 0,
    then: Sequence[tuple[int, Buffer]] = (),
) -> list[Buffer]:
    """Return the buffers of a frame, followed by those of ``then``."""
    buffers = encode_frame(kind, payload, sequence, fds=fds)
    for number, (next_kind, next_payload) in enumerate(then, sequence + 1):
        buffers += encode_frame(next_kind, next_payload, number)
    return buffers


class FrameDecoder:
    """Turns the bytes of one direction of a channel into frames.

    Bytes may be fed in any pieces; the frames that come out are the same. Frames
    before a fault are still delivered; then every call raises the fault.
    """

    def __init__(self, *, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        self._buffer = bytearray()
        self._start = 0
        self._header: _Header | None = None
        self._sequence = 0
        self._fds: deque[int] = deque()
        self._fault: TransportError | None = None

    @property
    def partial(self) -> bool:
        """Whether a frame has begun that is not complete."""
        return bool(self._buffer)

    def feed(self, data: Buffer, fds: Iterable[int] = ()) -> list[Frame]:
        """Take what arrived and return the frames that are complete now."""
        self._fds.extend(fds)
        self.check()
        self._buffer += data
        frames: list[Frame] = []
        try:
            self._collect(frames)
        except TransportError as fault:
            self._fault = fault
            self._buffer = bytearray()
            if not frames:
                raise
        return frames

    def check(self) -> None:
        """Raise the fault that ended the last ``feed`` early, if there was one."""
        if self._fault is not None:
            raise self._fault

    def eof(self) -> None:
        """Note the end of the bytes; raise if it is in the middle of a frame."""
        self.check()
        if self.partial:
            raise CutOff(
                f"the channel ended in the middle of frame {self._sequence}, "
                f"after {len(self._buffer)} bytes of it"
            )

    def take_fds(self) -> list[int]:
        """Return the descriptors that no complete frame has claimed, and forget them."""
        fds = list(self._fds)
        self._fds.clear()
        return fds

    def _collect(self, frames: list[Frame]) -> None:
        try:
            while self._is_complete():
                frames.append(self._take_frame())
        finally:
            if self._start:
                del self._buffer[: self._start]
                self._start = 0

    def _is_complete(self) -> bool:
        have = len(self._buffer) - self._start - _HEADER_BYTES
        if have < 0:
            return False
        if self._header is None:
            self._header = self._read_header()
        return have >= self._header[2]

    def _read_header(self) -> _Header:
        start = self._start
        fields = bytes(self._buffer[start : start + _HEADER_BYTES])
        magic, version, kind, fds, sequence, length, check = _HEADER.unpack(fields)
        if magic != _MAGIC:
            raise TransportError(f"frame {self._sequence} begins with {magic!r}, not {_MAGIC!r}")
        if version != _VERSION:
            raise TransportError(f"frame {self._sequence} has version {version}, not {_VERSION}")
        if check != zlib.crc32(fields[: _FIELDS.size]):
            raise TransportError(f"the header of frame {self._sequence} is damaged")
        if sequence != self._sequence:
            raise TransportError(f"frame {sequence} came where frame {self._sequence} was due")
        if length > self._max_payload:
            raise TransportError(
                f"frame {sequence} claims {length} bytes; at most {self._max_payload} are allowed"
            )
        if fds > len(self._fds):
            raise TransportError(
                f"frame {sequence} claims {fds} descriptors, but {len(self._fds)} arrived"
            )
        return kind, fds, length

    def _take_frame(self) -> Frame:
        assert self._header is not None
        kind, count, length = self._header
        fds = tuple([self._fds.popleft() for _ in range(count)]) if count else ()
        frame = Frame(kind, self._take_payload(length), self._sequence, fds)
        self._header = None
        self._sequence += 1
        return frame

    def _take_payload(self, length: int) -> bytes | memoryview:
        start = self._start + _HEADER_BYTES
        end = start + length
        if length < _COPY_BELOW:
            self._start = end
            return bytes(memoryview(self._buffer)[start:end])
        whole = memoryview(self._buffer)
        # A large payload keeps its buffer, to save a copy; the bytes after it move to a new one.
        self._buffer = bytearray(whole[end:])
        self._start = 0
        return whole[start:end].toreadonly()


def _nbytes(part: Buffer) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)
