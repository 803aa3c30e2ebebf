"""The caller's loop goes on while a loader works."""

import asyncio
import time

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.needs import LOOPS

# On a quiet machine no gap is over 20 ms; `python -m tests.benchmarks w9` prints it.
# A busy machine adds its own gaps, so the bound here only tells a blocked loop from a free one,
# which is held up in every attempt.
BOUND_SECONDS = 0.4
ATTEMPTS = 10


def slow(item):
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        pass
    return item


def sleeping(item):
    time.sleep(0.5)
    return item


async def worst_gap_while(work) -> float:
    """Return the longest time between two turns of a ticker while ``work`` runs."""
    worst = 0.0

    async def tick():
        nonlocal worst
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst = max(worst, now - last)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await work
    ticker.cancel()
    await asyncio.wait([ticker])
    return worst


async def load(graph) -> None:
    async with DataLoader2(graph) as loader:
        async for _ in loader:
            pass


@pytest.mark.soak
@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize(
    "graph",
    [
        IterableWrapper(range(100)).map(slow),
        IterableWrapper(range(2)).map(sleeping),
        IterableWrapper(range(2)).map(sleeping).prefetch(2).batch(2),
    ],
    ids=["computing", "sleeping", "mixed"],
)
def test_a_slow_graph_does_not_hold_up_the_loop(factory, graph):
    with asyncio.Runner(loop_factory=factory) as runner:
        gaps = (runner.run(worst_gap_while(load(graph))) for _ in range(ATTEMPTS))
        assert any(gap < BOUND_SECONDS for gap in gaps)
