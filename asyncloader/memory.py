"""Shared memory without a name in the file system.

This file is about memory that lives while a process maps it, is sent to another process as a file
descriptor, and leaves nothing in the file system when its users are killed: a ``Segment`` that
can be written many times, and ``SharedBytes`` that are written once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import pickle
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any

from asyncloader import system
from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.waiting import do_nothing

_POPULATE_AT_MOST = 64 << 20  # about 6 ms, in an event loop
_MAP_FIXED = 0x10  # the same number on Linux, macOS and the BSDs
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_WRITE_BUFFER = 1 << 20


class Segment:
    """A fixed number of bytes that several processes can map.

    ``create`` returns a segment that still holds its file descriptor, for the peers
    that will map it; ``attach`` maps one that a peer sent. A mapping holds no
    descriptor. It lives until the segment is closed *and* every view of it is gone.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._map: Mapping | None = _map(fd, size, writable=True)
        self.size = size
        self.address = self._map.address

    @classmethod
    def create(cls, size: int) -> Segment:
        """Return a new segment of zeros, or raise ``ResourceExhausted``.

        All of its memory is reserved here, so writing to it later cannot fail. If the system
        refuses something else than memory, such as a descriptor, this is an OSError.
        """
        if size < 1:
            raise ValueError(f"a segment has at least 1 byte, got {size}")
        fd = system.unnamed_memory()
        try:
            os.ftruncate(fd, size)
            segment = cls(fd, size)
            system.populate(segment.address, size)
            # Reserving fails here with ENOSPC; without it a later write could die by SIGBUS.
            # Map first: pages that are touched through the mapping may be huge pages.
            system.reserve(fd, size)
            system.seal(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_ROOM:
                raise _exhausted(size, _WORKERS_ADVICE) from error
            raise
        return segment

    @classmethod
    def attach(cls, fd: int) -> Segment:
        """Map the segment behind ``fd``, which is closed whatever happens.

        Raises ``TransportError`` if a peer could shorten it while we use it.
        """
        try:
            size = os.fstat(fd).st_size
            if size < 1:
                raise TransportError(f"a shared segment has at least 1 byte, got {size}")
            if system.can_seal() and not system.is_sealed(fd):
                raise TransportError("a shared segment must be sealed against truncation")
            segment = cls(fd, size)
            if size <= _POPULATE_AT_MOST:
                system.populate(segment.address, size)
        finally:
            os.close(fd)
        segment._fd = -1
        segment.buffer.be_found()
        return segment

    @property
    def view(self) -> memoryview:
        """The segment's bytes, writable. Raises ``ValueError`` when closed."""
        return memoryview(self.buffer)

    @property
    def buffer(self) -> Mapping:
        """The mapping itself, which keeps itself alive while it is exported."""
        if self._map is None:
            raise ValueError("this segment is closed")
        return self._map

    def take_fd(self) -> int:
        """Return the descriptor, once; the caller closes it."""
        if self._fd < 0:
            raise ValueError("this segment's descriptor was already taken")
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Give up the descriptor and the mapping; views that exist stay valid."""
        if self._fd >= 0:
            os.close(self.take_fd())
        self._map = None


class SharedBytes:
    """Bytes that are written once; several processes can read them and none can change them.

    They hold a descriptor, so that they can be sent on. A pickle contains the bytes themselves;
    a deep copy is the same object.
    """

    def __init__(self, fd: int, size: int) -> None:
        mapped = _map(fd, max(size, 1), writable=False)
        self.view = memoryview(mapped)[:size].toreadonly()
        self._fd = fd

    @classmethod
    def of(cls, chunks: Iterable[Any]) -> SharedBytes:
        """Return the chunks, one after the other; ``ResourceExhausted`` if there is no room."""
        if not system.HAS_WORKERS:
            whole = memoryview(b"".join(chunks))
            return cls._over(whole, len(whole))
        fd = system.unnamed_file()
        try:
            with open(fd, "wb", _WRITE_BUFFER, closefd=False) as file:
                for chunk in chunks:
                    file.write(chunk)
                size = file.tell()
                # An empty file cannot be mapped.
                file.truncate(max(size, 1))
            system.seal(fd, against_writing=True)
            return cls(fd, size)
        except BaseException as error:
            written = os.fstat(fd).st_size
            os.close(fd)
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise _exhausted(written + _WRITE_BUFFER, "share less data") from error
            raise

    @classmethod
    def attach(cls, fd: int | memoryview, size: int) -> SharedBytes:
        """Map bytes that a peer sent; the object owns the descriptor.

        In place of a descriptor there may be memory that others share already.
        """
        if isinstance(fd, memoryview):
            return cls._over(fd, size)
        try:
            if os.fstat(fd).st_size != max(size, 1):
                raise TransportError(f"{os.fstat(fd).st_size} bytes came where {size} were meant")
            if system.can_seal() and not system.is_sealed(fd, against_writing=True):
                raise TransportError("shared bytes must be sealed against change")
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def _over(cls, memory: memoryview, size: int) -> SharedBytes:
        if len(memory) != size:
            raise TransportError(f"{len(memory)} bytes came where {size} were meant")
        shared = cls.__new__(cls)
        shared.view = memory.toreadonly()
        return shared

    @classmethod
    def attach_copy(cls, fd: int | memoryview, size: int) -> memoryview:
        """Return a copy of bytes that a peer sent; as ``attach``, but what is written is one's own.

        Only pages that are written take memory of this process.
        """
        shared = cls.attach(fd, size)
        if isinstance(fd, memoryview):
            return memoryview(bytearray(shared.view))
        return memoryview(_map(shared._fd, max(size, 1), writable=True, is_copy=True))[:size]

    def duplicate_fd(self) -> int:
        """Return a new descriptor, for ``attach`` in another process; the caller closes it."""
        return os.dup(self._fd)

    def __copy__(self) -> SharedBytes:
        return self

    def __deepcopy__(self, memo: Any) -> SharedBytes:
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # With out-of-band buffers the pickle does not contain a second copy.
        whole = pickle.PickleBuffer(self.view) if protocol >= 5 else bytes(self.view)
        return _copied, (whole,)

    @system.unless_exiting
    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def _copied(whole: Any) -> SharedBytes:
    return SharedBytes.of([whole])


class Mapping(mmap.mmap):
    """Memory that stays mapped until nothing refers to it."""

    #: Where it begins.
    address = 0

    #: Called once, in any thread, before the memory is unmapped.
    before_unmapping: Callable[[], object] = do_nothing

    #: Whether its pages are locked, so that a device can read them by itself; None if nobody tried.
    is_locked: bool | None = None

    _entry: tuple[int, weakref.ref[Mapping]] | None = None

    def be_found(self) -> None:
        """Let ``mapping_at`` find it."""
        self._entry = self.address, weakref.ref(self)
        insort(_attached, self._entry)

    @system.unless_exiting
    def __del__(self) -> None:
        if self._entry is not None:
            _attached.remove(self._entry)
        self.before_unmapping()


#: The mappings that ``mapping_at`` finds, by their addresses, in ascending order. Threads share it:
#: each change is one step, since nothing but numbers is compared.
_attached: list[tuple[int, weakref.ref[Mapping]]] = []


def mapping_at(address: int, nbytes: int) -> Mapping | None:
    """Return the mapping of an attached segment that holds this memory, or None.

    None, too, if another thread attaches one at this moment.
    """
    after = bisect_right(_attached, (address + 1,))
    for start, reference in _attached[max(0, after - 1) : after]:
        mapping = reference()
        if mapping is not None and start <= address <= start + len(mapping) - nbytes:
            return mapping
    return None


def map_file(fd: int, *, writable: bool, is_copy: bool) -> memoryview:
    """Map a whole file, or a copy of it of which only written pages take memory."""
    return memoryview(_map(fd, os.fstat(fd).st_size, writable=writable, is_copy=is_copy))


#: What a program makes to map a file itself.
OpenMap = mmap.mmap


def open_map(path: str, offset: int, length: int, is_shared: bool, position: int) -> mmap.mmap:
    """Map a part of a file as a program does, with writes that go to the file or to nobody."""
    access = mmap.ACCESS_WRITE if is_shared else mmap.ACCESS_COPY
    with open(path, "r+b" if is_shared else "rb") as file:
        mapped = mmap.mmap(file.fileno(), length, access=access, offset=offset)
    mapped.seek(position)
    return mapped


def address_of(buffer: Any) -> int:
    """Return where the memory of a contiguous buffer begins, which may be read-only."""
    found = (ctypes.c_void_p * _BUFFER_WORDS)()
    _get_buffer(buffer, found, 0)
    _release_buffer(found)
    return found[0] or 0


#: How long C's Py_buffer is at most, in words; the address is its first field.
_BUFFER_WORDS = 16
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None


def memory_at(address: int, nbytes: int) -> memoryview:
    """Return a view of memory, which somebody else keeps alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def is_equal(address: int, view: memoryview) -> bool:
    """Whether memory holds the same bytes as a view; other threads run meanwhile."""
    return bool(_libc().memcmp(address, address_of(view), len(view)) == 0)


def _map(fd: int, size: int, *, writable: bool, is_copy: bool = False) -> Mapping:
    # mmap.mmap(fd) would keep a duplicate of the descriptor while it is mapped. Mapping the
    # file over an anonymous mmap needs no descriptor, and that object still tracks exported
    # views.
    mapped = Mapping(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    mapped.address = address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    kind = mmap.MAP_PRIVATE if is_copy else mmap.MAP_SHARED
    if _libc().mmap(address, size, access, kind | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size} bytes: {os.strerror(number)}")
    return mapped


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    number, size = ctypes.c_int, ctypes.c_size_t
    libc.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_ssize_t]
    libc.mmap.restype = ctypes.c_void_p
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, size]
    return libc


_WORKERS_ADVICE = "use fewer workers, a smaller worker_prefetch_cnt, prefetch_bytes or batches"


def _exhausted(need: int, advice: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"a shared memory segment needs {need} bytes{_available()}: "
        f"{advice}, or raise the container's memory limit"
    )


def _available() -> str:
    with contextlib.suppress(OSError, ValueError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f", but about {free} are available"
    return ""
