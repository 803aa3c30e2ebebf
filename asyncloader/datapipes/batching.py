"""Items put together in batches.

This file is about batch, in its iter and map forms, closed by count or by the clock: when a batch
is full, or when its oldest item has waited long enough for company.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

from asyncloader.arguments import checked_count, checked_wait
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe, most_items
from asyncloader.datapipes.call import answer_of, plain_function
from asyncloader.datapipes.lookups import items_under
from asyncloader.datapipes.recording import Joining
from asyncloader.datapipes.running.conveyor import RunningAhead
from asyncloader.datapipes.running.cursor_forms import MOST
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.run import Edge, Pass, Stride
from asyncloader.datapipes.running.traits import can_share, is_ours, picks
from asyncloader.datapipes.sources import iterable_source, keyed_source

T = TypeVar("T")

#: Of a batch that does not wait for company while whoever takes it waits for it.
ADAPTIVE: Literal["adaptive"] = "adaptive"


class TimedBatches(RunningAhead):
    """The items of the next batch, each with the time at which it has waited long enough.

    A batch grows until it is taken, so a slow consumer gets a longer one. At most ``size`` items
    are held.
    """

    def __init__(self, source: Any, size: int, max_wait: float) -> None:
        super().__init__(source)
        self._size = size
        self._max_wait = max_wait
        self._items: deque[tuple[Any, float]] = deque()
        self._is_due = False

    def hold(self, item: Any) -> None:
        self._items.append((item, self.loop.time() + self._max_wait))
        self.wake_consumer()

    def has_room(self) -> bool:
        return len(self._items) < self._size

    def has_something(self) -> bool:
        return bool(self._items)

    def drop(self) -> None:
        self._items.clear()

    async def batches(self) -> AsyncGenerator[list[Any], None]:
        """Yield the batches; raise the source's error in its place."""
        while await self.has_next():
            await self.until_closed()
            count = min(self._size, len(self._items))
            batch = [self._items.popleft()[0] for _ in range(count)]
            self.wake_reader()
            yield batch
            del batch

    async def until_closed(self) -> None:
        """Wait until the next batch is to be taken; there is an item for it."""
        if self.is_closed():
            return
        _, due = self._items[0]
        # A timer may fire a clock tick early, so trust the call and not the clock.
        timer = self.loop.call_at(due, self._fall_due)
        try:
            await self.until_held(lambda: self.is_closed() or self._is_due)
        finally:
            timer.cancel()
            self._is_due = False

    def _fall_due(self) -> None:
        self._is_due = True
        self.wake_consumer()

    def is_closed(self) -> bool:
        """Whether the next batch is full, or no more items come."""
        return len(self._items) >= self._size or self.has_ended


@functional_datapipe("batch")
class Batcher(IterDataPipe[list[T]]):
    """Yield the source's items in lists of ``batch_size``.

    The last may be shorter, unless ``drop_last`` says to leave it out. A
    ``wrapper_class`` other than list is called with each list, and what it
    returns is yielded.

    A batch in a worker is made of that worker's items. With ``across_workers`` batches
    are made in the loader's process, of the items of all workers, and are the same for
    any number of them.

    With ``max_wait`` a batch is closed by the clock as well, when its first item has
    waited so many seconds for company. Such batches differ from run to run: there is
    no length, and no snapshot. With ``max_wait="adaptive"`` a batch is closed as soon as
    somebody waits for it; after a ``Feed`` that is when the model has nothing to do, and
    there it is the default.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(5)).batch(2))
    [[0, 1], [2, 3], [4]]
    """

    makes_again = False

    def __init__(
        self,
        datapipe: Iterable[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[T]], Any] = list,
        *,
        across_workers: bool = False,
        max_wait: float | Literal["adaptive"] | None = None,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = plain_function("wrapper_class", wrapper_class, takes=1)
        self.across_workers = across_workers
        self.max_wait = _checked_max_wait(max_wait)

    def goes_by_clock(self) -> bool:
        return self.max_wait is not None

    def is_async(self) -> bool:
        return self.goes_by_clock()

    def waits(self) -> bool:
        return self.goes_by_clock()

    def is_replicable(self) -> bool:
        return not self.across_workers

    def __len__(self) -> int:
        if self.goes_by_clock():
            raise TypeError(f"{self!r} closes batches after max_wait, so it has no length")
        return batch_count(len(self.source), self.batch_size, self.drop_last)

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return TimedBatchPass(edge) if self.goes_by_clock() else BatchPass(edge)

    def most_items(self) -> int:
        return -(-most_items(self.source) // self.batch_size)

    def picks(self) -> bool:
        return picks(self.source)

    def can_share(self) -> bool:
        return can_share(self.source) and not self.goes_by_clock()

    def iter_share(self, edge: Edge[Any], share: Stride, cursors: Cursors) -> Iterator[Any]:
        begun = BatchPass(edge)
        edge.note(begun)
        return begun.batches(begun.source.begin_share(share.of_batches(self.batch_size), cursors))

    def in_section(self) -> Any:
        as_it_was, self.wrapper_class, self.drop_last = copy.copy(self), list, False
        return Joining(self, as_it_was.batched, self.batch_size if as_it_was.drop_last else 1)

    def full(self, items: list[T]) -> int:
        """Return how many of the first items are a full batch, or 0 if those are too few."""
        return self.batch_size if len(items) >= self.batch_size else 0

    def batched(self, items: list[T]) -> Any:
        """Return what is yielded for the items of one batch."""
        return items if self.wrapper_class is list else wrapped(items, self.wrapper_class, self)


@dataclass
class BatchPass(Pass[Any]):
    """One pass over a Batcher; its position follows from its source's."""

    taken: int = 0
    yielded: int = 0

    def __post_init__(self) -> None:
        self.source.at_once, self.source.holds_together = self.pipe.batch_size, True

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches(self.source.begin())

    def batches(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of these items, and close them."""
        pipe, size = self.pipe, self.pipe.batch_size
        try:
            while batch := list(islice(items, size)):
                self.taken += len(batch)
                if len(batch) < size and pipe.drop_last:
                    return
                self.yielded += 1
                yield pipe.batched(batch)
                # Do not keep the yielded batch alive while the next one is made.
                del batch
        finally:
            close_items(items)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.taken, self.yielded = position * self.pipe.batch_size, position
        self.source.resume(self.taken, cursors)
        return 0

    def iter_at(self, positions: list[int]) -> Iterator[Any]:
        size = self.pipe.batch_size
        self.source.pick([size * batch + item for batch in positions for item in range(size)])
        return iter(self)


@dataclass
class TimedBatchPass(Pass[Any]):
    """One pass over a Batcher that closes batches by the clock."""

    has_place = False
    runs_ahead = True

    async def __aiter__(self) -> AsyncIterator[Any]:
        pipe = self.pipe
        # Without requests there is nobody to tell whether the model is idle but who takes them.
        max_wait = 0.0 if pipe.max_wait == ADAPTIVE else pipe.max_wait
        ahead = TimedBatches(self.source, pipe.batch_size, max_wait)
        async with ahead.running(repr(pipe)), contextlib.aclosing(ahead.batches()) as batches:
            async for batch in batches:
                if len(batch) == pipe.batch_size or not pipe.drop_last:
                    yield pipe.batched(batch)
                del batch


def _checked_max_wait(value: Any) -> float | Literal["adaptive"] | None:
    if value is None or value == ADAPTIVE:
        return value  # type: ignore[no-any-return]  # one of the two
    if isinstance(value, str):
        raise ValueError(f'max_wait must be a number of seconds or "adaptive", got {value!r}')
    return checked_wait("max_wait", value)


def largest_batch(source: Any) -> int:
    """Return the size of a source's largest possible batch, or MOST if it is unknown."""
    if not is_ours(source):
        return MOST
    if isinstance(source, Batcher) and source.wrapper_class is list:
        return source.batch_size
    return MOST


@functional_datapipe("batch")
class MapBatcher(MapDataPipe[list[T]]):
    """Look up batches: batch ``i`` holds items ``i * batch_size`` and those that follow.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper(range(5)).batch(2)[1]
    [2, 3]
    """

    def __init__(
        self,
        datapipe: MapDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[T]], Any] = list,
    ) -> None:
        self.source = keyed_source(datapipe)
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = plain_function("wrapper_class", wrapper_class, takes=1)

    def __len__(self) -> int:
        return batch_count(len(self.source), self.batch_size, self.drop_last)

    def __getitem__(self, key: Any) -> Any:
        first = index_within(key, len(self)) * self.batch_size
        end = min(first + self.batch_size, len(self.source))
        batch = list(items_under(self.source, range(first, end)))
        return batch if self.wrapper_class is list else wrapped(batch, self.wrapper_class, self)


def batch_count(items: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches so many items make."""
    return items // batch_size if drop_last else -(-items // batch_size)


def index_within(key: Any, length: int) -> int:
    """Return ``key`` as an index from 0; one from the end may be negative, as in a list."""
    index = operator.index(key)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for {length} items")
    return index % length


def wrapped(batch: list[T], wrapper_class: Callable[[list[T]], Any], pipe: object) -> Any:
    """Return what a user's class makes of a batch."""
    return answer_of(pipe, wrapper_class, batch)
