"""Items on their way in, out of the payload of a frame.

This file is about ``Decoder``: it checks a payload when it arrives, and makes its
items when somebody wants them, or gives their slots back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from asyncloader.errors import TransportError
from asyncloader.strange_errors import text_of, traceback_of
from asyncloader.transport.arena_view import ArenaView
from asyncloader.transport.bare import is_bare_tensor
from asyncloader.transport.payload import IN_BAND, Layout, read_layout
from asyncloader.transport.pickling import LARGE, load
from asyncloader.transport.slots import News
from asyncloader.transport.tensors import has_torch, speaks_of_torch
from asyncloader.transport.wire import close_all


class Admitted(NamedTuple):
    """A payload that was found well-formed and whose segments are known."""

    layout: Layout
    memory: memoryview

    def is_heavy(self) -> bool:
        """Whether decoding this takes so long that a thread should do it."""
        # A payload that is not large itself has no large pickle, and most are not.
        is_large = len(self.memory) >= LARGE
        return is_large and any(nbytes >= LARGE for nbytes, _ in self.layout.pickles)

    def needs_torch(self) -> bool:
        """Whether torch would be imported to decode this, which takes long."""
        if has_torch():
            return False
        start = self.layout.data_start
        for nbytes, _ in self.layout.pickles:
            pickled = self.memory[start : start + nbytes]
            if is_bare_tensor(pickled) or speaks_of_torch(pickled):
                return True
            start += nbytes
        return False


class Decoder:
    """Turns payloads back into items, in the order in which they were encoded.

    Every payload that arrived must be decoded or given back: the slots in it are
    lent until then.
    """

    def __init__(self, view: ArenaView | None = None) -> None:
        self._view = view or ArenaView()
        #: How many items could not be unpickled so far.
        self.refused = 0
        # One for each payload that was admitted, and neither decoded nor given back since. Threads
        # decode, too, and a list loses nothing of what they do at once, as a number would.
        self._unopened: list[None] = []

    def decode(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> list[Any]:
        """Return the items; the place of one that does not unpickle has a ``TransportError``.

        Raises ``TransportError`` if the payload itself is not well-formed. ``fds``
        came with the payload's frame and are closed here.
        """
        return self.items(self.admit(payload, fds))

    def admit(self, payload: bytes | memoryview, fds: Sequence[int] = ()) -> Admitted:
        """Take note of a payload that arrived; it is decoded or given back later.

        Payloads are admitted in the order in which they arrive, and then decoded in
        any. Raises ``TransportError`` if the payload is not well-formed.
        """
        admitted = Admitted(self._open(payload, fds), memoryview(payload))
        self._unopened.append(None)
        return admitted

    def has_unopened(self) -> bool:
        """Whether a payload that was admitted is neither decoded nor given back."""
        return bool(self._unopened)

    def items(self, admitted: Admitted) -> list[Any]:
        """Return the items of an admitted payload, as ``decode`` does."""
        try:
            return self._items(*admitted)
        finally:
            self._unopened.pop()

    def give_back(self, admitted: Admitted) -> None:
        """Return the slots of an admitted payload without looking at its items."""
        self._unopened.pop()
        for ref in admitted.layout.slots:
            self._view.give_back(ref)

    def _items(self, layout: Layout, memory: memoryview) -> list[Any]:
        if not layout.buffers:
            return self._plain_items(layout, memory)
        leases = [self._view.lease(ref) for ref in layout.slots]
        buffers = iter([_buffer(memory, layout, leases, entry) for entry in layout.buffers])
        found: list[Any] = []
        start = layout.data_start
        for nbytes, count in layout.pickles:
            mine = list(islice(buffers, count))
            found.append(self._load(memory[start : start + nbytes], mine))
            start += nbytes
        return found if layout.each else _spread(found[0], layout.items)

    def _plain_items(self, layout: Layout, memory: memoryview) -> list[Any]:
        """Return the items of a payload whose pickles hold everything."""
        found: list[Any] = []
        start = layout.data_start
        for nbytes, _ in layout.pickles:
            found.append(self._load(memory[start : start + nbytes], []))
            start += nbytes
        return found if layout.each else _spread(found[0], layout.items)

    def _load(self, data: memoryview, buffers: list[Any]) -> Any:
        try:
            return load(data, buffers)
        except KeyboardInterrupt:
            raise  # it is the user who interrupts
        except BaseException as error:  # noqa: BLE001 - user code ran: __setstate__ …
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
    refused = TransportError(
        f"an item could not be unpickled: {type(error).__name__}: {text_of(error)}"
    )
    refused.add_note(traceback_of(error))
    # Frames hold the leases of the whole payload, and a kept error would keep the slots.
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
