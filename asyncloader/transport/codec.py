"""Items as the payload of a frame.

This file is about ``Encoder`` and ``Decoder``: many items in one payload, their
large buffers in slots of an arena, and one bad item that harms no other. It is
also the only door to cloudpickle.
"""

from __future__ import annotations

import functools
import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from asyncloader.errors import TransportError
from asyncloader.memory import SharedBytes
from asyncloader.transport.arena import Arena
from asyncloader.transport.arena_view import ArenaView
from asyncloader.transport.frame import Buffer
from asyncloader.transport.payload import IN_BAND, Layout, Placement, read_layout, write_payload
from asyncloader.transport.pickling import LARGE, Dump, Pickled, Pickler, load
from asyncloader.transport.slots import NO_NEWS, News
from asyncloader.transport.wire import close_all

__all__ = [
    "NUMBERS",
    "Admitted",
    "Decoder",
    "Encoded",
    "Encoder",
    "Packing",
    "Parcel",
    "Substitute",
    "dumps_code",
    "loads_code",
    "pack_code",
]

Substitute = Callable[[Any, Exception], Any]


class Encoded(NamedTuple):
    """A payload in parts, and the descriptors to be given away with its frame."""

    parts: list[Buffer]
    fds: tuple[int, ...] = ()


def refuse(item: Any, error: Exception) -> Any:
    """Give up on a list with an item that cannot be pickled."""
    try:
        raise error
    finally:
        del item, error  # the error's traceback has this frame, which must not keep them


def in_band(nbytes: int) -> bool:
    """Do not wait for a slot to come back."""
    return False


class Encoder:
    """Turns items into payloads, in the order in which they will be sent.

    ``on_full`` is called when the arena has no slot left although the receiver has
    some: it returns True to look again, having waited for a release, or False to
    have the buffer travel in the frame itself. Without an arena everything does.
    """

    def __init__(
        self,
        arena: Arena | None = None,
        *,
        on_full: Callable[[int], bool] = in_band,
        main_by_value: bool = False,
    ) -> None:
        self._arena = arena
        self._on_full = on_full
        self.pickler = Pickler(lambda dump: _by_value()(dump), main_by_value=main_by_value)
        self._together = True

    def encode(self, items: Sequence[Any], *, substitute: Substitute = refuse) -> Encoded:
        """Return the payload for these items.

        What ``substitute(item, error)`` returns is sent in the place of an item that
        cannot be pickled; by default the error is raised and nothing is sent.
        """
        pickles = self._pickle(items, substitute)
        placement = self.placement()
        try:
            for pickled in pickles:
                placement.add(pickled.sources)
            placement.finish()
        except BaseException:
            placement.undo()
            raise
        return self.payload(placement, pickles, len(items))

    def placement(self) -> Placement:
        """Return the places for the buffers of one payload, none taken yet."""
        return Placement(self._arena, self._on_full)

    def payload(self, placement: Placement, pickles: Sequence[Pickled], count: int) -> Encoded:
        """Put a payload together; it must be sent next."""
        news = self._arena.take_news() if self._arena is not None else NO_NEWS
        return Encoded(write_payload(news, placement, pickles, count), news.fds)

    def _pickle(self, items: Sequence[Any], substitute: Substitute) -> list[Pickled]:
        """Pickle all at once where that is safe, else each for itself."""
        if self._together and len(items) > 1:
            try:
                pickled = self.pickler.dump_list(items)
            except Exception:  # noqa: BLE001 - whose fault it was is found out below
                pass
            else:
                if not pickled.foreign:
                    return [pickled]
        pickles = [self._pickle_one(item, substitute) for item in items]
        self._together = not any(pickled.foreign for pickled in pickles)
        return pickles

    def _pickle_one(self, item: Any, substitute: Substitute) -> Pickled:
        try:
            return self.pickler.dump(item)
        except Exception as error:  # noqa: BLE001 - user code ran: __reduce__, __getstate__
            return self.pickler.dump(substitute(item, error))


class Packing:
    """A payload that is made item by item.

    An item is pickled, and its buffers are copied, when it is added: it may be
    changed afterwards. Items that nobody can change are pickled together at the end.
    One thread adds; another may ``finish`` if no ``add`` is under way.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._placement = encoder.placement()
        #: Items that wait to be pickled together; there are none when there are ``pickles``.
        #: NUMBERS may be appended, without ``add``, while there are no pickles: that is one
        #: operation, which goes well with a ``finish`` in another thread.
        self.unchanging: list[Any] = []
        self.pickles: list[Pickled] = []
        self.nbytes = 0

    @property
    def count(self) -> int:
        """How many items were added."""
        return len(self.pickles) + len(self.unchanging)

    def add(self, item: Any) -> None:
        """Add an item; one that cannot be pickled raises, and the others stay."""
        if not self.pickles and _is_unchanging(item):
            self.unchanging.append(item)
            self.nbytes += _size(item)
        else:
            self._pickle_unchanging()
            self._pickle(item)

    def finish(self) -> Encoded:
        """Return the payload and begin the next."""
        pickles, count = self._taken()
        placement = self._placement
        if placement.buffers:
            placement.finish()
            self._placement = self._encoder.placement()
        self.nbytes = 0
        return self._encoder.payload(placement, pickles, count)

    def drop(self) -> None:
        """Forget what was added and take its slots back."""
        self._placement.undo()
        self._placement = self._encoder.placement()
        self.unchanging.clear()
        self.pickles = []
        self.nbytes = 0

    def _taken(self) -> tuple[list[Pickled], int]:
        pickles, self.pickles = self.pickles, []
        if pickles:
            return pickles, len(pickles)
        count = len(self.unchanging)
        # What is appended in between stays for the next payload.
        items = self.unchanging[:count]
        del self.unchanging[:count]
        together = items[0] if count == 1 else items
        return [Pickled(pickle.dumps(together, protocol=5), [], False)], count

    def _pickle_unchanging(self) -> None:
        for item in self.unchanging:
            self._pickle(item)
        self.unchanging.clear()

    def _pickle(self, item: Any) -> None:
        pickled = self._encoder.pickler.dump(item)
        if pickled.sources:
            self._placement.add(pickled.sources)
            self.nbytes += sum(source.nbytes for source in pickled.sources)
            pickled.sources[:] = [source._replace(owner=None) for source in pickled.sources]
        self.pickles.append(pickled)
        self.nbytes += len(pickled.data)


NUMBERS = frozenset({int, float, bool, type(None)})
_UNCHANGING = NUMBERS | {str}


def _size(item: Any) -> int:
    """The bytes of an item that nobody can change, roughly."""
    if type(item) is str:
        return len(item)
    return sum(map(sys.getsizeof, item)) if type(item) is tuple else 0


def _is_unchanging(item: Any) -> bool:
    kind = type(item)
    if kind is tuple:
        return _UNCHANGING.issuperset(map(type, item))
    return kind in _UNCHANGING


class Admitted(NamedTuple):
    """A payload that was found well-formed and whose segments are known."""

    layout: Layout
    memory: memoryview

    def is_heavy(self) -> bool:
        """Whether decoding this takes so long that a thread should do it."""
        return any(nbytes >= LARGE for nbytes, _ in self.layout.pickles)


class Decoder:
    """Turns payloads back into items, in the order in which they were encoded.

    Every payload that arrived must be decoded or discarded: the slots in it are
    lent until then.
    """

    def __init__(self, view: ArenaView | None = None) -> None:
        self._view = view or ArenaView()
        #: How many items could not be unpickled so far.
        self.refused = 0

    def decode(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> list[Any]:
        """Return the items; the place of one that does not unpickle has a ``TransportError``.

        Raises ``TransportError`` if the payload itself is not well-formed. ``fds``
        came with the payload's frame and are closed here.
        """
        return self.items(self.admit(payload, fds))

    def admit(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> Admitted:
        """Take note of a payload that arrived; it is decoded or discarded later.

        Payloads are admitted in the order in which they arrive, and then decoded in
        any. Raises ``TransportError`` if the payload is not well-formed.
        """
        return Admitted(self._open(payload, fds), memoryview(payload))

    def items(self, admitted: Admitted) -> list[Any]:
        """Return the items of an admitted payload, as ``decode`` does."""
        layout, memory = admitted
        leases = [self._view.lease(ref) for ref in layout.slots]
        buffers = iter([_buffer(memory, layout, leases, entry) for entry in layout.buffers])
        found: list[Any] = []
        start = layout.data_start
        for nbytes, count in layout.pickles:
            mine = list(islice(buffers, count))
            found.append(self._load(memory[start : start + nbytes], mine))
            start += nbytes
        return found if layout.each else _spread(found[0], layout.items)

    def discard(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> None:
        """Return the payload's slots without looking at its items."""
        self.give_back(self.admit(payload, fds))

    def give_back(self, admitted: Admitted) -> None:
        """Return the slots of an admitted payload without looking at its items."""
        for ref in admitted.layout.slots:
            self._view.give_back(ref)

    def _load(self, data: memoryview, buffers: list[Any]) -> Any:
        try:
            return load(data, buffers)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code ran: __setstate__ …
            self.refused += 1
            return _refused(error)

    def _open(self, payload: bytes | memoryview, fds: Sequence[int]) -> Layout:
        try:
            layout = read_layout(payload)
        except TransportError:
            close_all(fds)
            raise
        if layout.added or layout.retired or fds:
            self._view.update(News(layout.added, layout.retired, tuple(fds)))
        return layout


def _buffer(
    memory: memoryview, layout: Layout, leases: list[memoryview], entry: tuple[int, int, int]
) -> Any:
    place, offset, nbytes = entry
    if place != IN_BAND:
        return leases[place][offset : offset + nbytes]
    start = layout.in_band_start + offset
    return bytearray(memory[start : start + nbytes])


def _refused(error: BaseException) -> TransportError:
    refused = TransportError(f"an item could not be unpickled: {type(error).__name__}: {error}")
    refused.add_note("".join(traceback.format_exception(error)))
    # Frames hold the leases of the whole payload, and a kept error would keep the slots.
    refused.__cause__ = _without_frames(error)
    return refused


def _without_frames(error: BaseException) -> BaseException:
    chained: BaseException | None = error
    while chained is not None and chained.__traceback__ is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error


def _spread(found: Any, count: int) -> list[Any]:
    """The items of a pickle of all of them; if it failed, the failure for each."""
    if isinstance(found, TransportError):
        return [found] * count
    if not isinstance(found, list) or len(found) != count:
        raise TransportError(f"a pickle of {count} items held something else")
    return found


def dumps_code(code: Any) -> bytes:
    """Pickle a graph or a function, with the code that the other process may not have."""
    import cloudpickle  # type: ignore[import-untyped]

    dump = Dump()
    cloudpickle.Pickler(dump, protocol=5).dump(code)
    return dump.data


class Parcel(NamedTuple):
    """A pickle of code, and the shared memory that goes beside it."""

    data: bytes
    shared: tuple[SharedBytes, ...]

    def fds(self) -> list[int]:
        """Return descriptors to be sent along, anew for every receiver."""
        return [each.duplicate_fd() for each in self.shared]


def pack_code(code: Any) -> Parcel:
    """Pickle a graph for a process of ours, which is to map what is in shared memory."""
    dump = Dump()
    pickler = _parcel_pickler()(dump)
    pickler.dump(code)
    return Parcel(dump.data, tuple(pickler.shared))


def loads_code(data: bytes | memoryview, fds: Sequence[int] = ()) -> Any:
    """Return what ``dumps_code`` or ``pack_code`` was given; ``fds`` came with a parcel."""
    left = deque(fds)
    try:
        return load(data, iter(left.popleft, None))
    finally:
        close_all(left)


@functools.cache
def _parcel_pickler() -> Any:
    import cloudpickle

    class ParcelPickler(cloudpickle.Pickler):  # type: ignore[misc]
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
def _by_value() -> Any:
    """A pickler that takes code along; imported late, as few items ever need it."""
    import cloudpickle

    class PicklerByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, dump: Dump) -> None:
            super().__init__(dump, protocol=5, buffer_callback=dump.on_buffer)
            self._reduce = dump.reduce

        def reducer_override(self, item: Any) -> Any:
            reduced = self._reduce(item)
            return super().reducer_override(item) if reduced is NotImplemented else reduced

    return PicklerByValue
