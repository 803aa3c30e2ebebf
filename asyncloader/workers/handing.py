"""Items on their way between two ends of one process: they are handed over as they are.

This file is about ``Handing`` and ``Handed``, which are for such a channel what ``Encoder`` and
``Decoder`` are for others; and about ``encoder_for`` and ``opener_for``, which choose.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from asyncloader.datapipes.prefetching import bounded_weight_of
from asyncloader.datapipes.running.cursor_forms import is_array, is_tensor
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.graph.refusals import shared_files
from asyncloader.graph.walk import breadth_first
from asyncloader.transport.arena import Arena
from asyncloader.transport.codec import Decoder, Encoded, Encoder, Opener, never_wait, plain_size
from asyncloader.transport.ends import End
from asyncloader.worker_info import this_worker


def encoder_for(
    channel: End,
    arena: Arena,
    *,
    on_full: Callable[[int], bool] = never_wait,
    main_by_value: bool = False,
) -> Encoder | Handing:
    """Return what makes payloads for a channel, in an arena if the items have to travel."""
    if channel.hands_over:
        return Handing()
    return Encoder(arena, on_full=on_full, main_by_value=main_by_value)


def opener_for(channel: End) -> Opener:
    """Return what makes items of the payloads that come over a channel."""
    return Handed() if channel.hands_over else Decoder()


class Handing:
    """Hands items over as they are, beside an empty payload."""

    def packing(self, pipe: Any = None) -> HandingPacking:
        """Return a payload to be made item by item, of a pipe's items."""
        return HandingPacking(pipe)

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Return the payload for these items."""
        return Encoded([], (list(items),))


class HandingPacking:
    """A payload of items that are handed over as they are: what ``Packing`` is for others.

    One thread adds; another may call ``finish``. To append to a list, and to take the first items
    off it, are atomic.
    """

    #: Nothing is pickled, so all items count as plain ones.
    pickles: Final = ()

    def __init__(self, pipe: Any) -> None:
        self.plain: list[Any] = []
        self.nbytes = 0
        self._pipe = pipe
        #: Refers to the latest item that is not plain, as long as somebody has it.
        self._latest: Callable[[], Any] = _nothing

    @property
    def count(self) -> int:
        """How many items were added."""
        return len(self.plain)

    def add_plain(self, item: Any) -> bool:
        """Add an item if it is small, and consists of numbers and strings."""
        if not (nbytes := plain_size(item)):
            return False
        if type(item) in _CHANGING and self.plain and self.plain[-1] is item:
            self._warn_of_same(item, "the same {}")
        self.plain.append(item)
        self.nbytes += nbytes
        return True

    def add_other(self, item: Any) -> None:
        """Add an item that is not plain."""
        if type(item) not in _UNCHANGING:
            latest = self._latest()
            if latest is item or (self.plain and self.plain[-1] is item):
                self._warn_of_same(item, "the same {}")
            elif latest is not None and 0 != _address_of(item) == _address_of(latest):
                self._warn_of_same(item, "a {} of the same memory")
            self._latest = _reference_to(item)
        self.plain.append(item)
        self.nbytes += bounded_weight_of(item)

    def check(self) -> None:
        """Raise ValueError if a file that other threads read too was opened for the first items."""
        worker = this_worker()
        if worker is None or worker.num_workers == 1:
            return
        for pipe in breadth_first(self._pipe):
            # Of what is iterated each worker has its own.
            if not isinstance(pipe, IterableWrapper):
                for why, remedy in shared_files(pipe):
                    raise ValueError(f"{why}; {remedy}")

    def finish(self) -> tuple[int, Encoded]:
        """Return the number of items and the payload, and begin the next payload."""
        items = self.plain[:]
        del self.plain[: len(items)]
        self.nbytes = 0
        return len(items), Encoded([], (items,))

    def drop(self) -> None:
        """Forget what was added."""
        self.plain.clear()
        self.nbytes = 0

    def _warn_of_same(self, item: Any, what: str) -> None:
        warnings.warn(
            f"{stage_name(self._pipe)} has yielded {what.format(type(item).__qualname__)} twice in"
            " a row. Threads hand items over as they are, so if it is changed in between, whoever"
            " has the first sees the second: yield another object each time, a copy for example",
            RuntimeWarning,
            stacklevel=2,
        )


#: What is plain and may be changed.
_CHANGING = frozenset({list, dict})


#: What cannot be changed, however large it is.
_UNCHANGING = frozenset({str, bytes, tuple, frozenset})


def _reference_to(item: Any) -> Callable[[], Any]:
    """Return what returns an item as long as somebody has it."""
    try:
        return weakref.ref(item)
    except TypeError:
        return _nothing


def _address_of(item: Any) -> int:
    """Return where the elements of a tensor or an array begin; 0 for all else."""
    if is_tensor(item):
        return int(item.data_ptr())
    return int(item.__array_interface__["data"][0]) if is_array(item) else 0


def _nothing() -> None:
    """Refer to no item."""


class HandedItems(NamedTuple):
    """A payload that has arrived: the items themselves."""

    things: list[Any]
    items: int
    needs_torch: bool = False
    is_slow: bool = False
    is_large: bool = False


class Handed:
    """Takes items that were handed over: what ``Decoder`` is for others."""

    refused: int = 0

    def __init__(self) -> None:
        # A list, as its operations are atomic: threads open too.
        self._unopened: list[None] = []

    def admit(self, payload: bytes | memoryview, things: Sequence[Any]) -> HandedItems:
        """Register items that arrived; they are taken or given back later."""
        (items,) = things
        self._unopened.append(None)
        return HandedItems(items, len(items))

    def items(self, admitted: HandedItems) -> list[Any]:
        """Return admitted items."""
        self._unopened.pop()
        return admitted.things

    def give_back(self, admitted: HandedItems) -> None:
        """Note that nobody wants admitted items."""
        self._unopened.pop()

    def has_unopened(self) -> bool:
        """Whether admitted items are neither taken nor given back."""
        return bool(self._unopened)

    def would_copy(self, admitted: HandedItems) -> bool:
        """Nothing is copied."""
        return False

    def holds_much(self) -> bool:
        """Whoever holds an item holds memory of nobody else."""
        return False

    def take_released(self) -> list[int]:
        """There are no slots."""
        return []

    def close(self) -> None:
        """There is no memory to forget."""
