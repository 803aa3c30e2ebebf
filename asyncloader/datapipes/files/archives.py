"""Tar and zip archives.

This file is about load_from_tar and load_from_zip: the files in an archive, read where they are.
Nothing is extracted. What is in an archive, names included, may be hostile.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
import threading
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from asyncloader.arguments import checked_length
from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.files.local import said_length
from asyncloader.datapipes.files.streams import (
    BUFFER_BYTES,
    PIECE_BYTES,
    PathAndStream,
    path_and_stream,
)
from asyncloader.datapipes.files.unpacking import (
    AT_ONCE_BYTES,
    MAX_BYTES,
    MAX_MEMBER_BYTES,
    MAX_MEMBERS,
    MAX_RATIO,
    Counted,
    Limits,
    Meter,
    compression_of,
    naming,
    packed_stream,
    unpacked_stream,
)
from asyncloader.datapipes.patterns import Expander
from asyncloader.datapipes.tolerance import OnError


class ArchiveLoader(Expander[PathAndStream]):
    """A pipe whose items are the files in archives."""

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        length: int,
        limits: Limits,
        *,
        on_error: OnError,
        max_errors: int | None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.length = checked_length(length)
        self.limits = limits
        # A pipe keeps its settings under the names of its keywords: a fingerprint looks there.
        vars(self).update(vars(limits))

    def __len__(self) -> int:
        return said_length(self, self.length)

    def archive(self, path: str, stream: Any) -> Archive:
        """Open an archive."""
        raise NotImplementedError

    def parts(self, item: Any, skip: int = 0) -> Iterator[PathAndStream]:
        with contextlib.closing(self.archive(*path_and_stream(item, self))) as archive:
            for info in archive.files():
                if skip:
                    skip -= 1
                else:
                    yield archive.opened(info)


class Archive:
    """An open archive: its stream, which is closed when nothing uses it any more.

    The code that opened the archive uses it, and so does every open member. ``lock`` is
    taken for every step in the stream, which the members share.
    """

    def __init__(self, path: str, stream: Any, meter: Meter) -> None:
        self.path = path
        self.meter = meter
        self.lock = threading.RLock()
        self._stream = stream
        self._holders = 1
        self._latest: Callable[[], Member | None] = lambda: None

    def files(self) -> Iterator[Any]:
        """Yield what is known of each file, in the archive's order."""
        raise NotImplementedError

    def opened(self, info: Any) -> PathAndStream:
        """Return a file's path and the stream of its bytes."""
        raise NotImplementedError

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
        """Read the rest of the member opened last into memory, if it is still in use.

        Call this before reading on, where the stream cannot seek back.
        """
        latest = self._latest()
        if latest is not None:
            latest.keep()

    def hold(self) -> None:
        """Keep the stream open until one more has called ``close``."""
        with self.lock:
            self._holders += 1

    def close(self) -> None:
        """Hold the stream no longer; files that are still open keep it open."""
        with self.lock:
            self._holders -= 1
            if self._holders == 0:
                self._stream.close()


class Member(Counted):
    """The bytes of one member of an archive, which it keeps open."""

    def __init__(self, archive: Archive, name: str, opener: Any, at_once: int) -> None:
        super().__init__(name, opener, archive.meter, archive.lock, at_once)
        self._archive = archive
        archive.hold()

    def seekable(self) -> bool:
        return self._before == 0 and bool(self._opener.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._lock, naming(self.name):
            place: int = self._opener.seek(offset, whence)
        return place

    def keep(self) -> None:
        """Read the rest into memory, before the archive is read on."""
        with self._lock:
            if not self.closed:
                self._before, self._opener = self.tell(), io.BytesIO(self.readall())

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._lock:
                self._opener.close()
            self._archive.close()


def member_path(archive: str, name: str, refusal: type[Exception]) -> str:
    """Return an archive's path with a member's name after it.

    The name never leads out of the archive: it is taken as relative, and ``..`` goes no
    further up than to the archive itself. A name that leads to the archive itself, or has a
    NUL, is a ``refusal``: saving such a file would overwrite the archive.
    """
    steps: list[str] = []
    for step in name.replace("\\", "/").split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    if not steps or "\0" in name:
        raise refusal(
            f"{archive}: its member {name!r} has no path inside the archive; pack the archive"
            ' again without it, or skip the archive with on_error="skip"'
        )
    # What is before a member may be a URL, in which "//" means something.
    folder = archive if "://" in archive else os.path.normpath(archive)
    return "/".join([folder, *steps])


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
    insist on a compression. An archive that unpacks to more than ``max_members``,
    ``max_member_bytes``, ``max_bytes`` or ``max_ratio`` times its size is a
    ``ResourceExhausted``; ``math.inf`` is no limit.
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


class TarArchive(Archive):
    """A tar that is open, read from its beginning to its end."""

    def __init__(self, path: str, stream: Any, compression: str, limits: Limits) -> None:
        source, unpacking = packed_stream(path, stream, limits)
        # Sparse files grow once more, when they are read.
        super().__init__(path, source, Meter(path, limits, unpacking.packed))
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            with naming(path):
                kind = compression_of(source) if compression == "*" else compression
                content = unpacked_stream(source, kind, unpacking) if kind else source
                self._input = TarInput(path, content)
                with self._input.reading_headers():
                    self._tar = tarfile.TarFile(
                        fileobj=self._input,  # type: ignore[arg-type]
                        mode="r",
                        tarinfo=StrictTarInfo,
                    )
            failing.pop_all()

    def files(self) -> Iterator[tarfile.TarInfo]:
        return (info for info in self.members() if info.isfile())

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield what is known of each member, folders and links included."""
        last = -1
        while (info := self._next()) is not None:
            if info.offset <= last or info.size < 0:
                raise tarfile.ReadError(f"{self.path}: its members point back to one another")
            last = info.offset
            self.meter.add_member(info.name, info.size)
            yield info

    def opened(self, info: tarfile.TarInfo) -> PathAndStream:
        path = member_path(self.path, info.name, tarfile.ReadError)
        with self.lock:
            content: Any = self._tar.extractfile(info)
        # Not through tarfile's own buffer: there is one around every member already.
        return path, self.open_member(path, content.raw)

    def _next(self) -> tarfile.TarInfo | None:
        with self.lock, naming(self.path):
            if not self._input.seekable():
                self.keep_latest()
            # A tar remembers all that it has seen, which may be millions.
            self._tar.members.clear()  # type: ignore[attr-defined]
            with self._input.reading_headers():
                return self._tar.next()


class TarStream(io.BufferedReader):
    """The bytes of a tar, of which one can also ask for the members, as of a ``TarFile``.

    Use only one of the two: both read the same stream.
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
            raise ValueError(f"{self._path} is closed; ask for its members before you close it")
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
    """A header that, where it is damaged, is an error and not the end of the archive.

    It may have only so many others within it.
    """

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"no tar header at byte {tar.offset}: {error}") from None
        except IndexError:
            # The parts that follow the header of a sparse file are missing.
            raise tarfile.ReadError(f"the tar header at byte {tar.offset} is incomplete") from None

    def _proc_member(self, tar: tarfile.TarFile) -> Self:
        # tarfile calls this for every header, also for one within another. It calls fromtarfile
        # for those too or not, depending on the version.
        source: Any = tar.fileobj
        if source.open_headers == MAX_HEADERS:
            raise tarfile.ReadError(
                f"the member at byte {tar.offset} has more than {MAX_HEADERS} headers:"
                " the tar is damaged or hostile"
            )
        source.open_headers += 1
        try:
            found: Self = super()._proc_member(tar)  # type: ignore[misc]  # not in its stub
            return found
        finally:
            source.open_headers -= 1


class TarInput:
    """What a TarFile reads from: onward only, where the stream cannot seek."""

    def __init__(self, path: str, stream: io.BufferedReader) -> None:
        self.name = path
        self._stream = stream
        self._can_seek = stream.seekable()
        self._start = stream.tell() if self._can_seek else 0
        self._place = 0
        #: How many headers are being read, each of them within the one before it.
        self.open_headers = 0
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
            raise tarfile.ReadError(f"a header has {size} bytes: the tar is damaged or hostile")
        self._room -= size
        if self._room < 0:
            raise tarfile.ReadError(
                f"a member's headers have more than {MAX_HEADER_BYTES} bytes: the tar is damaged or"
                " hostile"
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


_IS_ENCRYPTED = 0x1


@functional_datapipe("load_from_zip")
class ZipArchiveLoader(ArchiveLoader):
    """Yield ``(path, stream)`` for each file in each zip of a source of such pairs.

    A file's path is that of the archive with the file's name after it, and never leads
    out of the archive; a file whose name leads to the archive itself, such as "..", is an
    error. Links, folders and devices are left out. A file may be held and
    read later. The archive's stream has to be one that can seek, since a zip keeps its
    directory at its end. The limits are those of ``load_from_tar``.
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


class ZipArchive(Archive):
    """A zip that is open, and its directory."""

    def __init__(self, path: str, stream: Any, limits: Limits) -> None:
        super().__init__(path, *packed_stream(path, stream, limits))
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            with naming(path):
                self._zip = LimitedZipFile(_seekable(self._stream), self.meter)
            failing.pop_all()

    def files(self) -> Iterator[zipfile.ZipInfo]:
        for info in self._zip.infolist():
            self.meter.add_member(info.filename, info.file_size)
            # Above the lower half are the bits of Unix, where such a system packed it.
            kind = stat.S_IFMT(info.external_attr >> 16)
            # Some Pythons fail on an empty name when they are asked whether it is a folder's.
            if not info.filename.endswith("/") and kind in (0, stat.S_IFREG):
                yield info

    def opened(self, info: zipfile.ZipInfo) -> PathAndStream:
        path = member_path(self.path, info.filename, zipfile.BadZipFile)
        if info.flag_bits & _IS_ENCRYPTED:
            raise RuntimeError(f"{path} is encrypted; unpack the archive with its password first")
        with self.lock, naming(path):
            content = self._zip.open(info)
        return path, self.open_member(path, content, _at_once(info))


def _at_once(info: zipfile.ZipInfo) -> int:
    """Return how many bytes of a member may be asked for at a time."""
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return AT_ONCE_BYTES
    # Of the other kinds zipfile unpacks so many packed bytes, however much comes out of them.
    return io.DEFAULT_BUFFER_SIZE // 2


class LimitedZipFile(zipfile.ZipFile):
    """A zip whose directory may have only so many members."""

    def __init__(self, stream: io.BufferedReader, meter: Meter) -> None:
        self._members = _Directory(meter)
        super().__init__(stream)

    @property
    def filelist(self) -> list[zipfile.ZipInfo]:
        """The members, in the directory's order."""
        return self._members

    @filelist.setter
    def filelist(self, members: list[zipfile.ZipInfo]) -> None:
        # It starts with an empty list, and appends to it later.
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
