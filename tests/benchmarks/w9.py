"""W9: the longest gap of a ticker in the caller's loop while a slow graph loads.

The ticker sleeps for 1 ms at a time; a gap is the time between two of its turns, from
before the loader starts until after it has closed. The graph holds the GIL for 5 ms per
item. "limit: nothing to load" is what the machine does to a ticker that is alone. torch's
DataLoader is made in the loop, as its users do, and each item is waited for in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.measuring import loop_factory
from tests.benchmarks.sizes import sized

ITEMS = sized(200, 20)
ITEM_SECONDS = 0.005


def compute(item: int) -> int:
    """Hold the GIL for 5 ms, in bytecode."""
    end = time.perf_counter() + ITEM_SECONDS
    while time.perf_counter() < end:
        pass
    return item


def graph() -> Any:
    pipe = IterableWrapper(range(ITEMS)).shuffle(buffer_size=16).sharding_filter()
    return pipe.map(compute).batch(4)


async def load(datapipe: Any) -> None:
    async with DataLoader2(datapipe) as loader:
        async for _ in loader:
            pass


async def load_plain() -> None:
    await load(graph())


async def load_ahead() -> None:
    await load(graph().prefetch(4))


async def load_in_workers() -> None:
    await load_with(MultiProcessingReadingService(2))


async def load_in_forks() -> None:
    await load_with(MultiProcessingReadingService(2, "fork"))


async def load_with(service: Any) -> None:
    """Start workers, run two epochs of small items and of tensors, and close."""
    async with DataLoader2(graph().map(small_and_large), reading_service=service) as loader:
        for _ in range(2):
            async for _ in loader:
                pass


def small_and_large(batch: Any) -> Any:
    return batch, bytes(1 << 20)


async def load_with_torch(method: str) -> None:
    """Run two epochs as load_with does; next is called in a thread."""
    from torch.utils.data import DataLoader

    settings: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(
        Slow(), batch_size=4, collate_fn=small_and_large, multiprocessing_context=method, **settings
    )
    for _ in range(2):
        items = iter(loader)
        while await asyncio.to_thread(next, items, None) is not None:
            pass


class Slow:
    """The items of the graph, by their number."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int) -> int:
        return compute(number)


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


WORK: dict[str, Callable[[], Any]] = {
    "nothing": load_nothing,
    "plain": load_plain,
    "ahead": load_ahead,
    "workers": load_in_workers,
    "forks": load_in_forks,
    "torch": load_with_torch,
}


def gap(mode: str, work: str, *settings: str) -> float:
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(worst_gap_while(partial(WORK[work], *settings)))


def torch_gap(method: str) -> float:
    import torch.utils.data  # noqa: F401  - before the clock starts

    return gap("async", "torch", method)


FOR, WORKERS_ = "asyncloader, in-process", "asyncloader, 2 workers"
ALONE = "limit: nothing to load"
UVLOOP = ("uvloop",)
CASES = [
    Case(ALONE, gap, args=("async", "nothing")),
    Case(FOR, gap, args=("async", "plain")),
    Case("asyncloader, in-process, prefetch(4)", gap, args=("async", "ahead")),
    Case(WORKERS_, gap, args=("async", "workers")),
    Case("asyncloader, 2 workers by fork", gap, args=("async", "forks")),
    Case("limit: nothing to load, uvloop", gap, UVLOOP, ("uvloop", "nothing")),
    Case("asyncloader, in-process, uvloop", gap, UVLOOP, ("uvloop", "plain")),
    Case("asyncloader, in-process, prefetch(4), uvloop", gap, UVLOOP, ("uvloop", "ahead")),
    Case("asyncloader, 2 workers, uvloop", gap, UVLOOP, ("uvloop", "workers")),
    Case("torch DataLoader, fork, next in a thread", torch_gap, ("torch",), ("fork",)),
    Case("torch DataLoader, forkserver, next in a thread", torch_gap, ("torch",), ("forkserver",)),
]
COMPARISONS = [
    Comparison(
        "W9: the longest gap of the event loop from start to close",
        "ms",
        CASES,
        against=[ALONE, CASES[-1].name],
        targets=[Target(FOR, 20, at_most=True), Target(WORKERS_, 20, at_most=True)],
        less_is_better=True,
    )
]
