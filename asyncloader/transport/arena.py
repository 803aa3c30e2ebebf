"""Recycled shared memory between a sender and one receiver.

This file is about ``Arena``, the sender's side: it fills slots in shared segments and lends them,
and they come back when nobody uses them any more; and about ``ArenaView``, the receiver's side.

    Arena (sender)                              ArenaView (receiver)
    allocate / take ───▶ slot ──SlotRef, News──▶ lease ──▶ memory the consumer holds
    release ◀─────────────── slot numbers ◀──── take_released ◀── the memory is garbage

A slot is free again when the receiver has returned its lease *and* nothing in the
sender's process refers to its memory. Free slots are reused last in, first out, so
that few pages are touched and those stay in the cache.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.memory import Segment
from asyncloader.waiting import do_nothing

_SEGMENT_BYTES = 16 << 20
_FIRST_SEGMENT_BYTES = 64 << 10
_MOST_NEWS = 16  # each new segment takes a descriptor until its frame is sent


class Block:
    """The sender's record of one slot."""

    __slots__ = ("address", "held", "lent", "number", "offset", "segment", "sent")

    def __init__(self, number: int, segment: _SharedSegment, offset: int) -> None:
        self.number = number
        self.segment = segment
        self.offset = offset
        self.address = segment.memory.address + offset
        self.held = False  # something in this process refers to its memory
        self.lent = False  # the receiver has it
        self.sent = False  # the receiver has, or had it since it was allocated

    def ref(self, nbytes: int) -> SlotRef:
        return SlotRef(self.number, self.segment.number, self.offset, nbytes)


class _SharedSegment:
    """A segment cut into slots of one size."""

    def __init__(self, number: int, slot_bytes: int, count: int, first_slot: int) -> None:
        self.number = number
        self.slot_bytes = slot_bytes
        self.memory = Segment.create(slot_bytes * count)
        self.blocks = [Block(first_slot + i, self, i * slot_bytes) for i in range(count)]
        self.used = 0


class Arena:
    """The sender's side: slots in segments that grow up to ``budget`` bytes.

    A slot that is larger than the budget is granted only when nothing else is in use, and
    never if the budget is 0. ``budget`` may be changed at any time; existing slots stay. An
    arena belongs to the process that made it, and to one thread at a time; references to
    slots may die in any thread.
    """

    def __init__(self, budget: int, *, segment_bytes: int = _SEGMENT_BYTES) -> None:
        if budget < 0:
            raise ValueError(f"budget must be at least 0 bytes, got {budget}")
        self.budget = budget
        self.mapped_bytes = 0
        self.lent_bytes = 0
        self._used_bytes = 0
        self._segment_bytes = segment_bytes
        self._segments: dict[int, _SharedSegment] = {}
        self._by_address: list[tuple[int, _SharedSegment]] = []
        self._blocks: dict[int, Block] = {}
        self._free: defaultdict[int, list[Block]] = defaultdict(list)
        self._owners = SlotOwners()
        self._added: list[int] = []
        self._retired: list[int] = []
        self._next_slot = 0
        self._next_segment = 0

    @property
    def room(self) -> int:
        """How many bytes of the budget are free, for slots of any size."""
        return self.budget - self._used_bytes

    def allocate(self, nbytes: int) -> memoryview | None:
        """Return a slot to be filled here and sent by reference, or None if none is free.

        It belongs to the caller while this memory, or anything made over it, is alive.
        """
        block = self.take(nbytes)
        if block is None:
            return None
        block.held = True
        memory = block.segment.memory.buffer
        owner = self._owners.own(memory, block.offset, block.segment.slot_bytes, block.number)
        return memoryview(owner).cast("B")[:nbytes]

    def take(self, nbytes: int) -> Block | None:
        """Return a free block, or None; the caller fills and lends it at once."""
        if self._owners.told.yes:
            self._settle()
        size = slot_size(nbytes)
        free = self._free[size]
        if not free and not self._grow(size):
            return None
        block = free.pop()
        block.segment.used += 1
        self._used_bytes += size
        block.sent = False
        return block

    def lend(self, block: Block) -> None:
        """Note that this block is sent to the receiver; it stays lent until released."""
        block.lent = block.sent = True
        self.lent_bytes += block.segment.slot_bytes

    def born_shared(self, address: int, nbytes: int) -> Block | None:
        """The block allocated here, and still referred to, that holds this memory, if any."""
        if not self._owners:
            return None
        index = bisect_right(self._by_address, address, key=lambda entry: entry[0]) - 1
        if index < 0:
            return None
        start, segment = self._by_address[index]
        place, within = divmod(address - start, segment.slot_bytes)
        if place >= len(segment.blocks) or within + nbytes > segment.slot_bytes:
            return None
        block = segment.blocks[place]
        return block if block.held else None

    def release(self, slots: Iterable[int]) -> None:
        """Take back slots that the receiver returned."""
        for number in slots:
            block = self._blocks.get(number)
            if block is None or not block.lent:
                raise TransportError(f"slot {number} was returned, but it is not lent")
            block.lent = False
            self.lent_bytes -= block.segment.slot_bytes
            self._free_if_unused(block)

    def memory_of(self, ref: SlotRef) -> memoryview:
        """Return the bytes of a slot that is lent."""
        return self._segments[ref.segment].memory.view[ref.offset : ref.offset + ref.nbytes]

    def take_news(self) -> News:
        """Return what the receiver must know before it can use slots that are lent from now on.

        The caller gives the descriptors away with the frame that carries the news.
        """
        if not self._added and not self._retired:
            return NO_NEWS
        added = [self._segments[number] for number in self._added]
        news = News(
            tuple(self._added),
            tuple(self._retired),
            tuple(segment.memory.take_fd() for segment in added),
        )
        self._added.clear()
        self._retired.clear()
        return news

    def close(self) -> None:
        """Give up all segments; memory that is still referred to stays valid."""
        for segment in self._segments.values():
            segment.memory.close()
        self._segments.clear()
        self._by_address.clear()
        self._blocks.clear()
        self._free.clear()
        self.mapped_bytes = 0

    def _settle(self) -> None:
        for number, _ in self._owners.gone():
            block = self._blocks.get(number)
            if block is not None:
                block.held = False
                self._free_if_unused(block)

    def _free_if_unused(self, block: Block) -> None:
        if not block.held and not block.lent:
            block.segment.used -= 1
            self._used_bytes -= block.segment.slot_bytes
            self._free[block.segment.slot_bytes].append(block)

    def _grow(self, size: int) -> bool:
        """Add a segment of slots of ``size`` bytes, if the budget and the system allow."""
        count = self._fitting(size)
        if not count or len(self._added) >= _MOST_NEWS:
            return False
        try:
            segment = _SharedSegment(self._next_segment, size, count, self._next_slot)
        except ResourceExhausted:
            if self.lent_bytes:
                return False  # wait for slots that the receiver returns
            raise
        except OSError:
            return False  # no descriptor is left; the item travels in the frame itself
        self._add(segment)
        return True

    def _fitting(self, size: int) -> int:
        """How many slots of this size to add: twice as many each time, within the budget."""
        held = sum(len(s.blocks) for s in self._segments.values() if s.slot_bytes == size)
        wanted = min(max(held, _FIRST_SEGMENT_BYTES // size), self._segment_bytes // size)
        count = max(1, wanted)
        if self.mapped_bytes + count * size > self.budget:
            self._retire_unused(count * size)
        affordable = (self.budget - self.mapped_bytes) // size
        if affordable < 1 and self.budget and not self._segments:
            return 1  # larger than the budget: alone, or never
        return max(0, min(count, affordable))

    def _add(self, segment: _SharedSegment) -> None:
        self._next_segment += 1
        self._next_slot += len(segment.blocks)
        self.mapped_bytes += segment.memory.size
        self._segments[segment.number] = segment
        self._by_address.append((segment.memory.address, segment))
        self._by_address.sort(key=lambda entry: entry[0])
        self._blocks.update((block.number, block) for block in segment.blocks)
        self._free[segment.slot_bytes].extend(reversed(segment.blocks))
        self._added.append(segment.number)

    def _retire_unused(self, need: int) -> None:
        """Give up segments none of whose slots is in use, until ``need`` bytes fit."""
        for segment in list(self._segments.values()):
            if self.mapped_bytes + need <= self.budget:
                return
            if not segment.used:
                self._retire(segment)

    def _retire(self, segment: _SharedSegment) -> None:
        gone = set(segment.blocks)
        free = self._free[segment.slot_bytes]
        free[:] = [block for block in free if block not in gone]
        for block in segment.blocks:
            del self._blocks[block.number]
        del self._segments[segment.number]
        self._by_address.remove((segment.memory.address, segment))
        self.mapped_bytes -= segment.memory.size
        segment.memory.close()
        if segment.number in self._added:
            self._added.remove(segment.number)
        else:
            self._retired.append(segment.number)


class SlotView(Protocol):
    """The little that the receiver of slots asks, wherever their memory is."""

    def update(self, news: News) -> None:
        """Learn of segments; the descriptors in ``news`` are closed here."""
        ...

    def lease(self, ref: SlotRef) -> memoryview:
        """Return the slot's bytes, writable."""
        ...

    def give_back(self, ref: SlotRef) -> None:
        """Return a slot that nobody will read."""
        ...

    def take_released(self) -> list[int]:
        """Return the slots that came back since the last call, for the sender."""
        ...

    def holds_much(self) -> bool:
        """Whether so much is leased that what comes may soon have to be copied."""
        ...

    def would_copy(self, nbytes: int) -> bool:
        """Whether so many bytes would be copied if they were leased now."""
        ...

    def close(self) -> None:
        """Forget what nobody has leased."""
        ...


#: The share of ``copy_beyond`` that is much: there is room for as much in each of the few places
#: where items may be on their way to the consumer.
_MUCH = 4


class ArenaView:
    """The receiver's side: leases memory to the consumer, and reports the slots that came back.

    ``wake`` is called, possibly inside the garbage collector and in any thread, at
    least once after slots have come back since ``take_released``; it must neither
    block nor call the view. When leases hold more than ``copy_beyond`` bytes, what
    arrives is copied to private memory and its slot returned at once, so that a
    consumer that keeps everything cannot stop the sender.
    """

    def __init__(
        self, wake: Callable[[], None] = do_nothing, *, copy_beyond: int = sys.maxsize
    ) -> None:
        self.copy_beyond = copy_beyond
        self.leased_bytes = 0
        self._wake = wake
        self._segments: dict[int, Segment] = {}
        self._leased: set[int] = set()
        self._owners = SlotOwners(self._wake)
        self._released: list[int] = []
        self._lock = threading.Lock()

    def update(self, news: News) -> None:
        """Map the announced segments and forget the retired ones.

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
            if self._owners.told.yes:
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
        """Return a slot that nobody will read."""
        with self._lock:
            self._released.append(ref.slot)
        self._wake()

    def take_released(self) -> list[int]:
        """Return the slots that came back since the last call, for the sender."""
        with self._lock:
            if self._owners.told.yes:
                self._settle()
            released, self._released = self._released, []
        return released

    def holds_much(self) -> bool:
        """Whether so much is leased that what comes may soon have to be copied."""
        return _MUCH * self.leased_bytes > self.copy_beyond

    def would_copy(self, nbytes: int) -> bool:
        """Whether so many bytes would be copied if they were leased now."""
        return self.leased_bytes + nbytes > self.copy_beyond

    def close(self) -> None:
        """Forget the segments; memory that is leased stays valid."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    def _copy(self, segment: Segment, ref: SlotRef) -> memoryview:
        private = unwritten(ref.nbytes)
        into = ctypes.c_char.from_buffer(private)
        # The view keeps the mapping alive, which another thread may close meanwhile.
        shared = ctypes.c_char.from_buffer(segment.buffer, ref.offset)
        # ctypes releases the GIL during the copy.
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


def unwritten(nbytes: int) -> bytearray:
    """Return uninitialised memory: bytearray() would fill it, which doubles the time."""
    made: bytearray = _new_bytearray(None, nbytes)
    return made


_new_bytearray = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


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


class _OwnerRef(weakref.ref[Any]):
    """A reference to a slot's owner that knows which slot that is."""

    __slots__ = ("nbytes", "slot")

    slot: int
    nbytes: int


class SlotOwners:
    """Objects that represent slots, and reports of those that were collected.

    An owner is an array over the slot's memory. It is not a memoryview, since
    NumPy keeps only what a memoryview was made from, and the view would die first.
    """

    def __init__(self, wake: Callable[[], None] = do_nothing) -> None:
        self._alive: dict[int, _OwnerRef] = {}
        self._dead: deque[_OwnerRef] = deque()
        self._types: dict[int, Any] = {}
        #: Whether an owner has died since the last call of ``gone``.
        self.told = _Told()
        self._on_gone = _on_gone(self._dead, self.told, wake)

    def __len__(self) -> int:
        return len(self._alive)

    def own(self, buffer: Any, offset: int, nbytes: int, slot: int) -> Any:
        """Return the owner of a slot; ``gone`` tells when nothing refers to it."""
        array_type = self._types.get(nbytes)
        if array_type is None:
            array_type = self._types[nbytes] = ctypes.c_char * nbytes
        owner = array_type.from_buffer(buffer, offset)
        owned = _OwnerRef(owner, self._on_gone)
        owned.slot = slot
        owned.nbytes = nbytes
        self._alive[slot] = owned
        return owner

    def gone(self) -> Sequence[tuple[int, int]]:
        """The slots, and their bytes, whose owners have died since the last call."""
        self.told.yes = False
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
    dead: deque[_OwnerRef], told: _Told, wake: Callable[[], None]
) -> Callable[[_OwnerRef], None]:
    """The callback of all owners. It may run inside the garbage collector, in any thread."""
    pid = os.getpid()

    def on_gone(owned: _OwnerRef) -> None:
        # A forked child drops its copies too, but the slots are still in use in the parent.
        if os.getpid() != pid:
            return
        dead.append(owned)
        # Append before the note, while gone() clears the note first: so no slot is missed.
        if not told.yes:
            told.yes = True
            wake()

    return on_gone
