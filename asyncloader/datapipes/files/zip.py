"""Zip archives.

This file is about load_from_zip: the files in a zip, read where they are. Nothing is
extracted.
"""

from __future__ import annotations

import contextlib
import io
import stat
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

from asyncloader.datapipes.files.archives import ArchiveLoader
from asyncloader.datapipes.files.limits import (
    MAX_BYTES,
    MAX_MEMBER_BYTES,
    MAX_MEMBERS,
    MAX_RATIO,
    Limits,
    Meter,
)
from asyncloader.datapipes.files.members import member_path
from asyncloader.datapipes.files.streams import PathAndStream
from asyncloader.datapipes.files.unpacking import AT_ONCE_BYTES, Archive, naming, packed_stream
from asyncloader.datapipes.pipe.base import functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError

_IS_ENCRYPTED = 0x1


@functional_datapipe("load_from_zip")
class ZipArchiveLoader(ArchiveLoader):
    """Yield ``(path, stream)`` for each file in each zip of a source of such pairs.

    A file's path is that of the archive with the file's name after it, and never leads
    out of the archive; a file whose name leads to the archive itself, such as "..", is an
    error. Links, folders and devices are left out. A file may be held and
    read later. The archive's stream has to be one that can seek, since a zip keeps its
    directory at its end. What a hostile archive could do is limited, as ``Limits`` says.
    ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole archives: what follows
    the place where one is damaged is left out.

    >>> import io, zipfile
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> packed = io.BytesIO()
    >>> with zipfile.ZipFile(packed, "w") as archive:
    ...     archive.writestr("b.txt", "hello")
    >>> zips = IterableWrapper([("a.zip", packed)], deepcopy=False)
    >>> [(path, stream.read()) for path, stream in zips.load_from_zip()]
    [('a.zip/b.txt', b'hello')]
    """

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        length: int = -1,
        *,
        max_members: float = MAX_MEMBERS,
        max_member_bytes: float = MAX_MEMBER_BYTES,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        limits = Limits(max_members, max_member_bytes, max_bytes, max_ratio)
        super().__init__(datapipe, length, limits, on_error=on_error, max_errors=max_errors)

    def archive(self, path: str, stream: Any) -> ZipArchive:
        return ZipArchive(path, stream, self.limits)


class ZipArchive:
    """A zip that is open, and its directory."""

    def __init__(self, path: str, stream: Any, limits: Limits) -> None:
        self.path = path
        source, self.meter = packed_stream(path, stream, limits)
        self.archive = Archive(path, source, self.meter)
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            with naming(path):
                self._zip = LimitedZipFile(_seekable(source), self.meter)
            failing.pop_all()

    def close(self) -> None:
        """Let go of the stream; files that are still open keep it open."""
        self.archive.let_go()

    def files(self) -> Iterator[zipfile.ZipInfo]:
        """Yield what is known of each file, in the directory's order."""
        for info in self._zip.infolist():
            self.meter.add_member(info.filename, info.file_size)
            # Above the lower half are the bits of Unix, where such a system packed it.
            kind = stat.S_IFMT(info.external_attr >> 16)
            # Some Pythons fail on an empty name when they are asked whether it is a folder's.
            if not info.filename.endswith("/") and kind in (0, stat.S_IFREG):
                yield info

    def opened(self, info: zipfile.ZipInfo) -> PathAndStream:
        """Return a file's path and the stream of its bytes."""
        path = member_path(self.path, info.filename, zipfile.BadZipFile)
        if info.flag_bits & _IS_ENCRYPTED:
            raise RuntimeError(f"{path} is encrypted; unpack the archive with its password first")
        with self.archive.lock, naming(path):
            content = self._zip.open(info)
        return path, self.archive.open_member(path, content, _at_once(info))


def _at_once(info: zipfile.ZipInfo) -> int:
    """Return how many bytes of a member may be asked for at a time."""
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return AT_ONCE_BYTES
    # Of the other kinds zipfile unpacks so many packed bytes, however much comes out of them.
    return io.DEFAULT_BUFFER_SIZE // 2


class LimitedZipFile(zipfile.ZipFile):
    """A zip whose directory is read only as far as it is not too long."""

    def __init__(self, stream: io.BufferedReader, meter: Meter) -> None:
        self._members = _Directory(meter)
        super().__init__(stream)

    @property
    def filelist(self) -> list[zipfile.ZipInfo]:
        """The members, in the directory's order."""
        return self._members

    @filelist.setter
    def filelist(self, members: list[zipfile.ZipInfo]) -> None:
        # It starts with none, and goes on to append them.
        self._members[:] = members


class _Directory(list[zipfile.ZipInfo]):
    """A list that may only get so long."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def append(self, info: zipfile.ZipInfo) -> None:
        self._meter.check_members(len(self) + 1)
        super().append(info)


def _seekable(source: io.BufferedReader) -> io.BufferedReader:
    if not source.seekable():
        raise io.UnsupportedOperation(
            "a zip keeps its directory at its end, and this stream cannot seek; read it into"
            " io.BytesIO first"
        )
    return source
