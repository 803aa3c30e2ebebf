"""Where items come from.

This file is about pipes that read no other pipe: iterables and sequences that
are already in memory or make their own items.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursors, picked
from asyncloader.datapipes.pipe.base import IterDataPipe, MapDataPipe, is_pipe
from asyncloader.datapipes.pipe.share import Share
from asyncloader.datapipes.running.crossing import from_loop, from_thread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: What no one can change in place, so that a copy would be the same thing.
_UNCHANGING = frozenset({int, float, complex, bool, str, bytes, type(None)})


class IterableWrapper(IterDataPipe[T]):
    """Yield the items of an iterable, or of an async iterable.

    With ``deepcopy`` each pass reads a copy, so that items changed in place are
    whole again in the next; what cannot be copied is read as it is, with a
    warning. An iterator can be read only once: a second pass is a TypeError.
    ``shards_itself`` says that the iterable takes a worker's share by itself, as one does
    that asks ``get_worker_info``. A set has the same order in all processes of a loader; sort
    it where another run is to go on with a state.

    >>> list(IterableWrapper([1, 2, 3]))
    [1, 2, 3]
    """

    makes_again = False

    edges = ()

    def __init__(
        self,
        iterable: Iterable[T] | AsyncIterable[T],
        deepcopy: bool = True,
        *,
        shards_itself: bool = False,
    ) -> None:
        if is_pipe(iterable):
            raise TypeError(
                f"{iterable!r} is a datapipe already; use it as it is, or, to iterate a map"
                " pipe, .to_iter_datapipe()"
            )
        if not isinstance(iterable, Iterable | AsyncIterable):
            raise TypeError(f"iterable must be iterable, got {type(iterable).__name__}")
        self.iterable = iterable
        self.deepcopy = deepcopy
        self.shards_itself = shards_itself
        self._once = OneShot.of(iterable)

    def __len__(self) -> int:
        if self.shards_itself:
            raise TypeError(f"{self!r} has no length: how many items are a worker's is not known")
        return len(self.iterable)  # type: ignore[arg-type]  # a TypeError, as for any iterable

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if isinstance(self.iterable, set | frozenset):
            # Every process has another order for a set of texts: their shares would not fit.
            return {**state, "iterable": list(self.iterable)}
        return state

    def is_async(self) -> bool:
        return isinstance(self.iterable, AsyncIterable)

    def waits(self) -> bool:
        return self.is_async()

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self.iterable, Iterable):
            return from_loop(self)
        self._once.use(self)
        return iter(changeable_copy(self.iterable) if self.deepcopy else self.iterable)

    def picks(self) -> bool:
        return self._once.can_repeat and isinstance(self.iterable, Iterable)

    def iter_at(self, positions: list[int]) -> Iterator[T]:
        if not isinstance(self.iterable, Sequence):
            return picked(iter(self), positions)
        data = changeable_copy(self.iterable) if self.deepcopy else self.iterable
        return (data[position] for position in positions if position < len(data))

    def can_share(self) -> bool:
        # A list that is read as it is may grow while it is read.
        return type(self.iterable) in (tuple, range) or (
            type(self.iterable) is list and self.deepcopy
        )

    def iter_share(self, share: Share, cursors: Cursors) -> Iterator[T]:
        data: Any = self.iterable
        if share.width == 1:
            # What is left out need not be copied either.
            wanted = data[share.start :: share.step]
            return iter(changeable_copy(wanted) if self.deepcopy else wanted)
        data = changeable_copy(data) if self.deepcopy else data
        return (data[position] for position in share.positions(len(data)))

    def __aiter__(self) -> AsyncIterator[T]:
        if isinstance(self.iterable, AsyncIterable):
            self._once.use(self)
            return aiter(self.iterable)
        return from_thread(self)


class OneShot(Generic[T]):
    """Remembers whether an iterable that can be read once was read."""

    def __init__(self, can_repeat: bool) -> None:
        self.can_repeat = can_repeat
        self.used = False

    @classmethod
    def of(cls, iterable: object) -> OneShot[Any]:
        """Tell whether an iterable is its own iterator, which reads only once."""
        once = hasattr(iterable, "__next__") or hasattr(iterable, "__anext__")
        return cls(can_repeat=not once)

    def use(self, pipe: object) -> None:
        """Note a pass; raise TypeError for the second over what can be read once."""
        if self.used and not self.can_repeat:
            raise TypeError(
                f"{pipe!r} wraps an iterator, which can be read only once; wrap a list, or an"
                " object whose __iter__ begins afresh, to iterate again"
            )
        self.used = True


class Lookup(Protocol[T_co]):
    """What items are looked up in by ``[...]``: a list, a dict, a dataset of torch's."""

    def __getitem__(self, key: Any, /) -> T_co: ...


class SequenceWrapper(MapDataPipe[T]):
    """Look items up in a sequence, a mapping, or a dataset of torch's.

    With ``deepcopy`` the data is copied once, when the pipe is made.

    >>> SequenceWrapper(["a", "b"])[1]
    'b'
    """

    edges = ()

    def __init__(self, sequence: Sequence[T] | Lookup[T], deepcopy: bool = True) -> None:
        if is_pipe(sequence):
            raise TypeError(
                f"{sequence!r} is a datapipe already; use it as it is, or, to look up the"
                " items of an iter pipe, .to_map_datapipe()"
            )
        if not hasattr(type(sequence), "__getitem__"):
            raise TypeError(
                f"sequence must be looked up in by [...], got {type(sequence).__name__}; for what"
                " is only iterated use IterableWrapper"
            )
        self.sequence: Any = changeable_copy(sequence) if deepcopy else sequence
        self.deepcopy = deepcopy

    def __getitem__(self, key: Any) -> T:
        item: T = self.sequence[key]
        return item

    def __len__(self) -> int:
        return len(self.sequence)


def changeable_copy(data: Any) -> Any:
    """Return a copy of data that someone might change in place, or the data itself."""
    if isinstance(data, str | bytes | range) or hasattr(data, "__next__"):
        return data
    if type(data) in (list, tuple) and _UNCHANGING.issuperset(map(type, data)):
        return data[:]
    try:
        return copy.deepcopy(data)
    except Exception as error:  # noqa: BLE001 - a user's __deepcopy__ ran
        warnings.warn(
            f"{type(data).__name__} cannot be copied ({error}); it is read as it is, and items"
            " changed in place stay changed. Pass deepcopy=False to say that this is meant",
            stacklevel=4,
        )
        return data
