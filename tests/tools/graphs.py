"""Graphs for the commands to be told of, and things that are none."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService, RayReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper


def double(number: int) -> int:
    return 2 * number


async def soon_double(number: int) -> int:
    return 2 * number


def as_it_is(item: Any, device: Any) -> Any:
    return item


doubled = IterableWrapper(range(100)).shuffle().sharding_filter().map(double)
pipe = doubled.pin_memory(pin_memory_fn=as_it_is)

loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(3))
on_a_cluster = DataLoader2(pipe, reading_service=RayReadingService(3))
dealt = IterableWrapper(range(100)).sharding_round_robin_dispatch(
    SHARDING_PRIORITIES.MULTIPROCESSING
)
dealt_and_doubled = dealt.map(double)
circle: Any = dealt.map(double)
circle.source = circle.batch(2)
as_ready = IterableWrapper(range(9)).async_map(soon_double, ordered=False).sharding_filter()
refused = as_ready.zip(as_ready).batch(2, max_wait=1.0)
unanswered = Feed().filter(bool).batch(4)
looked_up = SequenceWrapper(range(4)).map(double)
unborn: DataLoader2[Any] = DataLoader2(None)
nothing = None
numbers = [1, 2, 3]


def failing_on(number: int) -> int:
    raise KeyError(f"no number {number}")


go = threading.Event()


def stuck_on(number: int) -> int:
    go.wait()
    return number


class Misled(IterDataPipe[int]):
    """Has something else in the attribute that says what it reads."""

    edges = (1, 2)


class KeptAtHome(IterDataPipe[int]):
    """May not be copied into workers."""

    edges = ()

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[int]:
        yield from range(100)


broken = IterableWrapper(range(4)).sharding_filter().map(failing_on)
stuck = IterableWrapper(range(4)).sharding_filter().map(stuck_on)
unsharded = IterableWrapper(range(100)).map(double)
kept = KeptAtHome().map(double)
misled = Misled()
empty = IterableWrapper([])
once = IterableWrapper(iter(range(100)))
requests = Feed(max_pending=4).map(double)


MEBIBYTE = bytes(1 << 20)


def slow(number: int) -> int:
    """Compute for a while, without the GIL."""
    for _ in range(4):
        hashlib.sha256(MEBIBYTE)
    return number


async def soon_done(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


class SlowNumbers(IterDataPipe[int]):
    """A source that takes the time."""

    edges = ()

    def __iter__(self) -> Iterator[int]:
        yield from map(slow, range(100))


class Own(IterDataPipe[Any]):
    """Counts nothing."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


hundred = IterableWrapper(range(100))
slow_map = hundred.map(slow).map(str).batch(4)
slow_source = SlowNumbers().map(str)
slow_look_up = SequenceWrapper(range(100)).map(slow).to_iter_datapipe()
one_branch, other_branch = hundred.map(slow).fork(2)
slow_fork = one_branch.map(str).zip(other_branch)
slow_prefetched = SlowNumbers().prefetch(4).map(str)
slow_calls_source = SlowNumbers().thread_map(str, concurrency=2)
slow_calls = hundred.thread_map(slow, concurrency=1).map(str)
slow_awaited = hundred.async_map(soon_done, concurrency=2)
own_of_own = Own(Own(IterableWrapper(range(4))))


def new_pipe() -> Any:
    return pipe.batch(4)


def new_list() -> list[int]:
    return [1]


def of_path(path: str) -> Any:
    return pipe


async def soon() -> Any:
    return pipe


def failing() -> Any:
    raise OSError("no such data")


class Holder:
    pipe = pipe
