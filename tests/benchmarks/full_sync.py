"""Equal counts on two ranks: microseconds for each of 100,000 small items.

    python -m tests.benchmarks.full_sync [--rounds 5]

fullsync is measured by itself and at the end of a loader, beside a pipe that asks the other
rank for every single item, by one all_reduce; of those it gets fewer. Without either, an
epoch of the same items shows what the rest costs.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from asyncloader import IterDataPipe
from tests.benchmarks.harness import Case, compare

RANKS = 2
ITEMS = 100_000
ASKED_ITEMS = 5_000


class AskForEach(IterDataPipe[Any]):
    """Yield an item when all ranks have one, as they say for each item."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        import torch
        import torch.distributed as dist

        for item in self.source:
            ready = torch.ones((), dtype=torch.int64)
            dist.all_reduce(ready)
            assert ready.item() == RANKS
            yield item


def on_two_ranks(what: str) -> float:
    """Return what rank 0 measures."""
    with tempfile.TemporaryDirectory() as folder:
        told = [[sys.executable, "-m", __name__, what, str(rank), folder] for rank in range(RANKS)]
        ranks = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in told]
        outputs = [rank.communicate()[0] for rank in ranks]
        assert not any(rank.returncode for rank in ranks)
        return float(outputs[0])


def be_a_rank(what: str, rank: int, folder: str) -> None:
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    print(asyncio.run(measured(what)))
    dist.destroy_process_group()


async def measured(what: str) -> float:
    """Return the microseconds for an item of a second epoch."""
    from asyncloader.datapipes.iter import IterableWrapper

    count = ASKED_ITEMS if what == "all_reduce" else ITEMS
    numbers = IterableWrapper(range(count))
    if what == "pipe":
        pipe = numbers.fullsync()
        await seconds_of(pipe, count)
        return 1e6 * await seconds_of(pipe, count) / count
    async with loader_of(numbers, what) as loader:
        await seconds_of(loader, count)
        return 1e6 * await seconds_of(loader, count) / count


def loader_of(numbers: Any, what: str) -> Any:
    from asyncloader import DataLoader2, DistributedReadingService
    from asyncloader.datapipes.iter import SHARDING_PRIORITIES

    if what == "service":
        graph = numbers.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
        return DataLoader2(graph, reading_service=DistributedReadingService())
    return DataLoader2(AskForEach(numbers) if what == "all_reduce" else numbers)


async def seconds_of(items: Any, count: int) -> float:
    began = time.perf_counter()
    taken = 0
    async for _ in items:
        taken += 1
    assert taken == count
    return time.perf_counter() - began


ASKED = "one all_reduce for each item"
CASES = [
    Case("fullsync, by DistributedReadingService", on_two_ranks, ("torch",), ("service",)),
    Case("fullsync, by itself", on_two_ranks, ("torch",), ("pipe",)),
    Case(ASKED, on_two_ranks, ("torch",), ("all_reduce",)),
    Case("no ranks asked", on_two_ranks, ("torch",), ("nothing",)),
]

if __name__ == "__main__":
    if len(sys.argv) == 4:
        be_a_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        compare(CASES, unit="us/item", against=[ASKED])
