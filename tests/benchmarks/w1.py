"""W1: 200,000 integers, each changed by a function, in batches of 64, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import EPOCHS, our_rate, ours, peer_rate, sync_rate
from tests.benchmarks.peers.catalogue import IN_PROCESS, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

ITEMS = sized(204_800, 2_048)
BATCH_SIZE = 64


def add_one(number: int) -> int:
    return number + 1


JOB = Job(ITEMS, add_one, BATCH_SIZE)


class Plain:
    """What Python does without a loader: an epoch is a chain of generators."""

    def __init__(self, batched: Callable[[Iterable[int]], Iterator[list[int]]]) -> None:
        self.batched = batched

    def __iter__(self) -> Iterator[list[int]]:
        return self.batched(mapped(range(ITEMS)))


def mapped(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        yield add_one(number)


def appended(numbers: Iterable[int]) -> Iterator[list[int]]:
    batch = []
    for number in numbers:
        batch.append(number)
        if len(batch) == BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


def plain(batched: Callable[[Iterable[int]], Iterator[list[int]]]) -> float:
    return sync_rate(Plain(batched), len)


def one_call_a_batch(mode: str) -> float:
    """Return the rate where the function is given all numbers of a batch, as peers can do."""
    from asyncloader.datapipes.iter import IterableWrapper

    function, values = JOB.calls()
    return ours(IterableWrapper(values).map(function), len, mode, EPOCHS, workers=0)


APPEND, ISLICE = "limit: plain generators, append", "limit: plain generators, islice"
FOR, ASYNC = "asyncloader, for", "asyncloader, async for"
CASES = [
    Case(APPEND, plain, args=(appended,)),
    Case(ISLICE, plain, args=(JOB.batched,)),
    Case(FOR, our_rate, args=(JOB, "sync", len, EPOCHS, 0)),
    Case(ASYNC, our_rate, args=(JOB, "async", len, EPOCHS, 0)),
    Case("asyncloader, uvloop", our_rate, ("uvloop",), (JOB, "uvloop", len, EPOCHS, 0)),
    Case("asyncloader, one call a batch, for", one_call_a_batch, args=("sync",)),
    *cases(IN_PROCESS, peer_rate, JOB, len),
]
TARGETS = [Target(FOR, 0.75, APPEND), Target(ASYNC, 1, TORCH)]
COMPARISONS = [
    Comparison(
        "W1: integers, map and batch(64), in one process",
        "items/s",
        CASES,
        against=[APPEND, TORCH],
        targets=TARGETS,
    )
]
