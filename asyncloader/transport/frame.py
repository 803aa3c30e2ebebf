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
from typing import Any, NamedTuple

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
_COPY_BELOW = 256 << 10


class CutOff(TransportError):
    """The channel ended in the middle of a frame, as it does if the sender was killed."""


class Frame(NamedTuple):
    """One message: its kind, its bytes, its number in its direction, its descriptors.

    The descriptors belong to the code that received the frame. Where none can be sent, other
    things stand in their place.
    """

    kind: int
    payload: bytes | memoryview
    sequence: int
    fds: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"Frame(kind={self.kind}, sequence={self.sequence}, fds={self.fds})"


def encode_frame(
    kind: int,
    payload: Buffer | Sequence[Buffer],
    sequence: int,
    *,
    fds: int = 0,
    then: Sequence[tuple[int, Buffer]] = (),
) -> list[Buffer]:
    """Return the buffers that make up a frame, and the frames of ``then`` behind it.

    No payload is copied. A memoryview in it must be one of single bytes.
    """
    if fds > MAX_FDS:
        raise TransportError(f"a frame carries at most {MAX_FDS} descriptors, got {fds}")
    buffers: list[Buffer] = []
    for each, (its_kind, its_payload) in enumerate([(kind, payload), *then], sequence):
        parts = its_payload if isinstance(its_payload, list | tuple) else (its_payload,)
        length = sum(map(len, parts))
        if length > MAX_PAYLOAD:
            raise TransportError(f"a frame carries at most {MAX_PAYLOAD} bytes, got {length}")
        fields = _FIELDS.pack(_MAGIC, _VERSION, its_kind, fds, each, length)
        buffers += (fields + _CHECK.pack(zlib.crc32(fields)), *parts)
        # The descriptors are the first frame's.
        fds = 0
    return buffers


class FrameDecoder:
    """Turns the bytes of one direction of a channel into frames.

    Bytes may be fed in any pieces; the frames that come out are the same. Frames
    before a fault are still delivered; then every call raises the fault.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: Whether a frame has begun that is not complete.
        self.partial = False
        # How many bytes the buffer must have before it is worth reading.
        self._wanted = 0
        self._sequence = 0
        self._fds: deque[int] = deque()
        #: What was wrong after the frames of the last ``feed``, if anything was.
        self.fault: TransportError | None = None

    def feed(self, data: Buffer, fds: Iterable[int] = ()) -> list[Frame]:
        """Take what arrived and return the frames that are complete now."""
        self._fds.extend(fds)
        if self.fault is not None:
            raise self.fault
        if self.partial:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            data = self._buffer
        frames: list[Frame] = []
        view, start = memoryview(data), 0
        self._wanted = _HEADER_BYTES
        try:
            while len(view) >= start + _HEADER_BYTES:
                begin = start + _HEADER_BYTES
                header = view[start:begin]
                magic, version, kind, count, sequence, length, check = _HEADER.unpack(header)
                is_due = magic == _MAGIC and version == _VERSION and sequence == self._sequence
                fits = length <= MAX_PAYLOAD and count <= len(self._fds)
                if not (is_due and fits and check == zlib.crc32(header[: _FIELDS.size])):
                    raise self._fault_of(header)
                if len(view) < begin + length:
                    self._wanted = _HEADER_BYTES + length
                    break
                payload = view[begin : begin + length]
                # A large payload keeps the buffer that it was collected in, to save a copy.
                is_kept = self.partial and length >= _COPY_BELOW
                fds = tuple([self._fds.popleft() for _ in range(count)]) if count else ()
                whole = payload.toreadonly() if is_kept else bytes(payload)
                frames.append(Frame(kind, whole, self._sequence, fds))
                self._sequence += 1
                start = begin + length
        except TransportError as fault:
            self.fault = fault
            start = len(view)  # nothing after it can be read
            if not frames:
                raise
        finally:
            if start or not self.partial:
                self._buffer = bytearray(view[start:])
                self.partial = bool(self._buffer)
        return frames

    def eof(self) -> None:
        """Note the end of the bytes; raise if it is in the middle of a frame."""
        if self.fault is not None:
            raise self.fault
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

    def _fault_of(self, header: memoryview) -> TransportError:
        """Return what is wrong with a header."""
        magic, version, _, fds, sequence, length, check = _HEADER.unpack(header)
        if magic != _MAGIC:
            what = f"frame {self._sequence} begins with {magic!r}, not {_MAGIC!r}"
        elif version != _VERSION:
            what = f"frame {self._sequence} has version {version}, not {_VERSION}"
        elif check != zlib.crc32(header[: _FIELDS.size]):
            what = f"the header of frame {self._sequence} is damaged"
        elif sequence != self._sequence:
            what = f"frame {sequence} came where frame {self._sequence} was due"
        elif length > MAX_PAYLOAD:
            what = f"frame {sequence} claims {length} bytes; at most {MAX_PAYLOAD} are allowed"
        else:
            what = f"frame {sequence} claims {fds} descriptors, but {len(self._fds)} arrived"
        return TransportError(what)
