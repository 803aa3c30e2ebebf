"""Running ahead of the consumer.

This file is about prefetch and pin_memory, which prepare the next items while the consumer works
on the current one; and about how many bytes an item takes.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import answer_of, plain_function
from asyncloader.datapipes.devices import pinned_part, with_parts_changed
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.conveyor import RunningAhead
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.sources import iterable_source

T = TypeVar("T")

# How many levels of an item are weighed.
_DEPTH = 4

# The weight of an item that cannot tell its size.
_UNKNOWN_BYTES = 64

# Above this, pickling takes longer than starting a thread.
_HEAVY_BYTES = 1 << 20
_HEAVY_PARTS = 1000

# How many parts of an item are weighed where all would take too long.
_SAMPLED_PARTS = 256


def weight_of(item: Any) -> int:
    """Return about how many bytes an item takes, with its contents four levels deep.

    Arrays and tensors count with their elements; an object that occurs twice counts twice.
    """
    return _weight(item, _DEPTH)


def is_heavy(item: Any) -> bool:
    """Whether an item takes more than a MiB, or is made of more than a thousand parts.

    It is searched only until that is known.
    """
    room, parts = _HEAVY_BYTES, [item]
    for _ in range(_HEAVY_PARTS):
        if not parts:
            return False
        part = parts.pop()
        room -= _own_weight(part)
        if room < 0:
            return True
        parts += _parts(part)
    return bool(parts)


def bounded_weight_of(item: Any) -> int:
    """Return about how many bytes an item takes; of one with many parts a sample says it."""
    weight, parts, seen = 0, [item], 0
    while parts and seen < _SAMPLED_PARTS:
        part = parts.pop()
        weight += _own_weight(part)
        parts += _parts(part)
        seen += 1
    return weight + len(parts) * (weight // seen)


def _weight(item: Any, depth: int) -> int:
    weight = _own_weight(item)
    if depth == 0:
        return weight
    return weight + sum(_weight(part, depth - 1) for part in _parts(item))


def _own_weight(item: Any) -> int:
    try:
        own = sys.getsizeof(item, _UNKNOWN_BYTES)
    except Exception:  # noqa: BLE001 - the item's own __sizeof__ ran
        own = _UNKNOWN_BYTES
    return own + (_elements(item) or 0)


def _elements(item: Any) -> int | None:
    nbytes = _said(item, "nbytes")
    return nbytes if isinstance(nbytes, int) else None


def _parts(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if _said(item, "is_sparse") is True:  # a torch tensor that consists of two others
        return [item._indices(), item._values()]
    fields = _said(item, "__dict__")
    if not isinstance(fields, dict) or _elements(item) is not None:
        return []
    return list(fields.values())


def _said(item: Any, name: str) -> Any:
    """Return an item's attribute, or None if reading it fails."""
    try:
        return getattr(item, name, None)
    except Exception:  # noqa: BLE001 - a property of the item's own ran
        return None


@functional_datapipe("prefetch")
class Prefetcher(OneToOne, IterDataPipe[T]):
    """Yield the source's items in order, holding up to ``buffer_size`` of them ready.

    With ``buffer_bytes`` reading ahead stops once the held items take so many bytes.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).prefetch(2))
    [0, 1, 2]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        buffer_size: int = 10,
        *,
        buffer_bytes: int | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.buffer_bytes = buffer_bytes
        if buffer_bytes is not None:
            checked_count("buffer_bytes", buffer_bytes, at_least=1)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        return True

    def in_section(self) -> Prefetcher[T]:
        return self

    def __len__(self) -> int:
        return len(self.source)

    def is_async(self) -> bool:
        return True

    def new_pass(self, edge: Edge[Any]) -> PrefetchPass[T]:
        return PrefetchPass(edge)

    def picks(self) -> bool:
        return False


class PrefetchPass(Pass[T]):
    """One pass over a Prefetcher: what was read ahead of the consumer."""

    runs_ahead = True

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        #: How many items of the source come before the first that is read.
        self.first = 0
        #: How many were read, and how many yielded.
        self.taken = self.yielded = 0
        #: The others.
        self.held: deque[T] = deque()

    async def __aiter__(self) -> AsyncIterator[T]:
        ahead = ReadAhead(self)
        ahead.start(repr(self.pipe))
        try:
            while await ahead.has_next():
                yield ahead.next()
        finally:
            await ahead.aclose()

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.first = position
        self.source.resume(position, cursors)
        return 0

    def needs(self) -> int:
        return self.first + self.yielded

    def fullness(self) -> tuple[int, int]:
        return len(self.held), self.pipe.buffer_size


class ReadAhead(RunningAhead, Generic[T]):
    """The task that reads ahead of a consumer on the same loop."""

    def __init__(self, running: PrefetchPass[T]) -> None:
        super().__init__(running.source)
        self._running = running
        self._size: int = running.pipe.buffer_size
        self._bytes: int | None = running.pipe.buffer_bytes
        #: How many bytes each of the held items takes, and all together, where that is limited.
        self._weights: deque[int] = deque()
        self._weight = 0

    def hold(self, item: T) -> None:
        running = self._running
        if self._bytes is not None:
            self._weights.append(weight_of(item))
            self._weight += self._weights[-1]
        running.held.append(item)
        running.taken += 1
        self.reads.passed(running.first + running.taken)
        self.wake_consumer()

    def has_room(self) -> bool:
        is_light = self._bytes is None or self._weight < self._bytes
        return is_light and len(self._running.held) < self._size

    def has_something(self) -> bool:
        return bool(self._running.held)

    def next(self) -> T:
        """Take the oldest item; call it only after ``has_next`` returned True."""
        item = self._running.held.popleft()
        if self._bytes is not None:
            self._weight -= self._weights.popleft()
        self._running.yielded += 1
        self.wake_reader()
        return item

    def drop(self) -> None:
        self._running.held.clear()


@functional_datapipe("pin_memory")
class PinMemory(OneToOne, IterDataPipe[T]):
    """Yield the items with their tensors in pinned memory, made ready in a thread.

    Copies from pinned memory to a device run beside computation
    (``tensor.to(device, non_blocking=True)``). Tuples, lists, dicts (and what
    is used like one) and objects with a ``pin_memory`` method are pinned through.
    Without an accelerator the items pass unchanged, with a warning. The pipe stays in the
    loader's process.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1]).pin_memory(pin_memory_fn=lambda item, device: item))
    [1]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.device = device
        self.pin_memory_fn = (
            None
            if pin_memory_fn is None
            else plain_function("pin_memory_fn", pin_memory_fn, takes=2)
        )

    def is_replicable(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.source)

    def waits(self) -> bool:
        # So that a loader runs it in a thread beside its consumer.
        return True

    def run(self, source: Edge[Any], state: None) -> Iterator[T]:
        pin = self.pin_memory_fn or pinned
        if self.pin_memory_fn is None and not _has_accelerator():
            warnings.warn(
                "pin_memory: no accelerator is available, so items pass unpinned", stacklevel=2
            )
            pin = _as_it_is
        iterator = iter(source)
        try:
            for item in iterator:
                yield answer_of(self, pin, item, self.device)
        finally:
            close_items(iterator)


def pinned(item: Any, device: Any = None) -> Any:
    """Return ``item`` with every tensor in it in pinned memory.

    Pinned memory serves every device. So no ``pin_memory`` method is given one: torch warns of
    it, and a user's may take none.
    """
    return with_parts_changed(item, "pin_memory", pinned_part)


def _as_it_is(item: Any, device: Any) -> Any:
    return item


def _has_accelerator() -> bool:
    import torch

    # Older versions of torch know only CUDA.
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())
