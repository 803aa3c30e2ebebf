"""The payload of a frame of items: tables, pickles, buffers.

This file is about where buffers go when items are sent, and about reading what a
peer says of it without believing more than can be checked.

    counts | segments added, retired | slots | buffers | pickles' sizes
    pickles, one for all items or one for each | buffers that found no slot

In the place of a pickle there may be the form of a bare tensor or array.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncloader.errors import TransportError
from asyncloader.transport.arena import Arena, Block
from asyncloader.transport.frame import Buffer
from asyncloader.transport.pickling import Pickled, Source
from asyncloader.transport.slots import News, SlotRef

IN_BAND = 0xFFFFFFFF

_PACK = 64 << 10  # smaller buffers share a slot: a kept one holds on to this much at most
_ALIGN = 64
_COUNTS = struct.Struct("<6I")


class Placed(NamedTuple):
    """A pickle whose buffers have a place, and how many there are."""

    data: bytes
    buffers: int


class Placement:
    """Where the buffers of one payload go: slots that are filled here, slots that
    were filled by whoever made the tensor, or the payload itself."""

    def __init__(self, arena: Arena, on_full: Callable[[int], bool]) -> None:
        self._arena = arena
        self._on_full = on_full
        self._own_bytes = 0
        self._pack: Block | None = None
        self._pack_place = 0
        self._packed_bytes = 0
        self._born_shared: dict[Block, int] = {}
        self._in_band_bytes = 0
        self.slots: list[SlotRef] = []
        self.buffers: list[tuple[int, int, int]] = []
        self.in_band: list[Buffer] = []

    def add(self, pickled: Pickled) -> Placed:
        """Copy the buffers of a pickle to where they go: they may be changed afterwards.

        If there is no memory for one of them, it is as if none had been added.
        """
        before = len(self.buffers)
        try:
            for source in pickled.sources:
                self._add(source)
        except BaseException:
            # Slots that were taken for them stay with the payload and come back unused.
            del self.buffers[before:]
            raise
        return Placed(pickled.data, len(pickled.sources))

    def _add(self, source: Source) -> None:
        index = len(self.buffers)
        self.buffers.append((IN_BAND, 0, source.nbytes))
        if not self._refer(index, source):
            place = self._place_large if source.nbytes >= _PACK else self._place_small
            place(index, source)

    def finish(self) -> None:
        """Add nothing more."""
        self._close_pack()

    def undo(self) -> None:
        """Take the slots back; nothing was sent."""
        self._arena.release([ref.slot for ref in self.slots])

    def _refer(self, index: int, source: Source) -> bool:
        if not source.address:
            return False
        block = self._arena.born_shared(source.address, source.nbytes)
        if block is None or (block.sent and block not in self._born_shared):
            return False
        if block not in self._born_shared:
            # At once: whoever made it may let go of it before the payload is sent.
            self._lend(block)
            self._born_shared[block] = len(self.slots)
            self.slots.append(block.ref(block.segment.slot_bytes))
        place = self._born_shared[block]
        self.buffers[index] = (place, source.address - block.address, source.nbytes)
        return True

    def _place_large(self, index: int, source: Source) -> None:
        block = self._take(source.nbytes)
        if block is None:
            self._keep_in_band(index, source)
            return
        self.buffers[index] = (len(self.slots), 0, source.nbytes)
        self.slots.append(block.ref(source.nbytes))
        _copy(source, block, 0)

    def _place_small(self, index: int, source: Source) -> None:
        if self._pack is None or self._packed_bytes + source.nbytes > _PACK:
            self._close_pack()
            self._pack = self._take(_PACK)
            if self._pack is None:
                self._keep_in_band(index, source)
                return
            self._pack_place = len(self.slots)
            self.slots.append(self._pack.ref(_PACK))
        self.buffers[index] = (self._pack_place, self._packed_bytes, source.nbytes)
        _copy(source, self._pack, self._packed_bytes)
        self._packed_bytes += _aligned(source.nbytes)

    def _close_pack(self) -> None:
        self._pack, self._packed_bytes = None, 0

    def _take(self, nbytes: int) -> Block | None:
        """Take and lend a block, waiting for the receiver only if it has something to return."""
        while (block := self._arena.take(nbytes)) is None:
            if self._arena.lent_bytes <= self._own_bytes or not self._on_full(nbytes):
                return None
        self._lend(block)
        return block

    def _lend(self, block: Block) -> None:
        self._arena.lend(block)
        self._own_bytes += block.segment.slot_bytes

    def _keep_in_band(self, index: int, source: Source) -> None:
        self.buffers[index] = (IN_BAND, self._in_band_bytes, source.nbytes)
        self._in_band_bytes += source.nbytes
        is_view = isinstance(source.owner, memoryview)
        self.in_band.append(
            bytes(source.owner) if is_view else ctypes.string_at(source.address, source.nbytes)
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def _copy(source: Source, block: Block, offset: int) -> None:
    if source.address:
        # Through ctypes, since that releases the GIL for the time of the copy.
        ctypes.memmove(block.address + offset, source.address, source.nbytes)
    else:
        start = block.offset + offset
        block.segment.memory.view[start : start + source.nbytes] = source.owner


def write_payload(
    news: News, placement: Placement, pickles: Sequence[Placed], items: int
) -> list[Buffer]:
    slots, buffers = placement.slots, placement.buffers
    counts = (len(news.added), len(news.retired), len(slots), len(buffers), len(pickles), items)
    numbers = [*news.added, *news.retired]
    for row in (*slots, *buffers):
        numbers += row
    for data, count in pickles:
        numbers += (len(data), count)
    head = _COUNTS.pack(*counts) + struct.pack(f"<{len(numbers)}Q", *numbers)
    datas = [data for data, _ in pickles]
    if sum(map(len, datas)) < _PACK:
        return [b"".join((head, *datas)), *placement.in_band]
    return [head, *datas, *placement.in_band]


class Layout(NamedTuple):
    """The tables in front of a payload, checked against its length."""

    added: tuple[int, ...]
    retired: tuple[int, ...]
    slots: list[SlotRef]
    buffers: list[tuple[int, int, int]]
    pickles: list[tuple[int, int]]
    items: int
    data_start: int
    in_band_start: int

    @property
    def each(self) -> bool:
        """Whether each item has a pickle of its own."""
        return len(self.pickles) == self.items


def read_layout(payload: bytes | memoryview) -> Layout:
    """Return the tables of a payload; TransportError if they do not fit it."""
    try:
        added, retired, slots, buffers, pickles, items = _COUNTS.unpack_from(payload)
        total = added + retired + 4 * slots + 3 * buffers + 2 * pickles
        data_start = _COUNTS.size + 8 * total
        if data_start > len(payload):
            raise TransportError(f"a payload's tables claim {data_start} of {len(payload)} bytes")
        numbers = struct.unpack_from(f"<{total}Q", payload, _COUNTS.size)
    except struct.error as error:
        raise TransportError(f"a payload of {len(payload)} bytes has no tables") from error
    if total == 2 * pickles:
        return _checked_plain(numbers, items, data_start, len(payload))
    slots_at = added + retired
    buffers_at = slots_at + 4 * slots
    pickles_at = buffers_at + 3 * buffers
    sizes = _rows(numbers[pickles_at:], 2)
    layout = Layout(
        numbers[:added],
        numbers[added:slots_at],
        [SlotRef(*row) for row in _rows(numbers[slots_at:buffers_at], 4)],
        _rows(numbers[buffers_at:pickles_at], 3),
        sizes,
        items,
        data_start,
        data_start + sum([nbytes for nbytes, _ in sizes]),
    )
    _check(layout, len(payload))
    return layout


def _checked_plain(numbers: tuple[int, ...], items: int, data_start: int, size: int) -> Layout:
    """Return the tables of a payload that is nothing but pickles, as most small ones are."""
    end = data_start + sum(numbers[::2])
    layout = Layout((), (), [], [], _rows(numbers, 2), items, data_start, end)
    _check(layout, size)
    return layout


def _rows(numbers: tuple[int, ...], width: int) -> list[Any]:
    return list(zip(*[iter(numbers)] * width, strict=False)) if numbers else []


def _check(layout: Layout, size: int) -> None:
    in_band_start = layout.in_band_start
    if in_band_start > size:
        raise TransportError(f"a payload's pickles claim {in_band_start} of {size} bytes")
    if sum([count for _, count in layout.pickles]) != len(layout.buffers):
        raise TransportError("a payload's pickles claim other buffers than there are")
    if not layout.each and (len(layout.pickles) != 1 or layout.items > size):
        raise TransportError(
            f"a payload has {len(layout.pickles)} pickles for {layout.items} items"
        )
    for place, offset, nbytes in layout.buffers:
        if place == IN_BAND:
            inside = in_band_start + offset + nbytes <= size
        else:
            inside = place < len(layout.slots) and offset + nbytes <= layout.slots[place].nbytes
        if not inside:
            raise TransportError(f"a buffer of {nbytes} bytes at {offset} is outside its memory")
