"""Code as bytes: graphs and functions for a process that does not have them.

This file is about ``dumps_code`` and ``pack_code``, which include the code that the other
process cannot import. Only this file uses cloudpickle.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from abc import ABCMeta
from collections import deque
from collections.abc import Sequence
from types import MemberDescriptorType
from typing import Any, NamedTuple, Protocol

from asyncloader.main_script import SPAWNED_MAIN
from asyncloader.memory import SharedBytes
from asyncloader.transport.channel import close_all
from asyncloader.transport.pickling import LARGE, Dump, load, reduce_storage


def dumps_code(code: Any) -> bytes:
    """Pickle a graph or a function, with the code that the other process may lack."""
    dump = Dump()
    dump.fill(_code_pickler()(dump, protocol=5), code)
    return dump.data


class Parcel(NamedTuple):
    """A pickle of code, and the shared memory that is sent with it.

    If ``data`` is empty, the pickle is the first block of shared memory.
    """

    data: bytes
    shared: tuple[SharedBytes, ...]

    def fds(self) -> list[int]:
        """Return new descriptors to send to one receiver."""
        return [each.duplicate_fd() for each in self.shared]


def pack_code(code: Any) -> Parcel:
    """Pickle a graph for one of our processes, which maps the shared memory.

    A large pickle is itself put into shared memory: it is written once, and not copied again
    for every process.
    """
    dump = Dump()
    pickler = _parcel_pickler()(dump)
    dump.fill(pickler, code)
    if sum(map(len, dump.chunks)) < LARGE:
        return Parcel(dump.data, tuple(pickler.shared))
    return Parcel(b"", (SharedBytes.of(dump.chunks), *pickler.shared))


def loads_code(data: bytes | memoryview, fds: Sequence[int | memoryview] = ()) -> Any:
    """Return what ``dumps_code`` or ``pack_code`` was given.

    ``fds`` came with a parcel: a descriptor for each block of shared memory, or the block.
    """
    left = deque(fds)
    try:
        pickled = data or _mapped(left.popleft())
        return load(pickled, iter(left.popleft, None))
    finally:
        close_all(fd for fd in left if isinstance(fd, int))


def _mapped(fd: int | memoryview) -> memoryview:
    return fd if isinstance(fd, memoryview) else SharedBytes.attach(fd, os.fstat(fd).st_size).view


@functools.cache
def _code_pickler() -> Any:
    class CodePickler(_cloudpickle().Pickler):  # type: ignore[misc]
        """Includes the code that the other process may lack."""

        def dump(self, code: Any) -> None:
            # cloudpickle's own method hides a RecursionError behind another error.
            pickle.Pickler.dump(self, code)

        def reducer_override(self, item: Any) -> Any:
            if isinstance(item, type):
                return _with_slots(item, super().reducer_override(item))
            storage = reduce_storage(item)
            return super().reducer_override(item) if storage is NotImplemented else storage

    return CodePickler


def _with_slots(kind: type, reduced: Any) -> Any:
    """Keep the slots of a class that is sent by value; cloudpickle leaves them out."""
    if isinstance(reduced, tuple) and _says_its_slots(kind):
        make, arguments, *rest = reduced
        *before, body, tracker, extra = arguments
        slots = [name for name, value in vars(kind).items() if _is_slot(name, value)]
        return make, (*before, {**body, "__slots__": slots}, tracker, extra), *rest
    return reduced


def _says_its_slots(kind: type) -> bool:
    # The metaclass gives named tuples and similar classes their slots.
    is_named_tuple = NamedTuple in vars(kind).get("__orig_bases__", ())
    is_plain = type(kind) in (type, ABCMeta, type(Protocol))
    return "__slots__" in vars(kind) and is_plain and not is_named_tuple


def _is_slot(name: str, value: Any) -> bool:
    return isinstance(value, MemberDescriptorType) or name in ("__dict__", "__weakref__")


@functools.cache
def _parcel_pickler() -> Any:
    class ParcelPickler(_code_pickler()):  # type: ignore[misc]
        """Leaves shared memory out of the pickle; its descriptor is sent instead."""

        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, protocol=5, buffer_callback=self._stays_inside)
            self.shared: list[SharedBytes] = []
            self._descriptor: Any = None

        def clear_memo(self) -> None:
            super().clear_memo()
            self.shared.clear()

        def reducer_override(self, item: Any) -> Any:
            if type(item) is not SharedBytes:
                return super().reducer_override(item)
            self.shared.append(item)
            self._descriptor = pickle.PickleBuffer(bytearray())
            return SharedBytes.attach, (self._descriptor, len(item.view))

        def _stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
            return buffer is not self._descriptor

    return ParcelPickler


@functools.cache
def pickler_by_value() -> Any:
    """A pickler that includes code; imported late, as few items need it."""

    class PicklerByValue(_code_pickler()):  # type: ignore[misc]
        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, protocol=5, buffer_callback=dump.on_buffer)
            self._reduce = dump.reduce

        def reducer_override(self, item: Any) -> Any:
            reduced = self._reduce(item)
            if type(item) in _FILES:
                _check_is_known(item)
            return super().reducer_override(item) if reduced is NotImplemented else reduced

    return PicklerByValue


_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def _check_is_known(file: Any) -> None:
    """Refuse an open file: cloudpickle would silently send a copy of its text."""
    # stdout and stderr are pickled by name.
    if file is not sys.stdout and file is not sys.stderr:
        name = getattr(file, "name", None)
        raise TypeError(
            f"the open file {name!r} cannot be sent to another process; send its path, or what"
            " was read from it"
        )


def _cloudpickle() -> Any:
    import cloudpickle  # type: ignore[import-untyped]

    script = sys.modules.get(SPAWNED_MAIN)
    if script is not None and script.__name__ == SPAWNED_MAIN:
        # cloudpickle includes __main__'s code by itself, but not under this name.
        cloudpickle.register_pickle_by_value(script)
    return cloudpickle
