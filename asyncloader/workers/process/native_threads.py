"""Threads that Python knows nothing of: those of libraries in C and Rust.

This file is about ``native_threads``, which says of what libraries they are, as Linux shows that:
the addresses on the stack of a thread that waits are those of the code that it runs; and about
``compute_alone``, for a process that has none of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from asyncloader import system

#: What threads of any library have on their stacks: of libtorch_cpu the code of a C++ thread.
_COMMON = (
    "libc.",
    "libc-",
    "libm.",
    "libpthread",
    "libstdc++",
    "libtorch_cpu",
    "ld-linux",
    "ld-musl",
    "[",
)
_WORD = 8
#: What a thread that waits has on its stack beside its first function is far less.
_MOST_BYTES = 64 << 10
_NOTES_BYTES = 4 << 10


@dataclass(frozen=True)
class NativeThread:
    """A thread that Python has not started."""

    #: Those whose functions it runs; none if that is not known.
    libraries: frozenset[str]
    #: Whether it works at this moment.
    works: bool
    #: Its number, and where its stack ends while it waits.
    task: int
    stack: int = 0


def native_threads() -> list[NativeThread]:
    """Return the threads that Python has not started.

    Raises OSError where the system does not show its threads.
    """
    # In a process that was forked Python may have the number of another for its first thread.
    known = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
    tasks = [int(task) for task in os.listdir(system.PROC / "self/task") if int(task) not in known]
    if not tasks:
        return []
    space = AddressSpace.now()
    # An address that is gone is an error here, and no crash.
    memory = os.open(system.PROC / "self/mem", os.O_RDONLY)
    try:
        return [_waiting(task, space, memory) or _working(task, space, memory) for task in tasks]
    finally:
        os.close(memory)


def _waiting(task: int, space: AddressSpace, memory: int) -> NativeThread | None:
    """Return a thread that waits, by what is on its stack; None if it works."""
    try:
        *_, pointer, counter = (system.PROC / f"self/task/{task}/syscall").read_text().split()
        stack = int(pointer, 16)
        words = _words(memory, stack, min(space.end_of_memory(stack) - stack, _MOST_BYTES))
    except (ValueError, OSError):
        return None
    found = space.libraries_at((int(counter, 16), *words))
    return NativeThread(found, works=False, task=task, stack=stack)


def _working(task: int, space: AddressSpace, memory: int) -> NativeThread:
    """Return a thread that works, by what glibc notes at the end of its stack.

    That is its number, and its first function.
    """
    number = struct.pack("i", task)
    for begin, end, path in space.memory:
        with contextlib.suppress(OSError):
            size = min(end - begin, _NOTES_BYTES)
            if not path and number in os.pread(memory, size, end - size):
                found = space.libraries_at(_words(memory, end - size, size))
                return NativeThread(found, works=True, task=task)
    return NativeThread(frozenset(), works=True, task=task)


def _words(memory: int, address: int, size: int) -> tuple[int, ...]:
    data = os.pread(memory, size // _WORD * _WORD, address)
    return struct.unpack(f"{len(data) // _WORD}Q", data)


@dataclass(frozen=True)
class AddressSpace:
    """Where this process has code and memory."""

    #: In ascending order: where each begins, where it ends, and the name of its file.
    code: tuple[tuple[int, int, str], ...]
    memory: tuple[tuple[int, int, str], ...]

    @classmethod
    def now(cls) -> AddressSpace:
        found = list(_mappings())
        code = tuple(each[1:] for each in found if "x" in each[0])
        return cls(code, tuple(each[1:] for each in found if each[0].startswith("rw")))

    def libraries_at(self, addresses: Iterable[int]) -> frozenset[str]:
        """Return the libraries that have code there, without what all threads run."""
        # Most words of a stack are no addresses of code, and many are the same.
        begins = [begin for begin, _, _ in self.code]
        places = {(bisect_right(begins, each) - 1, each) for each in set(addresses)}
        paths = {self.code[at][2] for at, each in places if at >= 0 and each < self.code[at][1]}
        found = map(os.path.basename, paths)
        return frozenset(each for each in found if each and not each.startswith(_COMMON))

    def end_of_memory(self, address: int) -> int:
        """Return where the memory with this address ends; ValueError if there is none."""
        at = bisect_right(self.memory, (address, 1 << 64, "")) - 1
        if at < 0 or not self.memory[at][0] <= address < self.memory[at][1]:
            raise ValueError(f"no memory at {address:#x}")
        return self.memory[at][1]


def mapped_files() -> set[str]:
    """Return the paths of the files that are mapped in this process."""
    return {path for *_, path in _mappings() if path}


def _mappings() -> Iterator[tuple[str, int, int, str]]:
    maps = (system.PROC / "self/maps").read_text(errors="surrogateescape")
    for line in maps.splitlines():
        addresses, flags, _, _, _, *path = line.split(maxsplit=5)
        begin, end = addresses.split("-")
        yield flags, int(begin, 16), int(end, 16), path[0] if path else ""


def compute_alone() -> None:
    """Let OpenBLAS start no threads in this process, which was forked."""
    with contextlib.suppress(OSError):
        for path in mapped_files():
            if "openblas" in os.path.basename(path):
                library = ctypes.CDLL(path)
                for name in _SETTERS:
                    getattr(library, name, int)(1)


#: As NumPy's and SciPy's own builds of it, and others, call the function.
_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
