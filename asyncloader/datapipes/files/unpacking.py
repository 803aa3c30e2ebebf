"""Bytes that come out of something smaller.

This file is about streams that decompress as they are read, and about the members of an archive
that is still open. Both name their file in every error, and both are held against ``Limits``: a
few kilobytes can unpack to more than any memory holds, and where data comes from is not to be
trusted. Every limit can be raised, also to ``math.inf``, by the keyword of its name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.files.streams import BUFFER_BYTES, PIECE_BYTES, byte_stream
from asyncloader.errors import ResourceExhausted

MAX_MEMBERS = 2_000_000
MAX_MEMBER_BYTES = 4 * 2**30
MAX_BYTES = 1024 * 2**30
MAX_RATIO = 200

#: Whatever the ratio, this much may come out of an archive: it does no harm.
FREE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Limits:
    """What one archive or compressed file may unpack to.

    ``max_ratio`` is how many times its size it may grow; it counts from the first
    64 MiB on.
    """

    max_members: float = MAX_MEMBERS
    max_member_bytes: float = MAX_MEMBER_BYTES
    max_bytes: float = MAX_BYTES
    max_ratio: float = MAX_RATIO

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checked_limit(name, value)


def checked_limit(name: str, value: float) -> float:
    """Return a number of at least 1, infinity included; raise an error otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not value >= 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


class Meter:
    """Counts what comes out of one archive, and raises ResourceExhausted at a limit.

    ``packed`` tells how large the archive is, as far as that is known.
    """

    def __init__(self, path: str, limits: Limits, packed: Callable[[], int]) -> None:
        self.path = path
        self.limits = limits
        self.packed = packed
        self.members = 0
        self.unpacked = 0

    def add_member(self, name: str, size: int) -> None:
        """Count a member that says it has ``size`` bytes."""
        self.members += 1
        self.check_members(self.members)
        if size > self.limits.max_member_bytes:
            raise ResourceExhausted(
                f"{self.path}: its member {name!r} has {size} bytes, more than"
                f" max_member_bytes={self.limits.max_member_bytes}; {_trusted('max_member_bytes')}"
            )

    def check_members(self, count: int) -> None:
        """Raise if an archive has too many members, be they unpacked or not."""
        if count > self.limits.max_members:
            raise ResourceExhausted(
                f"{self.path} has more than max_members={self.limits.max_members} members;"
                f" {_trusted('max_members')}"
            )

    def add_bytes(self, count: int) -> None:
        """Count bytes that were unpacked."""
        self.unpacked += count
        limits = self.limits
        if self.unpacked > limits.max_bytes:
            raise ResourceExhausted(
                f"{self.path} unpacks to more than max_bytes={limits.max_bytes} bytes;"
                f" {_trusted('max_bytes')}"
            )
        if self.unpacked > FREE_BYTES and self.unpacked > limits.max_ratio * self.packed():
            raise ResourceExhausted(
                f"{self.path} unpacks to more than max_ratio={limits.max_ratio} times its size:"
                f" {self.unpacked} bytes of {self.packed()} so far; {_trusted('max_ratio')}"
            )


def _trusted(name: str) -> str:
    return f"if you trust the archive, pass a larger {name}"


#: What is unpacked at once is in memory before it is counted.
AT_ONCE_BYTES = 16 * 2**20

#: What is raised for data that is damaged, or is not what it was taken for.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    OverflowError,
)

#: Of these another can be made with another message.
_REMADE = {
    *DAMAGED,
    tarfile.ReadError,
    tarfile.HeaderError,
    tarfile.StreamError,
    gzip.BadGzipFile,
    NotImplementedError,
}

_OPENERS: dict[str, Callable[[Any], Any]] = {
    "gz": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}

_SHOWN_BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")

_SIGNATURES = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x5d\x00\x00": "xz"}


class naming:
    """Say in an error about damaged data which file it is in."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, DAMAGED) and not str(error).startswith(self._path):
            _name(error, self._path)


def _name(error: BaseException, path: str) -> None:
    if type(error) not in _REMADE or getattr(error, "errno", None) is not None:
        error.add_note(f"while reading {path}")
        return
    # The standard library shows some of what it could not read.
    message = _SHOWN_BYTES.sub("(some bytes)", str(error))
    raise type(error)(f"{path}: {message}") from None


def compression_of(stream: io.BufferedReader) -> str:
    """Return ``gz``, ``bz2`` or ``xz`` for what a stream begins with, or ``""``."""
    beginning = stream.peek(6)
    found = (kind for mark, kind in _SIGNATURES.items() if beginning.startswith(mark))
    return next(found, "")


def packed_stream(path: str, stream: Any, limits: Limits) -> tuple[io.BufferedReader, Meter]:
    """Return the bytes of somebody's stream, and a meter for what is unpacked of them."""
    source = byte_stream(path, stream)
    return source, Meter(path, limits, source.raw.size)  # type: ignore[attr-defined]


def unpacked_stream(source: io.BufferedReader, kind: str, meter: Meter) -> io.BufferedReader:
    """Return the bytes that a compressed stream unpacks to; closing them closes the stream."""
    return io.BufferedReader(Unpacked(source, kind, meter), BUFFER_BYTES)


class Counted(io.RawIOBase):
    """The bytes that an opener gives, counted as they are read, with their file's name."""

    def __init__(
        self,
        name: str,
        opener: Any,
        meter: Meter,
        lock: AbstractContextManager[Any],
        at_once: int = AT_ONCE_BYTES,
    ) -> None:
        self.name = name
        self._opener = opener
        #: How many bytes were before those that the opener gives.
        self._before = 0
        self._meter = meter
        self._lock = lock
        self._at_once = at_once
        self._farthest = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._lock, naming(self.name):
            count: int = self._opener.readinto(memoryview(buffer)[: self._at_once])
            self._count()
        return count

    def readall(self) -> bytes:
        pieces = [self._piece()]
        # An opener gives less than it is asked for only at its end.
        while len(pieces[-1]) == self._at_once:
            pieces.append(self._piece())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def tell(self) -> int:
        place: int = self._before + self._opener.tell()
        return place

    def _piece(self) -> bytes:
        with self._lock, naming(self.name):
            piece: bytes = self._opener.read(self._at_once)
            self._count()
        return piece

    def _count(self) -> None:
        place = self._before + self._opener.tell()
        # What is read again was counted the first time.
        if place > self._farthest:
            self._meter.add_bytes(place - self._farthest)
            self._farthest = place


class Unpacked(Counted):
    """The bytes that a compressed stream unpacks to."""

    def __init__(self, source: io.BufferedReader, kind: str, meter: Meter) -> None:
        super().__init__(meter.path, _OPENERS[kind](source), meter, nullcontext())
        self._source = source

    def seekable(self) -> bool:
        return self._source.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self.tell()
        elif whence == io.SEEK_END:
            self._read_on()
            offset += self.tell()
        # Forward it is read, so that it is counted: the opener would unpack without a limit.
        if offset < self.tell():
            with naming(self.name):
                self._opener.seek(offset)
        self._read_on(offset)
        return self.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._opener.close()
            self._source.close()

    def _read_on(self, place: float = float("inf")) -> None:
        while self.tell() < place:
            size = min(PIECE_BYTES, place - self.tell())
            if not self.read(int(size)):
                return
