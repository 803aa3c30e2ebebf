"""Items in another order.

This file is about shuffle, in its iter and map forms, and in_batch_shuffle. Equal
seeds give equal orders, and a pass knows its seed and how many draws it has made
from it, so its place can be found again by drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from asyncloader.datapipes.arguments import (
    checked_count,
    checked_indices,
    iterable_source,
    keyed_source,
)
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, Pass, functional_datapipe
from asyncloader.datapipes.flattening import UnBatcher
from asyncloader.datapipes.permutation import permutation
from asyncloader.datapipes.randomness import Shuffling

T = TypeVar("T")


@functional_datapipe("shuffle")
class Shuffler(Shuffling, IterDataPipe[T]):
    """Yield the source's items in an order drawn from a seed.

    At most ``buffer_size`` items are held. The order is uniform where the whole
    source fits in the buffer, and local to the buffer otherwise. An
    ``unbatch_level`` other than 0 takes the source's batches apart first.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper(range(5)).shuffle().set_seed(1))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self, datapipe: Iterable[Any], *, buffer_size: int = 10000, unbatch_level: int = 0
    ) -> None:
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.unbatch_level = unbatch_level
        self.source = iterable_source(datapipe)
        if unbatch_level != 0:
            self.source = UnBatcher(datapipe, unbatch_level)

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self) -> ShufflePass[T]:
        if not self.shuffles:
            return ShufflePass(self.source, buffer_size=0, seed=0)
        return ShufflePass(self.source, self.buffer_size, self.next_seed())


@dataclass
class ShufflePass(Pass[T]):
    """One pass over a Shuffler: a buffer, and one draw from the seed for each item yielded.

    A pass without a buffer yields the source's items as they come.
    """

    source: Iterable[T]
    buffer_size: int
    seed: int
    taken: int = 0
    drawn: int = 0
    buffer: list[T] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[T]:
        buffer, draw = self.buffer, Random(self.seed).random
        try:
            for item in self.source:
                self.taken += 1
                if len(buffer) < self.buffer_size:
                    buffer.append(item)
                    continue
                # A product with a fraction is several times faster than randrange,
                # and its bias is of the order of buffer_size / 2**53.
                pick = int(draw() * self.buffer_size)
                buffer.append(item)
                self.drawn += 1
                yield _swapped_out(buffer, pick)
            while buffer:
                pick = int(draw() * len(buffer))
                self.drawn += 1
                yield _swapped_out(buffer, pick)
        finally:
            buffer.clear()


def _swapped_out(buffer: list[T], pick: int) -> T:
    # Swapping with the last item keeps a draw O(1).
    buffer[pick], buffer[-1] = buffer[-1], buffer[pick]
    return buffer.pop()


@functional_datapipe("shuffle", on=MapDataPipe)
class MapShuffler(Shuffling, IterDataPipe[T]):
    """Yield the items of a map pipe in an order drawn from a seed.

    All items are shuffled, whatever their number, but none is held: each is looked
    up when its turn comes, and the order is computed as it is needed. With
    ``indices`` only those keys are looked up.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> sorted(SequenceWrapper("abc").shuffle().set_seed(1))
    ['a', 'b', 'c']
    """

    def __init__(self, datapipe: MapDataPipe[T], *, indices: Sequence[Any] | None = None) -> None:
        self.source = keyed_source(datapipe)
        self.indices = checked_indices(indices)

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def new_pass(self) -> MapShufflePass[T]:
        keys = range(len(self.source)) if self.indices is None else self.indices
        if not self.shuffles:
            return MapShufflePass(self.source, keys, range(len(keys)), seed=0)
        seed = self.next_seed()
        return MapShufflePass(self.source, keys, permutation(len(keys), seed), seed)


@dataclass
class MapShufflePass(Pass[T]):
    """One pass over a MapShuffler, which can go on from any position at once."""

    source: MapDataPipe[T]
    keys: Sequence[Any] = field(repr=False)
    order: Sequence[int] = field(repr=False)
    seed: int
    yielded: int = 0

    def __iter__(self) -> Iterator[T]:
        for position in range(self.yielded, len(self.order)):
            item = self.source[self.keys[self.order[position]]]
            self.yielded += 1
            yield item


@functional_datapipe("in_batch_shuffle")
class InBatchShuffler(Shuffling, IterDataPipe[list[T]]):
    """Yield each batch as a list in an order drawn from a seed; the batches keep theirs.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> batches = IterableWrapper(range(6)).batch(3).in_batch_shuffle()
    >>> [sorted(batch) for batch in batches]
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, datapipe: Iterable[Sequence[T]]) -> None:
        self.source = iterable_source(datapipe)

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self) -> InBatchPass[T]:
        return InBatchPass(self.source, self.shuffles, self.next_seed() if self.shuffles else 0)


@dataclass
class InBatchPass(Pass[list[T]]):
    """One pass over an InBatchShuffler: the batches so far, and the items drawn for them."""

    source: Iterable[Sequence[T]]
    shuffles: bool
    seed: int
    yielded: int = 0
    drawn: int = 0

    def __iter__(self) -> Iterator[list[T]]:
        random = Random(self.seed)
        for batch in self.source:
            self.yielded += 1
            if self.shuffles:
                self.drawn += len(batch)
                yield random.sample(batch, len(batch))
            else:
                yield batch  # type: ignore[misc]  # what the source yields, as it is
