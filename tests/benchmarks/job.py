"""The work that every loader is given: a function of each number, and maybe batches.

This file is about ``Job``, which is plain data that can be pickled, so that every peer
makes the same items of it, in the process that it makes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any


def itself(number: int) -> int:
    return number


@dataclass(frozen=True)
class Job:
    """Items of ``function`` over ``range(count)``, in batches where ``batch_size`` says so.

    ``nbytes`` is how large what is handed over may be, for those who must be told; ``held``
    is how many of them the consumer keeps.
    """

    count: int
    function: Callable[[int], Any] = itself
    batch_size: int = 0
    collate: Callable[[list[Any]], Any] = list
    nbytes: int = 0
    held: int = 1

    def __len__(self) -> int:
        """Return how many things are handed over: batches, or items."""
        return -(-self.count // self.batch_size) if self.batch_size else self.count

    @property
    def amount(self) -> int:
        """Return what a consumer takes of an epoch: bytes of items, or their number."""
        return self.count * self.nbytes if self.nbytes and not self.batch_size else self.count

    def part(self, worker: int = 0, workers: int = 1) -> Iterator[Any]:
        """Return the share of one worker: its items, or its batches."""
        items = map(self.function, range(worker, self.count, workers))
        return self.batched(items) if self.batch_size else items

    def batched(self, items: Iterable[Any]) -> Iterator[Any]:
        items = iter(items)
        while batch := list(islice(items, self.batch_size)):
            yield self.collate(batch)

    def batch_of(self, numbers: Iterable[int]) -> Any:
        """Return the batch of some numbers, as one call of a worker makes it."""
        return self.collate([self.function(number) for number in numbers])

    def numbers_of_batches(self) -> list[range]:
        """Return the numbers of every batch."""
        starts = range(0, self.count, self.batch_size)
        return [range(start, min(start + self.batch_size, self.count)) for start in starts]

    def calls(self) -> tuple[Callable[[Any], Any], Iterable[Any]]:
        """Return a function, and what to call it with for one thing to hand over each."""
        if self.batch_size:
            return self.batch_of, self.numbers_of_batches()
        return self.function, range(self.count)


@dataclass(frozen=True)
class Part:
    """The share of one worker, made afresh at every iteration."""

    job: Job
    worker: int = 0
    workers: int = 1

    def __iter__(self) -> Iterator[Any]:
        return self.job.part(self.worker, self.workers)


def forever(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values again and again."""
    return chain.from_iterable(repeat(values))


class Repeated:
    """Epochs cut from an endless stream, for loaders whose workers end with an epoch."""

    def __init__(self, stream: Iterable[Any], length: int) -> None:
        self.stream = iter(stream)
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return islice(self.stream, self.length)
