"""W2: integers from two workers, one by one and in batches of 64.

    python -m tests.benchmarks.w2 [--rounds 5] [--only batches]

torch gets fewer of them, since an epoch of 100,000 would take it many seconds; a
prefetch factor of 16 is its best here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from tests.benchmarks.harness import Case, compare
from tests.benchmarks.measuring import one, ours, shard, sync_rate, torch_loader

ITEMS = 100_000
BATCHED_ITEMS = 1_000_000
TORCH_ITEMS = 10_000
TORCH_BATCHED_ITEMS = 400_000
BATCH_SIZE = 64


def graph(items: int) -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    return IterableWrapper(range(items)).sharding_filter()


def single(mode: str) -> float:
    return ours(graph(ITEMS), one, mode)


def batches(mode: str) -> float:
    return ours(graph(BATCHED_ITEMS).batch(BATCH_SIZE), len, mode)


def numbers(items: int) -> Any:
    def mine(worker: int, workers: int) -> Iterable[int]:
        return islice(range(items), worker, None, workers)

    return shard(mine)


def torch_single() -> float:
    return sync_rate(torch_loader(numbers(TORCH_ITEMS), prefetch_factor=16), epochs=2)


def torch_batches() -> float:
    dataset = numbers(TORCH_BATCHED_ITEMS)
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "collate_fn": list}
    return sync_rate(torch_loader(dataset, prefetch_factor=16, **settings), len, epochs=2)


TORCH, TORCH_BATCHES = "torch DataLoader, single", "torch DataLoader, batches"
CASES = [
    Case("asyncloader, single, async for", single, args=("async",)),
    Case("asyncloader, single, uvloop", single, args=("uvloop",), needs=("uvloop",)),
    Case("asyncloader, single, for", single, args=("sync",)),
    Case(TORCH, torch_single, needs=("torch",)),
    Case("asyncloader, batches, async for", batches, args=("async",)),
    Case("asyncloader, batches, for", batches, args=("sync",)),
    Case(TORCH_BATCHES, torch_batches, needs=("torch",)),
]

if __name__ == "__main__":
    compare(CASES, unit="items/s", against=[TORCH, TORCH_BATCHES])
