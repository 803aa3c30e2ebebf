"""Items as the payload of a frame, and back.

This file is about ``Encoder`` and ``Packing``, which turn items into payloads and put large
buffers into slots of an arena; and about ``Decoder``, which checks a payload when it arrives and
later makes its items, or gives their slots back. A payload is

    counts | segments added, retired | slots | buffers | pickles' sizes
    pickles, one for all items or one for each | buffers that found no slot

In place of a pickle there may be the form of a raw tensor or array. Among the counts is whether
decoding needs torch, which may not be imported on the other side.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import countOf
from typing import Any, NamedTuple, Protocol

from asyncloader.errors import TransportError
from asyncloader.safe_error_text import text_of, traceback_of
from asyncloader.transport.arena import Arena, ArenaView, Block, News, SlotRef, SlotView
from asyncloader.transport.channel import close_all
from asyncloader.transport.code import pickler_by_value
from asyncloader.transport.frame import Buffer
from asyncloader.transport.pickling import LARGE, Pickled, Pickler, Source, copies, load
from asyncloader.transport.raw_arrays import has_torch, speaks_of_torch


class Encoded(NamedTuple):
    """A payload in parts, and what is given away with its frame: descriptors, say."""

    parts: list[Buffer]
    fds: tuple[Any, ...] = ()


def never_wait(nbytes: int) -> bool:
    """Do not wait for a slot to come back."""
    return False


class Encoder:
    """Turns items into payloads, in the order in which they will be sent.

    ``on_full`` is called when the arena has no slot left although the receiver has
    some. It waits for a release and returns True to try again, or returns False to
    send the buffer in the frame itself. With ``main_by_value`` items may be of classes
    of the main script, which the receiver cannot import.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        on_full: Callable[[int], bool] = never_wait,
        main_by_value: bool = False,
    ) -> None:
        self._arena = arena
        self._on_full = on_full
        self.pickler = Pickler(pickler_by_value, main_by_value=main_by_value)

    def packing(self, pipe: Any = None) -> Packing:
        """Return a payload to be made item by item, of a pipe's items."""
        return Packing(self)

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Return the payload for these items, or raise what pickling one of them raised."""
        packing = self.packing()
        try:
            for item in items:
                if not packing.add_plain(item):
                    packing.add_other(item)
            return packing.finish()[1]
        except BaseException:
            packing.drop()
            raise

    def placement(self) -> Placement:
        """Return the places for the buffers of one payload, none taken yet."""
        return Placement(self._arena, self._on_full)

    def payload(self, placement: Placement, pickles: Sequence[Placed], count: int) -> Encoded:
        """Put a payload together; it must be sent next."""
        news = self._arena.take_news()
        slots, buffers = placement.slots, placement.buffers
        numbers = [*news.added, *news.retired]
        for row in (*slots, *buffers):
            numbers += row
        for data, its_buffers in pickles:
            numbers += (len(data), its_buffers)
        datas = [data for data, _ in pickles]
        # Items that share a pickle are plain.
        needs_torch = len(datas) == count and "torch" in sys.modules and speaks_of_torch(datas)
        counts = (len(news.added), len(news.retired), len(slots), len(buffers), len(datas), count)
        head = struct.pack(f"<7I{len(numbers)}Q", *counts, needs_torch, *numbers)
        if sum(map(len, datas)) < _PACK:
            return Encoded([b"".join((head, *datas)), *placement.in_band], news.fds)
        return Encoded([head, *datas, *placement.in_band], news.fds)


class Packing:
    """A payload that is made item by item.

    An item is pickled, and its buffers are copied, when it is added, so that it may be
    changed afterwards. Plain items, which are small and consist of numbers and strings, are
    pickled together at the end; mutable ones are copied first. One thread adds; another may
    call ``finish``, but not while ``add_other`` runs.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._placement = encoder.placement()
        #: Items that wait to be pickled together; there are none when there are ``pickles``.
        #: NUMBERS may be appended directly while there are no pickles: appending is
        #: atomic, so another thread may call ``finish`` at the same time.
        self.plain: list[Any] = []
        self.pickles: list[Placed] = []
        self.nbytes = 0

    @property
    def count(self) -> int:
        """How many items were added."""
        return len(self.pickles) + len(self.plain)

    def add_plain(self, item: Any) -> bool:
        """Add an item if it is plain and comes before all that are not; return whether it was."""
        if self.pickles or not (nbytes := plain_size(item)):
            return False
        self.plain.append(item.copy() if type(item) in _CHANGING else item)
        self.nbytes += nbytes
        return True

    def add_other(self, item: Any) -> None:
        """Add an item that is not plain; one that cannot be pickled raises, and the others stay."""
        self._pickle_plain()
        self._pickle(item)

    def check(self) -> None:
        """Do nothing: what made the items is shared with nobody."""

    def finish(self) -> tuple[int, Encoded]:
        """Return the number of items and the payload, and begin the next payload."""
        pickles, self.pickles = self.pickles, []
        count = len(pickles)
        if not count:
            count = len(self.plain)
            # Items that are appended meanwhile stay for the next payload.
            items = self.plain[:count]
            del self.plain[:count]
            pickles = [(pickle.dumps(items[0] if count == 1 else items, protocol=5), 0)]
        placement = self._placement
        if placement.is_used():
            self._placement = self._encoder.placement()
        self.nbytes = 0
        return count, self._encoder.payload(placement, pickles, count)

    def drop(self) -> None:
        """Forget what was added and take its slots back."""
        if self._placement.is_used():
            self._placement.undo()
            self._placement = self._encoder.placement()
        self.plain.clear()
        self.pickles = []
        self.nbytes = 0

    def _pickle_plain(self) -> None:
        for item in self.plain:
            self._pickle(item)
        self.plain.clear()

    def _pickle(self, item: Any) -> None:
        pickled = self._encoder.pickler.dump(item)
        self.pickles.append(self._placement.add(pickled))
        self.nbytes += len(pickled.data) + sum([source.nbytes for source in pickled.sources])


NUMBERS = frozenset({int, float, bool, type(None)})
_PLAIN = NUMBERS | {str}
_CHANGING = frozenset({list, dict})
_NUMBER_BYTES = 9
#: Larger items are pickled alone, in steps between which other threads get the GIL.
_PLAIN_VALUES = 1_000
_PLAIN_BYTES = 1 << 14
#: So many values are often of one type.
_SEVERAL = 8


def plain_size(item: Any) -> int:
    """The bytes of a plain item, roughly; 0 for any other item."""
    kind = type(item)
    if kind is list or kind is tuple:
        return _size_of(item)
    if kind is dict:
        return _size_of((*item, *item.values()))
    return _size_of((item,)) if kind in _PLAIN else 0


def _size_of(values: list[Any] | tuple[Any, ...]) -> int:
    count = len(values)
    if count > _PLAIN_VALUES:
        return 0
    # To count the type of the first takes half as long as to gather the types.
    if count > _SEVERAL and countOf(map(type, values), kind := type(values[0])) == count:
        kinds = {kind}
    else:
        kinds = set(map(type, values))
    if kinds <= NUMBERS:
        return _NUMBER_BYTES * (1 + count)
    nbytes = sum(map(sys.getsizeof, values)) if kinds <= _PLAIN else 0
    return nbytes if nbytes <= _PLAIN_BYTES else 0


class Admitted(Protocol):
    """A payload that has arrived, as those see it who wait for its items."""

    @property
    def items(self) -> int:
        """How many items there are."""
        ...

    @property
    def needs_torch(self) -> bool:
        """Whether torch is imported to decode this."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether decoding this takes so long that a thread should do it."""
        ...

    @property
    def is_large(self) -> bool:
        """Whether a thread should do it if the memory is copied."""
        ...


class Opener(Protocol):
    """The little that a receiver asks of ``Decoder``, however items travel."""

    #: How many items could not be unpickled so far.
    refused: int

    def admit(self, payload: bytes | memoryview, things: Sequence[Any]) -> Admitted:
        """Register a payload that arrived, and what came beside it."""
        ...

    def items(self, admitted: Any) -> list[Any]:
        """Return the items of an admitted payload."""
        ...

    def give_back(self, admitted: Any) -> None:
        """Return what an admitted payload holds without looking at its items."""
        ...

    def has_unopened(self) -> bool:
        """Whether a payload that was admitted is neither decoded nor given back."""
        ...

    def would_copy(self, admitted: Any) -> bool:
        """Whether decoding a payload now would copy memory that is in slots."""
        ...

    def holds_much(self) -> bool:
        """Whether the items hold so much of the sender's memory that others may be copied."""
        ...

    def take_released(self) -> list[int]:
        """Return the slots that came back since the last call, for the sender."""
        ...

    def close(self) -> None:
        """Forget the memory that holds no item."""
        ...


class Decoder:
    """Turns payloads back into items, in the order in which they were encoded.

    Every payload that arrived must be decoded or given back: the slots in it are
    lent until then.
    """

    def __init__(self, view: SlotView | None = None) -> None:
        self._view = view or ArenaView()
        #: How many items could not be unpickled so far.
        self.refused = 0
        # One element for each admitted payload that was not decoded or given back. A list, as
        # its operations are atomic: threads decode too, and a counter could lose updates.
        self._unopened: list[None] = []

    def decode(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> list[Any]:
        """Return the items, with a ``TransportError`` in place of one that cannot be unpickled.

        Raises ``TransportError`` if the payload itself is not well-formed. ``fds``
        came with the payload's frame and are closed here.
        """
        return self.items(self.admit(payload, fds))

    def admit(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> Payload:
        """Register a payload that arrived; it is decoded or given back later.

        Payloads are admitted in the order in which they arrive, and then decoded in
        any. Raises ``TransportError`` if the payload is not well-formed.
        """
        try:
            read = read_payload(payload)
        except TransportError:
            close_all(fds)
            raise
        if read.added or read.retired or fds:
            self._view.update(News(read.added, read.retired, tuple(fds)))
        self._unopened.append(None)
        return read

    def has_unopened(self) -> bool:
        """Whether a payload that was admitted is neither decoded nor given back."""
        return bool(self._unopened)

    def items(self, admitted: Payload) -> list[Any]:
        """Return the items of an admitted payload, as ``decode`` does."""
        try:
            memory = admitted.memory
            has_buffers = admitted.slots or admitted.buffers
            buffers = self._buffers(admitted) if has_buffers else iter(())
            found: list[Any] = []
            start = admitted.data_start
            for nbytes, count in admitted.pickles:
                mine = list(islice(buffers, count)) if count else []
                try:
                    found.append(load(memory[start : start + nbytes], mine))
                except KeyboardInterrupt:
                    raise  # the user interrupts
                except BaseException as error:  # noqa: BLE001 - user code ran: __setstate__ …
                    self.refused += 1
                    found.append(_refused(error))
                start += nbytes
        finally:
            self._unopened.pop()
        return found if len(found) == admitted.items else _spread(found[0], admitted.items)

    def would_copy(self, admitted: Payload) -> bool:
        """Whether decoding a payload now would copy memory that is in slots."""
        return self._view.would_copy(sum([ref.nbytes for ref in admitted.slots]))

    def give_back(self, admitted: Payload) -> None:
        """Return the slots of an admitted payload without looking at its items."""
        self._unopened.pop()
        for ref in admitted.slots:
            self._view.give_back(ref)

    def holds_much(self) -> bool:
        """Whether the items hold so much of the sender's memory that others may be copied."""
        return self._view.holds_much()

    def take_released(self) -> list[int]:
        """Return the slots that came back since the last call, for the sender."""
        return self._view.take_released()

    def close(self) -> None:
        """Forget the memory that holds no item."""
        self._view.close()

    def _buffers(self, admitted: Payload) -> Iterator[Any]:
        """Return the memory of each buffer."""
        leases = [self._view.lease(ref) for ref in admitted.slots]
        return iter([_buffer(admitted, leases, entry) for entry in admitted.buffers])


def _buffer(payload: Payload, leases: list[memoryview], entry: tuple[int, int, int]) -> Any:
    place, offset, nbytes = entry
    if place != IN_BAND:
        return leases[place][offset : offset + nbytes]
    start = payload.in_band_start + offset
    return bytearray(payload.memory[start : start + nbytes])


def _refused(error: BaseException) -> TransportError:
    refused = TransportError(
        f"an item could not be unpickled: {type(error).__name__}: {text_of(error)}"
    )
    refused.add_note(traceback_of(error))
    # Drop the traceback: its frames would keep the payload's slots leased.
    refused.__cause__ = _without_frames(error)
    return refused


def _without_frames(error: BaseException) -> BaseException:
    chained: BaseException | None = error
    while chained is not None and chained.__traceback__ is not None:
        chained.with_traceback(None)
        cause = chained.__cause__
        chained = chained.__context__ if cause is None else cause
    return error


def _spread(found: Any, count: int) -> list[Any]:
    """The items of a pickle of all of them; if it failed, the failure for each."""
    if isinstance(found, TransportError):
        return [found] * count
    if not isinstance(found, list) or len(found) != count:
        raise TransportError(f"a pickle of {count} items held something else")
    return found


IN_BAND = 0xFFFFFFFF

#: To copy so much takes longer than to ask a thread.
_LONG_COPY = 4 << 20
_PACK = 64 << 10  # smaller buffers share a slot: a kept one holds on to this much at most
_ALIGN = 64
_COUNTS = struct.Struct("<7I")


#: A pickle whose buffers have a place, and how many there are.
Placed = tuple[bytes, int]


class Placement:
    """Where the buffers of one payload go: slots that are filled here, slots that
    were filled when the tensor was made, or the payload itself."""

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
        """Copy the buffers of a pickle to their places; they may be changed afterwards.

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
        return pickled.data, len(pickled.sources)

    def _add(self, source: Source) -> None:
        index = len(self.buffers)
        self.buffers.append((IN_BAND, 0, source.nbytes))
        if not self._refer(index, source):
            place = self._place_large if source.nbytes >= _PACK else self._place_small
            place(index, source)

    def is_used(self) -> bool:
        """Whether a buffer has a place; or a slot was taken for one, and then an error came."""
        return bool(self.slots or self.buffers)

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
            # At once, as the tensor's owner may drop it before the payload is sent.
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
            self._packed_bytes = 0
            self._pack = self._take(_PACK)
            if self._pack is None:
                self._keep_in_band(index, source)
                return
            self._pack_place = len(self.slots)
            self.slots.append(self._pack.ref(_PACK))
        self.buffers[index] = (self._pack_place, self._packed_bytes, source.nbytes)
        _copy(source, self._pack, self._packed_bytes)
        self._packed_bytes += _aligned(source.nbytes)

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
        # ctypes releases the GIL during the copy.
        ctypes.memmove(block.address + offset, source.address, source.nbytes)
    else:
        start = block.offset + offset
        block.segment.memory.view[start : start + source.nbytes] = source.owner


class Payload(NamedTuple):
    """A payload that was found well-formed: what its tables say, and all of its bytes."""

    added: tuple[int, ...]
    retired: tuple[int, ...]
    slots: list[SlotRef]
    buffers: list[tuple[int, int, int]]
    pickles: list[tuple[int, int]]
    #: How many items there are.
    items: int
    #: Whether torch is imported to decode this.
    needs_torch: bool
    #: Whether decoding this takes so long that a thread should do it.
    is_slow: bool
    #: Whether a thread should do it if the memory is copied.
    is_large: bool
    data_start: int
    in_band_start: int
    memory: memoryview


def read_payload(payload: bytes | memoryview) -> Payload:
    """Read the tables of a payload; TransportError if they do not fit it."""
    size = len(payload)
    try:
        added, retired, slots, buffers, pickles, items, torch = _COUNTS.unpack_from(payload)
        total = added + retired + 4 * slots + 3 * buffers + 2 * pickles
        data_start = _COUNTS.size + 8 * total
        if data_start > size:
            raise TransportError(f"a payload's tables claim {data_start} of {size} bytes")
        numbers = iter(struct.unpack_from(f"<{total}Q", payload, _COUNTS.size))
    except struct.error as error:
        raise TransportError(f"a payload of {size} bytes has no tables") from error
    # Each row takes the next numbers.
    fours = zip(numbers, numbers, numbers, numbers, strict=False)
    threes = zip(numbers, numbers, numbers, strict=False)
    read = Payload(
        tuple(islice(numbers, added)),
        tuple(islice(numbers, retired)),
        refs := list(map(SlotRef._make, islice(fours, slots))) if slots else [],
        list(islice(threes, buffers)) if buffers else [],
        sizes := list(zip(numbers, numbers, strict=True)),
        items,
        needs_torch := bool(torch and not has_torch()),
        # A quick check first: a small payload has no large pickle.
        needs_torch or (size >= LARGE and any(nbytes >= LARGE for nbytes, _ in sizes)),
        bool(slots) and sum([ref.nbytes for ref in refs]) >= _LONG_COPY,
        data_start,
        data_start + sum([nbytes for nbytes, _ in sizes]),
        memoryview(payload),
    )
    if read.in_band_start > size:
        raise TransportError(f"a payload's pickles claim {read.in_band_start} of {size} bytes")
    if sum([count for _, count in sizes]) != buffers:
        raise TransportError("a payload's pickles claim other buffers than there are")
    if pickles != items and (pickles != 1 or items > size):
        raise TransportError(f"a payload has {pickles} pickles for {items} items")
    if not buffers:
        return read
    _check_buffers(read, size)
    if not read.is_slow and sum([nbytes for _, _, nbytes in read.buffers]) >= _LONG_COPY:
        read = read._replace(is_slow=copies(bytes(read.memory[data_start : read.in_band_start])))
    return read


def _check_buffers(payload: Payload, size: int) -> None:
    for place, offset, nbytes in payload.buffers:
        if place == IN_BAND:
            inside = payload.in_band_start + offset + nbytes <= size
        else:
            inside = place < len(payload.slots) and offset + nbytes <= payload.slots[place].nbytes
        if not inside:
            raise TransportError(f"a buffer of {nbytes} bytes at {offset} is outside its memory")
