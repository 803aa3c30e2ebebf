"""Several sources side by side.

This file is about pipes that take an item from each of their sources in turn:
zip, zip_longest, mux and mux_longest, and the map form of zip.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeVar

from asyncloader.datapipes.arguments import iterable_sources, keyed_sources
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, Pass, functional_datapipe
from asyncloader.datapipes.batching import index_within
from asyncloader.datapipes.iterating import close_items

T = TypeVar("T")


@contextlib.contextmanager
def readers(sources: tuple[Iterable[T], ...]) -> Iterator[list[Iterator[T]]]:
    """Give an iterator for each source and close them all, also those not read to the end."""
    with contextlib.ExitStack() as stack:
        iterators = []
        for source in sources:
            iterators.append(iter(source))
            stack.callback(close_items, iterators[-1])
        yield iterators


@functional_datapipe("zip")
class Zipper(IterDataPipe[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(9)).zip(IterableWrapper("ab")))
    [(0, 'a'), (1, 'b')]
    """

    def __init__(self, *datapipes: Iterable[Any]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def new_pass(self) -> ZipPass:
        return ZipPass(self.sources)


@dataclass
class ZipPass(Pass[tuple[Any, ...]]):
    """One pass over a Zipper, which knows how many tuples it has yielded."""

    sources: tuple[Iterable[Any], ...]
    yielded: int = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with readers(self.sources) as iterators:
            for items in zip(*iterators, strict=False):
                self.yielded += 1
                yield items


@functional_datapipe("zip_longest")
class ZipperLongest(IterDataPipe[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the longest ends.

    A source that ended before is represented by ``fill_value``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(2)).zip_longest(IterableWrapper("a"), fill_value="-"))
    [(0, 'a'), (1, '-')]
    """

    def __init__(self, *datapipes: Iterable[Any], fill_value: Any = None) -> None:
        self.sources = iterable_sources(datapipes)
        self.fill_value = fill_value

    def __len__(self) -> int:
        return max(map(len, self.sources))

    def new_pass(self) -> ZipLongestPass:
        return ZipLongestPass(self.sources, self.fill_value)


@dataclass
class ZipLongestPass(Pass[tuple[Any, ...]]):
    """One pass over a ZipperLongest, which knows how many tuples it has yielded."""

    sources: tuple[Iterable[Any], ...]
    fill_value: Any
    yielded: int = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with readers(self.sources) as iterators:
            for items in zip_longest(*iterators, fillvalue=self.fill_value):
                self.yielded += 1
                yield items


@functional_datapipe("mux")
class Multiplexer(IterDataPipe[T]):
    """Yield one item from each source in turn, in whole rounds, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux(IterableWrapper([10, 11])))
    [0, 10, 1, 11]
    """

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources)) * len(self.sources)

    def new_pass(self) -> MuxPass[T]:
        return MuxPass(self.sources)


@dataclass
class MuxPass(Pass[T]):
    """One pass over a Multiplexer: the rounds taken, and the turns had in the last of them."""

    sources: tuple[Iterable[T], ...]
    rounds: int = 0
    turn: int = 0

    def __iter__(self) -> Iterator[T]:
        with readers(self.sources) as iterators:
            # A round is yielded only when every source has given its item.
            for items in zip(*iterators, strict=False):
                self.rounds += 1
                for self.turn, item in enumerate(items, 1):
                    yield item


@functional_datapipe("mux_longest")
class MultiplexerLongest(IterDataPipe[T]):
    """Yield one item from each source in turn, without those that ended, until all have.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux_longest(IterableWrapper([10])))
    [0, 10, 1, 2]
    """

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def new_pass(self) -> MuxLongestPass[T]:
        return MuxLongestPass(self.sources)


@dataclass
class MuxLongestPass(Pass[T]):
    """One pass over a MultiplexerLongest: whose turn it was last, and who has ended."""

    sources: tuple[Iterable[T], ...]
    yielded: int = 0
    turn: int = 0
    ended: set[int] = field(default_factory=set)

    def __iter__(self) -> Iterator[T]:
        with readers(self.sources) as iterators:
            while len(self.ended) < len(iterators):
                for turn, iterator in enumerate(iterators):
                    if turn in self.ended:
                        continue
                    item = next(iterator, _END)
                    if item is _END:
                        self.ended.add(turn)
                        continue
                    self.turn = turn
                    self.yielded += 1
                    yield item


_END: Any = object()


@functional_datapipe("zip")
class MapZipper(MapDataPipe[tuple[Any, ...]]):
    """Look up tuples of one item from each source, under the same key.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper("ab").zip(SequenceWrapper(range(9)))[1]
    ('b', 1)
    """

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        self.sources = keyed_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        if isinstance(key, int) and key < 0:
            # Counted from the end, the same key would mean another item in each source.
            key = index_within(key, len(self))
        return tuple(source[key] for source in self.sources)
