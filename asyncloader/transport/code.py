"""Code as bytes: graphs and functions for a process that does not have them.

This file is about ``dumps_code`` and ``pack_code``, which take along what the other
process cannot import. It is the only door to cloudpickle.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from asyncloader.main_script import SPAWNED_MAIN
from asyncloader.memory import SharedBytes
from asyncloader.transport.pickling import LARGE, Dump, load
from asyncloader.transport.wire import close_all


def dumps_code(code: Any) -> bytes:
    """Pickle a graph or a function, with the code that the other process may not have."""
    dump = Dump()
    _cloudpickle().Pickler(dump, protocol=5).dump(code)
    return dump.data


class Parcel(NamedTuple):
    """A pickle of code, and the shared memory that goes beside it.

    Where ``data`` is empty, the pickle is the first of what is shared.
    """

    data: bytes
    shared: tuple[SharedBytes, ...]

    def fds(self) -> list[int]:
        """Return descriptors to be sent along, anew for every receiver."""
        return [each.duplicate_fd() for each in self.shared]


def pack_code(code: Any) -> Parcel:
    """Pickle a graph for a process of ours, which is to map what is in shared memory.

    A large pickle is in shared memory itself: it is written once, here, and not copied
    once more on a loop for every process that it is sent to.
    """
    dump = Dump()
    pickler = _parcel_pickler()(dump)
    pickler.dump(code)
    if sum(map(len, dump.chunks)) < LARGE:
        return Parcel(dump.data, tuple(pickler.shared))
    return Parcel(b"", (SharedBytes.of(dump.chunks), *pickler.shared))


def loads_code(data: bytes | memoryview, fds: Sequence[int] = ()) -> Any:
    """Return what ``dumps_code`` or ``pack_code`` was given; ``fds`` came with a parcel."""
    left = deque(fds)
    try:
        pickled = data or _mapped(left.popleft())
        return load(pickled, iter(left.popleft, None))
    finally:
        close_all(left)


def _mapped(fd: int) -> memoryview:
    return SharedBytes.attach(fd, os.fstat(fd).st_size).view


@functools.cache
def _parcel_pickler() -> Any:
    class ParcelPickler(_cloudpickle().Pickler):  # type: ignore[misc]
        """Leaves shared memory out of the pickle: on arrival its descriptor takes its place."""

        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, protocol=5, buffer_callback=self._stays_inside)
            self.shared: list[SharedBytes] = []
            self._descriptor: Any = None

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
    """A pickler that takes code along; imported late, as few items ever need it."""

    class PicklerByValue(_cloudpickle().Pickler):  # type: ignore[misc]
        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, protocol=5, buffer_callback=dump.on_buffer)
            self._reduce = dump.reduce

        def reducer_override(self, item: Any) -> Any:
            reduced = self._reduce(item)
            return super().reducer_override(item) if reduced is NotImplemented else reduced

    return PicklerByValue


def _cloudpickle() -> Any:
    import cloudpickle  # type: ignore[import-untyped]

    script = sys.modules.get(SPAWNED_MAIN)
    if script is not None and script.__name__ == SPAWNED_MAIN:
        # It takes along the code of __main__ by itself, but not under this name.
        cloudpickle.register_pickle_by_value(script)
    return cloudpickle
