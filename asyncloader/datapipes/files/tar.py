"""Tar archives.

This file is about load_from_tar: the files in a tar, compressed or not, read where
they are and one after another. Nothing is extracted.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any, Self

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
from asyncloader.datapipes.files.streams import BUFFER_BYTES, PIECE_BYTES, PathAndStream
from asyncloader.datapipes.files.unpacking import (
    Archive,
    compression_of,
    naming,
    packed_stream,
    unpacked_stream,
)
from asyncloader.datapipes.pipe.base import functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError

COMPRESSIONS = ("*", "", "gz", "bz2", "xz")

#: The headers of no member that anyone writes are longer: they are read into memory.
MAX_HEADER_BYTES = 16 * 2**20

#: A long name, a long link, settings for the member and for all: no member has more headers.
MAX_HEADERS = 32


@functional_datapipe("load_from_tar")
class TarArchiveLoader(ArchiveLoader):
    """Yield ``(path, stream)`` for each file in each tar of a source of such pairs.

    A file's path is that of the archive with the file's name after it, and never leads
    out of the archive; a file whose name leads to the archive itself, such as "..", is an
    error. Links, folders and devices are left out. A file may be held and
    read later; where the archive itself cannot seek, what was not read of it is held in
    memory when the next is taken. ``mode`` is ``"r:*"``, or ``"r:gz"`` and the like to
    insist on a compression. What a hostile archive could do is limited, as ``Limits`` says.
    ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole archives: what follows
    the place where one is damaged is left out.

    >>> import io, tarfile
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> packed = io.BytesIO()
    >>> with tarfile.open(fileobj=packed, mode="w:gz") as archive:
    ...     info = tarfile.TarInfo("b.txt")
    ...     info.size = 5
    ...     archive.addfile(info, io.BytesIO(b"hello"))
    >>> packed.seek(0)
    0
    >>> tars = IterableWrapper([("a.tar.gz", packed)], deepcopy=False)
    >>> [(path, stream.read()) for path, stream in tars.load_from_tar()]
    [('a.tar.gz/b.txt', b'hello')]
    """

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        mode: str = "r:*",
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
        self.mode = mode
        self._compression = _checked_compression(mode)

    def archive(self, path: str, stream: Any) -> TarArchive:
        return TarArchive(path, stream, self._compression, self.limits)


def _checked_compression(mode: str) -> str:
    start, _, compression = str(mode).replace("|", ":").partition(":")
    if start != "r" or compression not in COMPRESSIONS:
        raise ValueError(f'mode must be "r:*", "r:", "r:gz", "r:bz2" or "r:xz", got {mode!r}')
    return compression if ":" in mode or "|" in mode else "*"


class TarArchive:
    """A tar that is open, read from its beginning to its end."""

    def __init__(self, path: str, stream: Any, compression: str, limits: Limits) -> None:
        self.path = path
        source, unpacking = packed_stream(path, stream, limits)
        # Sparse files grow once more, when they are read.
        self.meter = Meter(path, limits, unpacking.packed)
        self.archive = Archive(path, source, self.meter)
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            with naming(path):
                kind = compression_of(source) if compression == "*" else compression
                content = unpacked_stream(source, kind, unpacking) if kind else source
                self._input = TarInput(path, content)
                with self._input.reading_headers():
                    self._tar = StrictTarFile(fileobj=self._input, mode="r")  # type: ignore[arg-type]
            failing.pop_all()

    def close(self) -> None:
        """Let go of the stream; files that are still open keep it open."""
        self.archive.let_go()

    def files(self) -> Iterator[tarfile.TarInfo]:
        """Yield what is known of each file, in the archive's order."""
        return (info for info in self.members() if info.isfile())

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield what is known of each member, folders and links included."""
        last = -1
        while (info := self._next()) is not None:
            if info.offset <= last or info.size < 0:
                raise tarfile.ReadError(f"{self.path}: its members lead back to one another")
            last = info.offset
            self.meter.add_member(info.name, info.size)
            yield info

    def opened(self, info: tarfile.TarInfo) -> PathAndStream:
        """Return a file's path and the stream of its bytes."""
        path = member_path(self.path, info.name, tarfile.ReadError)
        with self.archive.lock:
            content: Any = self._tar.extractfile(info)
        # Not through tarfile's own buffer: there is one around every member already.
        return path, self.archive.open_member(path, content.raw)

    def _next(self) -> tarfile.TarInfo | None:
        with self.archive.lock, naming(self.path):
            if not self._input.seekable():
                self.archive.keep_latest()
            # A tar remembers all that it has seen, which may be millions.
            self._tar.members.clear()  # type: ignore[attr-defined]
            with self._input.reading_headers():
                return self._tar.next()


class TarStream(io.BufferedReader):
    """The bytes of a tar, of which one can also ask for the members, as of a ``TarFile``.

    Whoever begins with one of the two goes on with it: both read the same stream.
    """

    def __init__(self, path: str, stream: io.BufferedReader, limits: Limits) -> None:
        super().__init__(stream, BUFFER_BYTES)
        self._path = path
        self._limits = limits
        self._archive: TarArchive | None = None
        self._is_left = False
        self._found: list[tarfile.TarInfo] = []
        self._rest: Iterator[tarfile.TarInfo] = iter(())

    def __iter__(self) -> Iterator[Any]:
        """Yield the members, in the archive's order; each time all of them."""
        self._opened()
        place = 0
        while place < len(self._found) or self._find_next():
            yield self._found[place]
            place += 1

    def getmembers(self) -> list[tarfile.TarInfo]:
        """Return all members."""
        return list(self)

    def getnames(self) -> list[str]:
        """Return the names of all members."""
        return [info.name for info in self]

    def getmember(self, name: str) -> tarfile.TarInfo:
        """Return the last member of that name, which is what would be unpacked; or KeyError."""
        for info in reversed(self.getmembers()):
            if info.name == name.rstrip("/"):
                return info
        raise KeyError(f"{self._path} has no member {name!r}")

    def extractfile(self, member: str | tarfile.TarInfo) -> io.BufferedReader | None:
        """Return the bytes of a file; None for what is none, such as a folder or a link."""
        info = self.getmember(member) if isinstance(member, str) else member
        content: io.BufferedReader | None = None
        if info.isfile():
            _, content = self._opened().opened(info)
        return content

    def close(self) -> None:
        if self._archive is None:
            super().close()
        elif not self._is_left:
            # Files that are still open keep the stream open.
            self._is_left = True
            self._archive.close()

    def _opened(self) -> TarArchive:
        if self._is_left or self.closed:
            raise ValueError(f"{self._path} is closed; ask for its members before")
        if self._archive is None:
            self._archive = TarArchive(self._path, self.raw, "", self._limits)
            self._rest = self._archive.members()
        return self._archive

    def _find_next(self) -> bool:
        info = next(self._rest, None)
        if info is not None:
            self._found.append(info)
        return info is not None


class StrictTarInfo(tarfile.TarInfo):
    """A header that, where it is damaged, is an error and not the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        assert isinstance(tar, StrictTarFile)
        if tar.open_headers == MAX_HEADERS:
            raise tarfile.ReadError(
                f"more than {MAX_HEADERS} headers for the member at byte {tar.offset},"
                " which no tar has"
            )
        tar.open_headers += 1
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"no tar header at byte {tar.offset}: {error}") from None
        except IndexError:
            # The parts that follow the header of a sparse file are missing.
            raise tarfile.ReadError(f"no whole tar header at byte {tar.offset}") from None
        finally:
            tar.open_headers -= 1


class StrictTarFile(tarfile.TarFile):
    """A tar whose damaged headers are errors, and whose members have few headers each."""

    tarinfo = StrictTarInfo

    #: How many headers are being read, each of them within the one before it.
    open_headers = 0


class TarInput:
    """What a TarFile reads from: onward only, where the stream cannot seek."""

    def __init__(self, path: str, stream: io.BufferedReader) -> None:
        self.name = path
        self._stream = stream
        self._can_seek = stream.seekable()
        self._start = stream.tell() if self._can_seek else 0
        self._place = 0
        #: How many bytes may be read yet, of headers at least.
        self._room = float("inf")

    @contextlib.contextmanager
    def reading_headers(self) -> Iterator[None]:
        """Let no more be read in a block than the headers of one member may have."""
        self._room = MAX_HEADER_BYTES
        try:
            yield
        finally:
            self._room = float("inf")

    def seekable(self) -> bool:
        return self._can_seek

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes, which no tar has")
        self._room -= size
        if self._room < 0:
            raise tarfile.ReadError(
                f"a member's headers have more than {MAX_HEADER_BYTES} bytes, which no tar has"
            )
        return self._read(size)

    def seek(self, place: int) -> None:
        if self._can_seek:
            self._stream.seek(self._start + place)
            self._place = place
            return
        if place < self._place:
            raise tarfile.StreamError("the archive's stream cannot seek back")
        while self._place < place and self._read(min(place - self._place, PIECE_BYTES)):
            pass

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._place += len(data)
        return data
