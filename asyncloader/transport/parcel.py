"""A graph on its way to the processes that run it: a pickle, and the memory beside it.

This file is about ``pack_code`` and ``unpack_code``. What is large leaves the pickle, and is in
memory once, however many processes get it:

    arrays, tensors, Arrow's buffers   written into shared memory once; what a process changes there
                                       is copied for it alone, page by page
    memory of a mapped file            the process maps the same file
    SharedBytes                        the process maps the same memory
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import struct
import sys
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from asyncloader import system
from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.machine import available_memory
from asyncloader.memory import (
    OpenMap,
    SharedBytes,
    address_of,
    is_equal,
    map_file,
    memory_at,
    open_map,
)
from asyncloader.transport.channel import close_all
from asyncloader.transport.code import code_pickler, modules_being_imported, sent_by_value
from asyncloader.transport.pickling import LARGE, Dump, load
from asyncloader.transport.raw_arrays import IN_BAND_BELOW


class Parcel(NamedTuple):
    """A pickle of code, and the shared memory that is sent with it.

    If ``data`` is empty, the pickle is in the first block of shared memory.
    """

    data: bytes
    shared: tuple[SharedBytes, ...]
    #: How long the pickle is, and how much of arrays and the like was written beside it.
    pickled: int = 0
    beside: int = 0

    def fds(self) -> list[int]:
        """Return new descriptors to send to one receiver."""
        return [each.duplicate_fd() for each in self.shared]


def pack_code(code: Any) -> Parcel:
    """Pickle a graph for processes of ours, with what they may lack of its code."""
    dump = Dump()
    modules = modules_being_imported()
    pickler = _parcel_pickler()(dump)
    with sent_by_value(modules):
        dump.fill(pickler, code)
        halted = [each.__name__ for each in modules if _has_code_of(each, pickler.homes)]
        if halted:
            dump.reset()
            pickler = _parcel_pickler()(dump)
            dump.fill(pickler, without_imports_of(halted, code))
    pickled = sum(map(len, dump.chunks))
    memory = _shared_memory(pickler.left)
    shared = tuple(each for each in pickler.left if isinstance(each, SharedBytes))
    if len(shared) == len(pickler.left) and pickled < LARGE:
        return Parcel(dump.data, shared, pickled)
    forms = pickle.dumps([_form_of(each, memory) for each in pickler.left])
    head = SharedBytes.of([_LENGTH.pack(len(forms)), forms, *dump.chunks])
    if memory is None:
        return Parcel(b"", (head, *shared), pickled)
    return Parcel(b"", (head, memory.block, *shared), pickled, len(memory.block.view))


def unpack_code(data: bytes, fds: Sequence[int | memoryview] = ()) -> Any:
    """Return what ``pack_code`` was given.

    ``fds`` came with the parcel: a descriptor for each block of shared memory, or the block.
    """
    left = deque(fds)
    try:
        if data:
            return load(data, iter(left.popleft, None))
        head = SharedBytes.attach(*_sized(left.popleft())).view
        begin = _LENGTH.size + _LENGTH.unpack_from(head)[0]
        forms: list[_Form] = pickle.loads(head[_LENGTH.size : begin])
        return load(head[begin:], _buffers(forms, left))
    finally:
        close_all(fd for fd in left if isinstance(fd, int))


_LENGTH = struct.Struct("<Q")


def _sized(fd: int | memoryview) -> tuple[int | memoryview, int]:
    return fd, len(fd) if isinstance(fd, memoryview) else os.fstat(fd).st_size


# What left the pickle -------------------------------------------------------------------


class Memory(NamedTuple):
    """Memory of this process, and what keeps it alive."""

    address: int
    nbytes: int
    owner: Any


class FileMemory(NamedTuple):
    """Memory that is mapped from a file; ``is_shared`` if what is written goes to the file."""

    path: str
    offset: int
    nbytes: int
    is_shared: bool


class BlockMemory(NamedTuple):
    """Memory as it is found in the block beside the pickle."""

    offset: int
    nbytes: int


_Left = SharedBytes | Memory | FileMemory
#: None is for a descriptor.
_Form = BlockMemory | FileMemory | None


def _form_of(left: _Left, memory: SharedMemory | None) -> _Form:
    if isinstance(left, Memory):
        assert memory is not None
        return BlockMemory(memory.offset_of(left.address), left.nbytes)
    return None if isinstance(left, SharedBytes) else left


def _buffers(forms: Iterable[_Form], left: deque[int | memoryview]) -> Iterator[Any]:
    """Yield the buffers of a pickle, in its order."""
    forms = list(forms)
    block = memoryview(b"")
    if any(isinstance(form, BlockMemory) for form in forms):
        block = SharedBytes.attach_copy(*_sized(left.popleft()))
    files: dict[tuple[str, bool], memoryview] = {}
    for form in forms:
        match form:
            case None:
                yield left.popleft()
            case BlockMemory(offset, nbytes):
                yield block[offset : offset + nbytes]
            case FileMemory(path, offset, nbytes, is_shared):
                if (path, is_shared) not in files:
                    files[path, is_shared] = _opened(path, is_shared)
                yield _part(files[path, is_shared], form)


def _opened(path: str, is_shared: bool) -> memoryview:
    fd = os.open(path, os.O_RDWR if is_shared else os.O_RDONLY)
    try:
        return map_file(fd, writable=True, is_copy=not is_shared)
    finally:
        os.close(fd)


def _part(whole: memoryview, form: FileMemory) -> memoryview:
    if form.offset + form.nbytes > len(whole):
        raise TransportError(f"{form.path} became shorter while workers were started")
    return whole[form.offset : form.offset + form.nbytes]


class SharedMemory:
    """A block in shared memory with what several pieces of memory hold.

    Pieces that overlap do so in the block too: views of an array stay views of one memory.
    """

    def __init__(self, memories: Iterable[Memory]) -> None:
        #: Where each piece begins and ends that overlaps no other, in ascending order.
        self._regions: list[tuple[int, int]] = []
        for memory in sorted(memories, key=lambda memory: memory[:2]):
            begin, end = memory.address, memory.address + memory.nbytes
            if self._regions and begin < self._regions[-1][1]:
                begin, last = self._regions.pop()
                end = max(end, last)
            self._regions.append((begin, end))
        self._offsets: list[int] = []
        at = 0
        for begin, end in self._regions:
            # Whoever wants its memory aligned has it so.
            at += (begin - at) % _ALIGNMENT
            self._offsets.append(at)
            at += end - begin
        self.block = self._known(at) or self._written(at)

    def offset_of(self, address: int) -> int:
        """Return where an address is in the block."""
        at = bisect_right(self._regions, (address, sys.maxsize)) - 1
        return self._offsets[at] + address - self._regions[at][0]

    def _known(self, nbytes: int) -> SharedBytes | None:
        """Return the block of another loader that holds the same, if there is one."""
        block = _blocks.get(tuple(self._regions))
        if block is None or len(block.view) != nbytes:
            return None
        places = zip(self._regions, self._offsets, strict=True)
        is_same = all(
            is_equal(begin, block.view[at : at + end - begin]) for (begin, end), at in places
        )
        return block if is_same else None

    def _written(self, nbytes: int) -> SharedBytes:
        free = available_memory()
        if free is not None and nbytes > free:
            raise ResourceExhausted(
                f"the graph holds {mebibytes(nbytes)} of arrays and tensors, and {mebibytes(free)}"
                " of memory are free for the copy that the workers share:"
                ' multiprocessing_context="fork" needs no copy, nor do files that are mapped'
                " (numpy.memmap)"
            )
        block = SharedBytes.of(self._chunks())
        _blocks[tuple(self._regions)] = block
        return block

    def _chunks(self) -> Iterator[memoryview | bytes]:
        at = 0
        for (begin, end), offset in zip(self._regions, self._offsets, strict=True):
            yield bytes(offset - at)
            yield memory_at(begin, end - begin)
            at = offset + end - begin


_ALIGNMENT = 64

#: The blocks that are in use, by the regions of memory that they were written from.
_blocks: weakref.WeakValueDictionary[tuple[tuple[int, int], ...], SharedBytes] = (
    weakref.WeakValueDictionary()
)


def mebibytes(nbytes: int) -> str:
    """Return a size in words."""
    return f"{nbytes / (1 << 20):,.0f} MiB"


def _shared_memory(left: Iterable[_Left]) -> SharedMemory | None:
    memories = [each for each in left if isinstance(each, Memory)]
    return SharedMemory(memories) if memories else None


# What leaves it -------------------------------------------------------------------------


@functools.cache
def _parcel_pickler() -> Any:
    class ParcelPickler(code_pickler()):  # type: ignore[misc]
        """Leaves out of the pickle what the other process finds in memory."""

        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, on_buffer=self._stays_inside)
            self.left: list[_Left] = []
            #: What the next buffer stands for.
            self._stands_for: _Left | None = None
            #: The first of torch's storages over each memory.
            self._storages: dict[int, Any] = {}
            self._files = MappedFiles()

        def clear_memo(self) -> None:
            super().clear_memo()
            self.left.clear()
            self._storages.clear()

        def reducer_override(self, item: Any) -> Any:
            if type(item) is SharedBytes:
                self._stands_for = item
                return SharedBytes.attach, (pickle.PickleBuffer(bytearray()), len(item.view))
            torch, numpy = _loaded("torch", "storage"), _loaded("numpy", "memmap")
            if torch is not None and type(item) is torch.storage.TypedStorage:
                return self._reduce_storage(item)
            if numpy is not None and type(item) is numpy.memmap:
                return _as_memmap, (item.view(numpy.ndarray), item.filename, item.mode)
            if type(item) is OpenMap and not item.closed:
                found = self._found(Memory(address_of(item), len(item), item))
                if isinstance(found, FileMemory):
                    place = found.offset, found.nbytes, found.is_shared
                    return open_map, (found.path, *place, item.tell())
            return super().reducer_override(item)

        def _reduce_storage(self, typed: Any) -> Any:
            storage = typed._untyped_storage
            if storage.device.type != "cpu" or storage.nbytes() < IN_BAND_BELOW:
                return super().reducer_override(typed)
            first = self._storages.setdefault(storage._cdata, typed)
            if first is not typed:
                # Views of one memory stay views of one memory.
                return _storage_beside, (first, typed.dtype)
            self._stands_for = self._found(Memory(storage.data_ptr(), storage.nbytes(), storage))
            return _storage_over, (pickle.PickleBuffer(bytearray()), typed.dtype)

        def _stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
            if self._stands_for is not None:
                self.left.append(self._stands_for)
                self._stands_for = None
                return False
            view = buffer.raw()
            if view.nbytes < IN_BAND_BELOW:
                return True
            self.left.append(self._found(Memory(address_of(view), view.nbytes, view)))
            return False

        def _found(self, memory: Memory) -> Memory | FileMemory:
            return self._files.holding(memory) or memory

    return ParcelPickler


def _loaded(name: str, attribute: str) -> ModuleType | None:
    """Return a module if it was imported; another thread may still be importing it."""
    module = sys.modules.get(name)
    return module if hasattr(module, attribute) else None


def _storage_over(memory: Any, dtype: Any) -> Any:
    import torch

    return _typed(torch.frombuffer(memory, dtype=torch.uint8).untyped_storage(), dtype)


def _storage_beside(other: Any, dtype: Any) -> Any:
    return _typed(other._untyped_storage, dtype)


def _typed(storage: Any, dtype: Any) -> Any:
    from torch.storage import TypedStorage

    made: Any = TypedStorage
    return made(wrap_storage=storage, dtype=dtype, _internal=True)


def _as_memmap(array: Any, filename: Any, mode: str) -> Any:
    import numpy

    twin = array.view(numpy.memmap)
    twin.filename, twin.mode = filename, mode
    return twin


class MappedFiles:
    """The files that are mapped in this process."""

    def __init__(self) -> None:
        self._mappings: list[system.FileMapping] | None = None

    def holding(self, memory: Memory) -> FileMemory | None:
        """Return the place of memory in a file that another process can map, or None."""
        if memory.nbytes < LARGE:
            return None
        if self._mappings is None:
            self._mappings = system.file_mappings()
        for mapping in self._mappings:
            if mapping.begin <= memory.address < memory.address + memory.nbytes <= mapping.end:
                return _in_file(mapping, memory)
        return None


#: How much of a file is compared at both ends.
_COMPARED = 4096


def _in_file(mapping: system.FileMapping, memory: Memory) -> FileMemory | None:
    offset = mapping.offset + memory.address - mapping.begin
    is_shared = mapping.is_shared and mapping.is_writable
    if not mapping.is_shared and system.may_be_changed(memory.address, memory.nbytes):
        return None
    try:
        with open(mapping.path, "r+b" if is_shared else "rb", buffering=0) as file:
            # Another file may have come to that place since.
            for at in (0, memory.nbytes - _COMPARED):
                read = os.pread(file.fileno(), _COMPARED, offset + at)
                if read != ctypes.string_at(memory.address + at, _COMPARED):
                    return None
    except OSError:
        return None
    return FileMemory(mapping.path, offset, memory.nbytes, is_shared)


# Modules that are being imported --------------------------------------------------------


class Call:
    """Pickled as a call, which the other process makes when it unpickles this."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._reduced = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._reduced


def without_imports_of(modules: Sequence[str], code: Any) -> Any:
    """Return what is pickled in the place of code so that who unpickles it cannot import these."""
    # Arguments are unpickled one after the other: imports are halted before any is made.
    return Call(_second, Call(_halt_imports, list(modules)), code) if modules else code


def _has_code_of(module: ModuleType, homes: set[str]) -> bool:
    """Whether of code from these modules any is of this module, or of the package it is."""
    name = module.__name__
    return any(home == name or home.startswith(name + ".") for home in homes)


def _halt_imports(modules: Sequence[str]) -> None:
    # An import of a name that leads to None is a ModuleNotFoundError that says so.
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]


def _second(first: Any, second: Any) -> Any:
    return second
