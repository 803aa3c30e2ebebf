"""Streams of bytes, and when they are closed.

This file is about opened files, which close themselves when they are no longer
used; about what a pipe that reads streams is given; and about ``ByteStream``, on which
the readers of archives build.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any, TypeAlias

#: What travels between the pipes of these families: where from, and what to read.
PathAndStream: TypeAlias = "tuple[str, Any]"

#: So much is read at once.
PIECE_BYTES = 2**20
BUFFER_BYTES = 2**16


class OpenedBytes(io.BufferedReader):
    """A file opened for its bytes; it closes when it is dropped."""

    def __del__(self) -> None:
        # By itself the file would close as well, with a warning that nobody closed it.
        self.close()


class OpenedText(io.TextIOWrapper):
    """A file opened as text; it closes when it is dropped."""

    def __del__(self) -> None:
        self.close()


def opened(path: str, mode: str, encoding: str | None = None) -> OpenedBytes | OpenedText:
    """Open a file for reading, as ``open`` would; it closes when it is dropped."""
    file = OpenedBytes(io.FileIO(path))
    if "b" in mode:
        return file
    return OpenedText(file, encoding=io.text_encoding(encoding))


def path_and_stream(item: Any, pipe: object) -> PathAndStream:
    """Return the path and the stream of an item; TypeError for any other item."""
    name, stream = pair_in(item, "(path, stream)", pipe)
    path = path_in(name, pipe)
    if not hasattr(stream, "read"):
        raise TypeError(
            f"{pipe!r} reads streams, got {_kind(stream)} for {path}; open files with open_files()"
        )
    return path, stream


def pair_in(item: Any, form: str, pipe: object) -> tuple[Any, Any]:
    """Return the two parts of an item; TypeError, which says their form, for any other item."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"{pipe!r} reads pairs {form}, got {_kind(item)}")
    return item[0], item[1]


#: What names a file: text, or a path object.
PathName = str | os.PathLike[str]


def path_in(value: Any, pipe: object) -> str:
    """Return a path as text; TypeError for what is none."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"{pipe!r} reads paths, got {_kind(value)}")
    return path


def _kind(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return type(value).__name__ + size


def close_stream(stream: Any) -> None:
    """Close a stream that can be closed."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()


def is_seekable(stream: Any) -> bool:
    """Whether a stream says that one can go back in it."""
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and bool(seekable())


def byte_stream(path: str, stream: Any) -> io.BufferedReader:
    """Return a stream of the bytes of whatever has a ``read``, which it closes with itself."""
    return io.BufferedReader(ByteStream(path, stream), BUFFER_BYTES)


class ByteStream(io.RawIOBase):
    """The bytes of somebody's stream, which only has to have a ``read``."""

    def __init__(self, path: str, stream: Any) -> None:
        self.name = path
        self._stream = stream
        self._can_seek = is_seekable(stream)
        self._size = self._whole_size() if self._can_seek else 0

    def size(self) -> int:
        """Return how many bytes there are; of what cannot seek, how many were read."""
        return self._size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if isinstance(self._stream, io.BufferedIOBase):
            # Files of bytes and the like: straight into its place.
            count = self._stream.readinto(buffer)
            self._size += 0 if self._can_seek else count
            return count
        piece = self._stream.read(len(buffer))
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise TypeError(
                f"{self.name} was opened as text ({_kind(piece)}); open it in"
                ' binary mode, with mode="b"'
            )
        buffer[: len(piece)] = piece
        if not self._can_seek:
            self._size += len(piece)
        return len(piece)

    def seekable(self) -> bool:
        return self._can_seek

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._stream.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        place: int = self._stream.tell()
        return place

    def close(self) -> None:
        if not self.closed:
            super().close()
            close_stream(self._stream)

    def _whole_size(self) -> int:
        place = self._stream.tell()
        # Text may not be sought from its end on; that it is text is said when it is read.
        with contextlib.suppress(io.UnsupportedOperation):
            self._stream.seek(0, io.SEEK_END)
        size: int = self._stream.tell()
        self._stream.seek(place)
        return size
