"""Recycled shared memory, as its sender sees it.

This file is about ``Arena``: slots in shared segments that the sender fills and
lends to one receiver, and that come back when nobody uses them any more.

    Arena (sender)                              ArenaView (receiver)
    allocate / take ───▶ slot ──SlotRef, News──▶ lease ──▶ memory the consumer holds
    release ◀─────────────── slot numbers ◀──── take_released ◀── the memory is garbage

A slot is free again when the receiver has returned its lease *and* nothing in the
sender's process refers to its memory. Free slots are reused last in, first out, so
that few pages are touched and those stay in the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.memory import Segment
from asyncloader.transport.slots import NO_NEWS, News, Owners, SlotRef, slot_size

_SEGMENT_BYTES = 16 << 20
_FIRST_SEGMENT_BYTES = 64 << 10
_MOST_NEWS = 16  # each new segment takes a descriptor until its frame is sent


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of an arena that the holder may fill before it is sent.

    It stays theirs for as long as the view, or anything made over it, is alive.
    """

    number: int
    view: memoryview


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

    A slot that is larger than all of the budget is granted when nothing else is in
    use, unless the budget is 0. ``budget`` may be changed at any time; what is there
    is not taken away. An arena belongs to the process that made it, and to one
    thread at a time; references to slots may die in any.
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
        self._owners = Owners()
        self._added: list[int] = []
        self._retired: list[int] = []
        self._next_slot = 0
        self._next_segment = 0

    @property
    def room(self) -> int:
        """How many bytes of the budget are free, for slots of any size."""
        return self.budget - self._used_bytes

    def allocate(self, nbytes: int) -> Slot | None:
        """Return a slot to be filled here and sent by reference, or None if none is free."""
        block = self.take(nbytes)
        if block is None:
            return None
        block.held = True
        memory = block.segment.memory.buffer
        owner = self._owners.own(memory, block.offset, block.segment.slot_bytes, block.number)
        return Slot(block.number, memoryview(owner).cast("B")[:nbytes])

    def take(self, nbytes: int) -> Block | None:
        """Return a free block for someone who fills and lends it at once, or None."""
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
        """Note that the receiver is told of this block; it stays lent until released."""
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

    def take_news(self) -> News:
        """What the receiver has to know before it can use the slots lent from now on.

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
                return False  # what the receiver returns will do
            raise
        except OSError:
            return False  # there is no descriptor left, and what is in a frame needs none
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
