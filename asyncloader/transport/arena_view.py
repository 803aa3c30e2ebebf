"""Recycled shared memory, as its receiver sees it.

This file is about ``ArenaView``: it maps the segments a sender announces, leases
slots to the consumer, and knows which have come back.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

from asyncloader.errors import TransportError
from asyncloader.memory import Segment
from asyncloader.transport.slots import News, Owners, SlotRef, slot_size, wake_nobody


class ArenaView:
    """The receiver's side: leases memory to the consumer, and tells what came back.

    ``wake`` is called, possibly inside the garbage collector and in any thread, at
    least once after slots have come back since ``take_released``; it must neither
    block nor call the view. When leases hold more than ``copy_beyond`` bytes, what
    arrives is copied to private memory and its slot returned at once, so that a
    consumer that keeps everything cannot stop the sender.
    """

    def __init__(
        self, wake: Callable[[], None] = wake_nobody, *, copy_beyond: int = sys.maxsize
    ) -> None:
        self.copy_beyond = copy_beyond
        self.leased_bytes = 0
        self._wake = wake
        self._segments: dict[int, Segment] = {}
        self._leased: set[int] = set()
        self._owners = Owners(self._wake)
        self._released: list[int] = []
        self._lock = threading.Lock()

    def update(self, news: News) -> None:
        """Map the segments that were announced and forget those that were retired.

        The descriptors in ``news`` are closed here, whatever happens.
        """
        fds = list(news.fds)
        try:
            if len(fds) != len(news.added):
                raise TransportError(
                    f"{len(news.added)} segments were announced with {len(fds)} descriptors"
                )
            for number in news.added:
                if number in self._segments:
                    raise TransportError(f"segment {number} was announced twice")
                self._segments[number] = Segment.attach(fds.pop(0))
        finally:
            for fd in fds:
                os.close(fd)
        for number in news.retired:
            self._segment(number).close()
            del self._segments[number]

    def lease(self, ref: SlotRef) -> memoryview:
        """Return the slot's bytes, writable; they are leased until nothing refers to them."""
        size = slot_size(ref.nbytes)
        segment = self._segment(ref.segment)
        if ref.offset < 0 or ref.nbytes < 1 or ref.offset + size > segment.size:
            raise TransportError(f"{ref} reaches outside its segment of {segment.size} bytes")
        with self._lock:
            self._settle()
            if ref.slot in self._leased:
                raise TransportError(f"slot {ref.slot} was lent twice")
            if self.leased_bytes + size <= self.copy_beyond:
                self._leased.add(ref.slot)
                self.leased_bytes += size
                owner = self._owners.own(segment.buffer, ref.offset, size, ref.slot)
                return memoryview(owner).cast("B")[: ref.nbytes]
        return self._copy(segment, ref)

    def give_back(self, ref: SlotRef) -> None:
        """Return a slot that nobody will look at."""
        with self._lock:
            self._released.append(ref.slot)
        self._wake()

    def take_released(self) -> list[int]:
        """The slots that came back since the last call; the sender wants to know them."""
        with self._lock:
            self._settle()
            released, self._released = self._released, []
        return released

    def close(self) -> None:
        """Forget the segments; memory that is leased stays valid."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    def _copy(self, segment: Segment, ref: SlotRef) -> memoryview:
        private = _unwritten(ref.nbytes)
        into = ctypes.c_char.from_buffer(private)
        # It keeps the mapping, which another thread may close meanwhile.
        shared = ctypes.c_char.from_buffer(segment.buffer, ref.offset)
        # Through ctypes, since that releases the GIL for the time of the copy.
        ctypes.memmove(ctypes.addressof(into), ctypes.addressof(shared), ref.nbytes)
        self.give_back(ref)
        return memoryview(private)

    def _settle(self) -> None:
        for slot, size in self._owners.gone():
            self._leased.discard(slot)
            self.leased_bytes -= size
            self._released.append(slot)

    def _segment(self, number: int) -> Segment:
        try:
            return self._segments[number]
        except KeyError:
            raise TransportError(f"segment {number} was never announced") from None


def _unwritten(nbytes: int) -> bytearray:
    """Return memory that nobody has written to: bytearray() would, which takes as long again."""
    made: bytearray = _new_bytearray(None, nbytes)
    return made


_new_bytearray = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
