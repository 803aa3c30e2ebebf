"""Slots: places in shared memory, as both of their ends know them.

This file is about how a slot is named, how large it is, and how either end learns
that nothing in its process refers to a slot any more.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_SMALLEST = 4096


class SlotRef(NamedTuple):
    """What the sender tells the receiver about a slot; checked there before use."""

    slot: int
    segment: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class News:
    """Segments the receiver has to map, in the order of ``fds``, and those to forget."""

    added: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    fds: tuple[int, ...] = ()


NO_NEWS = News()


@functools.lru_cache(maxsize=4096)
def slot_size(nbytes: int) -> int:
    """The bytes a slot for ``nbytes`` takes: at most an eighth more, in whole pages."""
    step = max(_SMALLEST, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step), 1) * step


def wake_nobody() -> None:
    """What to do about a slot that came back when somebody will look anyway."""


class _Owned(weakref.ref[Any]):
    """A reference to a slot's owner that knows which slot that is."""

    __slots__ = ("nbytes", "slot")

    slot: int
    nbytes: int


class Owners:
    """Objects that stand for slots, and the news that some of them are gone.

    An owner is an array over the slot's memory. It is not a memoryview, since
    NumPy keeps only what a memoryview was made from, and the view would die first.
    """

    def __init__(self, wake: Callable[[], None] = wake_nobody) -> None:
        self._alive: dict[int, _Owned] = {}
        self._dead: deque[_Owned] = deque()
        self._types: dict[int, Any] = {}
        self._told = _Told()
        self._on_gone = _on_gone(self._dead, self._told, wake)

    def __len__(self) -> int:
        return len(self._alive)

    def own(self, buffer: Any, offset: int, nbytes: int, slot: int) -> Any:
        """Return the owner of a slot; ``gone`` tells when nothing refers to it."""
        array_type = self._types.get(nbytes)
        if array_type is None:
            array_type = self._types[nbytes] = ctypes.c_char * nbytes
        owner = array_type.from_buffer(buffer, offset)
        owned = _Owned(owner, self._on_gone)
        owned.slot = slot
        owned.nbytes = nbytes
        self._alive[slot] = owned
        return owner

    def gone(self) -> Sequence[tuple[int, int]]:
        """The slots, and their bytes, whose owners have died since the last call."""
        self._told.yes = False
        if not self._dead:
            return ()
        gone = []
        while self._dead:
            owned = self._dead.popleft()
            del self._alive[owned.slot]
            gone.append((owned.slot, owned.nbytes))
        return gone


class _Told:
    yes = False


def _on_gone(
    dead: deque[_Owned], told: _Told, wake: Callable[[], None]
) -> Callable[[_Owned], None]:
    """The callback of all owners. It may run inside the garbage collector, in any thread."""
    pid = os.getpid()

    def on_gone(owned: _Owned) -> None:
        # A forked child loses its copies of the owners too; the slots are still in use here.
        if os.getpid() != pid:
            return
        dead.append(owned)
        # Appending comes first and gone() clears the note first: none is overlooked.
        if not told.yes:
            told.yes = True
            wake()

    return on_gone
