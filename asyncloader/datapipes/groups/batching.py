"""Items put together in batches.

This file is about batch, in its iter and map forms.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import MOST
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.groups.timed_batching import timed_batches
from asyncloader.datapipes.items.converting import MapToIterConverter
from asyncloader.datapipes.items.sources import IterableWrapper, SequenceWrapper
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_wait,
    iterable_source,
    keyed_source,
)
from asyncloader.datapipes.pipe.base import IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import plain_function
from asyncloader.datapipes.pipe.run import Pass, Run, can_share, is_ours, picks
from asyncloader.datapipes.pipe.share import Share

T = TypeVar("T")


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
    no length, and no snapshot.

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
        max_wait: float | None = None,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = plain_function("wrapper_class", wrapper_class, takes=1)
        self.across_workers = across_workers
        self.max_wait = None if max_wait is None else checked_wait("max_wait", max_wait)

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
            raise TypeError(f"{self!r} closes batches by the clock and has no length")
        return batch_count(len(self.source), self.batch_size, self.drop_last)

    def new_pass(self, run: Run[Any]) -> Pass[Any]:
        return TimedBatchPass(run) if self.goes_by_clock() else BatchPass(run)

    def picks(self) -> bool:
        return picks(self.source)

    def can_share(self) -> bool:
        return can_share(self.source) and not self.goes_by_clock()

    def iter_share(self, run: Run[Any], share: Share, cursors: Cursors) -> Iterator[Any]:
        begun = BatchPass(run)
        run.note(begun)
        return begun.batches(begun.source.begin_share(share.of_batches(self.batch_size), cursors))

    def batched(self, items: list[T]) -> Any:
        """Return what is yielded for the items of one batch."""
        return items if self.wrapper_class is list else wrapped(items, self.wrapper_class, self)


@dataclass
class BatchPass(Pass[Any]):
    """One pass over a Batcher, whose place is that of its source."""

    marks = ()

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches(self.source.begin())

    def batches(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of these items, and close them."""
        pipe, size = self.pipe, self.pipe.batch_size
        try:
            while batch := list(islice(items, size)):
                if len(batch) < size and pipe.drop_last:
                    return
                yield pipe.batched(batch)
                # The batch just yielded is not kept alive here while the next is made.
                del batch
        finally:
            close_items(items)

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.source.resume(position * self.pipe.batch_size, cursors)
        return 0

    def iter_at(self, positions: list[int]) -> Iterator[Any]:
        size = self.pipe.batch_size
        self.source.pick([size * batch + item for batch in positions for item in range(size)])
        return iter(self)


@dataclass
class TimedBatchPass(Pass[Any]):
    """One pass over a Batcher that closes batches by the clock."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        pipe = self.pipe
        batches = timed_batches(self.source.abegin(), pipe.batch_size, pipe.max_wait)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                if len(batch) == pipe.batch_size or not pipe.drop_last:
                    yield pipe.batched(batch)
                del batch


def most_items(source: Any) -> int:
    """Return how many items a source has at most, where they are plain data; otherwise MOST."""
    data: Any = None
    if not is_ours(source):
        return MOST
    if isinstance(source, Batcher):
        return -(-most_items(source.source) // source.batch_size)
    if isinstance(source, OneToOne):
        return most_items(source.source)
    # A list that is read as it is may grow.
    if isinstance(source, IterableWrapper) and source.deepcopy:
        data = source.iterable
    elif isinstance(source, MapToIterConverter) and isinstance(source.source, SequenceWrapper):
        data = source.source.sequence if source.indices is None else source.indices
    return len(data) if isinstance(data, list | tuple | range | dict | set | str | bytes) else MOST


def largest_batch(source: Any) -> int:
    """Return how many items a source's batches have at most, as far as that is known."""
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
        batch = [self.source[index] for index in range(first, end)]
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
