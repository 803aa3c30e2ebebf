"""Running ahead of the consumer.

This file is about pipes that work on what will be wanted next while the
consumer is busy with what it has: prefetch and pin_memory.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

from asyncloader.datapipes.calls.running_ahead import RunningAhead
from asyncloader.datapipes.going_on.cursors import Cursors, first_cursors, put_cursors
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.going_on.passes import Pass
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.reading import begin
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import checked_count, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import plain_function
from asyncloader.datapipes.pipe.weighing import weight_of

T = TypeVar("T")


@functional_datapipe("prefetch")
class Prefetcher(OneToOne, IterDataPipe[T]):
    """Yield the source's items in order, holding up to ``buffer_size`` of them ready.

    With ``buffer_bytes`` nothing more is read ahead once those that are held take so many.

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

    def __len__(self) -> int:
        return len(self.source)

    async def __aiter__(self) -> AsyncIterator[T]:
        self.current_pass = ahead = ReadAhead(self.source, self.buffer_size, self.buffer_bytes)
        ahead.start(repr(self))
        try:
            while await ahead.has_next():
                yield ahead.next()
        finally:
            await ahead.aclose()

    def put_cursors(self, into: Cursors) -> None:
        if self.current_pass is not None:
            self.current_pass.put_above(into)


class ReadAhead(RunningAhead, Pass[T]):
    """The items read ahead of a consumer on the same loop."""

    def __init__(
        self, source: Iterable[T], buffer_size: int, buffer_bytes: int | None = None
    ) -> None:
        super().__init__(source)
        self.buffer_size = buffer_size
        self.weights = NoWeights() if buffer_bytes is None else Weights(buffer_bytes)
        self.taken = 0
        self.yielded = 0
        self.above = Marks(
            functools.partial(put_cursors, source), lambda: self.yielded, first_cursors(source)
        )
        self.buffer: deque[T] = deque()

    def hold(self, item: T) -> None:
        self.weights.add(item)
        self.buffer.append(item)
        self.taken += 1
        self.above.passed(self.taken)
        self.wake_consumer()

    def has_room(self) -> bool:
        return len(self.buffer) < self.buffer_size and self.weights.have_room()

    def has_something(self) -> bool:
        return bool(self.buffer)

    def next(self) -> T:
        """Take the oldest; only after ``has_next`` said that there is one."""
        item = self.buffer.popleft()
        self.weights.remove()
        self.yielded += 1
        self.wake_reader()
        return item

    def drop(self) -> None:
        self.buffer.clear()

    def put_above(self, into: Cursors) -> None:
        into.update(self.above.at(self.yielded))

    def fullness(self) -> tuple[int, int]:
        return len(self.buffer), self.buffer_size


class NoWeights:
    """The weights of items that are not weighed."""

    def add(self, item: Any) -> None:
        """An item came last."""

    def remove(self) -> None:
        """The first went."""

    def have_room(self) -> bool:
        """Whether there may be more."""
        return True


class Weights(NoWeights):
    """How many bytes the items in a buffer take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._each: deque[int] = deque()
        self._sum = 0

    def add(self, item: Any) -> None:
        weight = weight_of(item)
        self._each.append(weight)
        self._sum += weight

    def remove(self) -> None:
        self._sum -= self._each.popleft()

    def have_room(self) -> bool:
        return self._sum < self._most


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
        # A loader runs what waits in a thread beside its consumer.
        return True

    def __iter__(self) -> Iterator[T]:
        pin = self.pin_memory_fn or pinned
        if self.pin_memory_fn is None and not _has_accelerator():
            warnings.warn(
                "pin_memory: no accelerator is available, so items pass unpinned", stacklevel=2
            )
            pin = _as_it_is
        iterator = begin(self.source)
        try:
            for item in iterator:
                yield answer_of(self, pin, item, self.device)
        finally:
            close_items(iterator)


def pinned(item: Any, device: Any = None) -> Any:
    """Return ``item`` with every tensor in it in pinned memory."""
    if isinstance(item, str | bytes):
        return item
    if hasattr(item, "pin_memory"):
        return item.pin_memory() if device is None else item.pin_memory(device)
    if isinstance(item, MutableMapping):
        changed = copy.copy(item)
        # Whatever an update means to it: one that counts would count.
        for key, value in item.items():
            changed[key] = pinned(value, device)
        return changed
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(pinned(value, device) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(pinned(value, device) for value in item)
    return item


def _as_it_is(item: Any, device: Any) -> Any:
    return item


def _has_accelerator() -> bool:
    import torch

    # Older versions of torch know no accelerators but CUDA's.
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())
