"""Items that are kept in memory for later passes.

This file is about in_memory_cache, in its iter and map forms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.datapipes.patterns import add_cursors, closing_items
from asyncloader.datapipes.prefetching import weight_of
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.sources import iterable_source, keyed_source

T = TypeVar("T")

_MEGABYTE = 1024 * 1024


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(IterDataPipe[T]):
    """Yield the source's items, and from the second pass on those kept in memory.

    At most ``size`` megabytes are kept (default: all), of the items that came last; those
    before them are read again each time. A pass that was not read to its end keeps none.
    Every process keeps its own, and a copy of the pipe begins with none. Put this before
    what is random: what is kept is the same in every pass, and in its order. A loader refuses
    it behind a shuffle: a process that begins later would keep another order. It cannot see
    numbers that your own functions draw before it: those are kept as well, and a worker that
    is replaced, or a program that resumes, draws others.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> cached = IterableWrapper([1, 2]).map(str).in_memory_cache()
    >>> list(cached), list(cached)
    (['1', '2'], ['1', '2'])
    """

    def __init__(self, source_dp: Iterable[T], size: int | None = None) -> None:
        self.source = iterable_source(source_dp)
        self.size = None if size is None else checked_count("size", size, at_least=0)
        self.kept: Kept[T] | None = None

    def __len__(self) -> int:
        return len(self.source) if self.kept is None else self.kept.count

    def new_pass(self, edge: Edge[Any]) -> MemoryCachePass[T]:
        return MemoryCachePass(edge)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kept": None}


class Kept(Generic[T]):
    """The last of a source's items, as many as there is room for."""

    def __init__(self, source: Edge[T], limit: int | None) -> None:
        self.limit = limit
        self.items: deque[T] = deque()
        #: How many items came, with those that are kept no longer.
        self.count = 0
        self._weights: deque[int] = deque()
        self._weight = 0
        #: Knows where the source stood at the items.
        self.source = source

    @property
    def left_out(self) -> int:
        """How many items are kept no longer."""
        return self.count - len(self.items)

    def add(self, item: T) -> None:
        """Keep an item, and let the oldest go if there is too little room."""
        self.items.append(item)
        self.count += 1
        if self.limit is not None:
            self._weights.append(weight_of(item))
            self._weight += self._weights[-1]
            while self._weight > self.limit:
                self.items.popleft()
                self._weight -= self._weights.popleft()


@dataclass
class MemoryCachePass(Pass[T]):
    """One pass over an InMemoryCacheHolder, which reads the source or what is kept of it."""

    counts_edges = True

    def __post_init__(self) -> None:
        self.kept = self.pipe.kept

    @property
    def yielded(self) -> int:
        """How many items were yielded."""
        return self.edge.made()

    def __iter__(self) -> Iterator[T]:
        return self._made() if self.kept is None else self._remembered(self.kept)

    def _made(self) -> Iterator[T]:
        pipe = self.pipe
        limit = None if pipe.size is None else pipe.size * _MEGABYTE
        kept: Kept[T] = Kept(self.source, limit)
        is_whole = self.yielded == 0
        for item in self.source.begin():
            if is_whole:
                kept.add(item)
            yield item
        if is_whole:
            pipe.kept = kept

    def _remembered(self, kept: Kept[T]) -> Iterator[T]:
        first = self.yielded
        if first < kept.left_out:
            items = self.source.begin()
            with closing_items(items):
                yield from islice(items, kept.left_out - first)
        yield from islice(kept.items, max(0, first - kept.left_out), None)

    def put_source_cursors(self, into: Cursors) -> None:
        if self.kept is not None and self.yielded > self.kept.left_out:
            add_cursors(self.kept.source.place(self.yielded), into)
        else:
            self.source.put_cursors(into)

    def needs(self) -> int:
        # What is kept is in later passes what the source would have yielded there.
        return 0

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if self.kept is None or position < self.kept.left_out:
            self.source.resume(position, cursors)
        return 0


@functional_datapipe("in_memory_cache")
class MapInMemoryCacheHolder(MapDataPipe[T]):
    """Look each item up once, and from then on in memory.

    Every process keeps its own items, and a copy of the pipe begins with none.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> cached = SequenceWrapper([1, 2]).map(str).in_memory_cache()
    >>> cached[1] is cached[1]
    True
    """

    def __init__(self, source_dp: MapDataPipe[T]) -> None:
        self.source = keyed_source(source_dp)
        self._kept: dict[Any, T] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> T:
        if key not in self._kept:
            # Two threads that get here at once both return what the first one stored.
            self._kept.setdefault(key, self.source[key])
        return self._kept[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}}
