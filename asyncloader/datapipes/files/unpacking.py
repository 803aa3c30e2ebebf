"""Bytes that come out of something smaller.

This file is about streams that decompress as they are read, and about the members of
an archive that is still open. Both count what comes out of them, and both name their
file in every error.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from asyncloader.datapipes.files.limits import Limits, Meter
from asyncloader.datapipes.files.streams import BUFFER_BYTES, PIECE_BYTES, byte_stream

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
        place: int = self._opener.tell()
        return place

    def _piece(self) -> bytes:
        with self._lock, naming(self.name):
            piece: bytes = self._opener.read(self._at_once)
            self._count()
        return piece

    def _count(self) -> None:
        place = self._opener.tell()
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


class Archive:
    """An archive that is open: its stream, which is closed when nobody holds it any more.

    Who opens an archive holds it, and so does every member that is open. ``lock`` is
    taken for every step in the stream, which the members share.
    """

    def __init__(self, path: str, stream: Any, meter: Meter) -> None:
        self.path = path
        self.meter = meter
        self.lock = threading.RLock()
        self._stream = stream
        self._holders = 1
        self._latest: Callable[[], Member | None] = nobody

    def open_member(
        self, name: str, opener: Any, at_once: int = AT_ONCE_BYTES
    ) -> io.BufferedReader:
        """Return the bytes of a member, which it closes with itself.

        No more than ``at_once`` bytes are asked of its opener at a time.
        """
        member = Member(self, name, opener, at_once)
        self._latest = weakref.ref(member)
        return io.BufferedReader(member, BUFFER_BYTES)

    def keep_latest(self) -> None:
        """Hold what is left of the member opened last, if somebody has it still.

        To be called before the stream goes on, where it cannot go back.
        """
        latest = self._latest()
        if latest is not None:
            latest.keep()

    def hold(self) -> None:
        """Keep the stream open."""
        with self.lock:
            self._holders += 1

    def let_go(self) -> None:
        """Hold the stream no longer."""
        with self.lock:
            self._holders -= 1
            if self._holders == 0:
                self._stream.close()


def nobody() -> None:
    """Return that there is no member."""


class Member(Counted):
    """The bytes of one member of an archive, which it keeps open."""

    def __init__(self, archive: Archive, name: str, opener: Any, at_once: int) -> None:
        super().__init__(name, opener, archive.meter, archive.lock, at_once)
        self._archive = archive
        archive.hold()

    def seekable(self) -> bool:
        return bool(self._opener.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._lock, naming(self.name):
            place: int = self._opener.seek(offset, whence)
        return place

    def keep(self) -> None:
        """Hold what is left in memory: the archive is going on."""
        with self._lock:
            if not self.closed:
                place = self.tell()
                self._opener = Rest(place, self.readall())

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._lock:
                self._opener.close()
            self._archive.let_go()


class Rest(io.BytesIO):
    """What was left of a member at some place in it."""

    def __init__(self, place: int, content: bytes) -> None:
        super().__init__(content)
        self._begin = place

    def seekable(self) -> bool:
        return self._begin == 0

    def tell(self) -> int:
        return self._begin + super().tell()
