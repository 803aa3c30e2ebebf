"""Graphs for the commands to be told of, and things that are none."""

from __future__ import annotations

from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper


def double(number: int) -> int:
    return 2 * number


def as_it_is(item: Any, device: Any) -> Any:
    return item


pipe = (
    IterableWrapper(range(100))
    .shuffle()
    .sharding_filter()
    .map(double)
    .pin_memory(pin_memory_fn=as_it_is)
)
loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(3))
dealt = IterableWrapper(range(100)).sharding_round_robin_dispatch(
    SHARDING_PRIORITIES.MULTIPROCESSING
)
dealt_and_doubled = dealt.map(double)
looked_up = SequenceWrapper(range(4)).map(double)
unborn: DataLoader2[Any] = DataLoader2(None)
nothing = None
numbers = [1, 2, 3]


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
