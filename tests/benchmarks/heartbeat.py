"""The longest gap of a ticker in the caller's loop while a slow graph loads in-process.

The ticker sleeps for 1 ms at a time; a gap is the time between two of its turns, from
before the loader starts until after it has closed. The graph holds the GIL for 5 ms per
item. "nothing to load" is what the machine does to a ticker that is alone.

    python -m tests.benchmarks.heartbeat [--rounds 5]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.harness import Case, compare

ITEMS = 200
ITEM_SECONDS = 0.005

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def compute(item: int) -> int:
    """Hold the GIL for 5 ms, in bytecode."""
    end = time.perf_counter() + ITEM_SECONDS
    while time.perf_counter() < end:
        pass
    return item


def graph() -> Any:
    return IterableWrapper(range(ITEMS)).shuffle(buffer_size=16).map(compute).batch(4)


async def load(datapipe: Any) -> None:
    async with DataLoader2(datapipe) as loader:
        async for _ in loader:
            pass


async def load_plain() -> None:
    await load(graph())


async def load_ahead() -> None:
    await load(graph().prefetch(4))


async def load_nothing() -> None:
    await asyncio.sleep(ITEMS * ITEM_SECONDS)


async def worst_gap_while(work: Callable[[], Any]) -> float:
    """Return the longest gap in milliseconds."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst = max(worst, now - last)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    await work()
    await asyncio.sleep(0.02)
    ticker.cancel()
    await asyncio.wait([ticker])
    return 1000 * worst


def gap(loop_factory: LoopFactory, work: Callable[[], Any]) -> float:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(worst_gap_while(work))


def uvloop_factory() -> LoopFactory:
    import uvloop

    return uvloop.new_event_loop


def asyncio_alone() -> float:
    return gap(asyncio.new_event_loop, load_nothing)


def asyncio_plain() -> float:
    return gap(asyncio.new_event_loop, load_plain)


def asyncio_ahead() -> float:
    return gap(asyncio.new_event_loop, load_ahead)


def uvloop_alone() -> float:
    return gap(uvloop_factory(), load_nothing)


def uvloop_plain() -> float:
    return gap(uvloop_factory(), load_plain)


def uvloop_ahead() -> float:
    return gap(uvloop_factory(), load_ahead)


CASES = [
    Case("asyncio, nothing to load", asyncio_alone),
    Case("asyncio, async for", asyncio_plain),
    Case("asyncio, async for, prefetch(4)", asyncio_ahead),
    Case("uvloop, nothing to load", uvloop_alone, needs=("uvloop",)),
    Case("uvloop, async for", uvloop_plain, needs=("uvloop",)),
    Case("uvloop, async for, prefetch(4)", uvloop_ahead, needs=("uvloop",)),
]

if __name__ == "__main__":
    compare(CASES, unit="ms")
