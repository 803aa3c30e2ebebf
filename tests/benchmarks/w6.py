"""W6: seconds until the first item is there, with two workers; W7: an epoch of 100 items.

    python -m tests.benchmarks.w6 [--rounds 5]

torch is imported before the clock starts where it is the subject; a graph of ours that
needs no torch does not import it at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from tests.benchmarks.harness import Case, compare
from tests.benchmarks.measuring import WORKERS, worker_loader

ITEMS = 100
EPOCHS = 50


def graph() -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    return IterableWrapper(range(ITEMS)).sharding_filter()


def first(method: str | None) -> float:
    return asyncio.run(first_item(method))


def second(method: str | None) -> float:
    """Return the time of a second loader in a process."""
    asyncio.run(first_item(method))
    return asyncio.run(first_item(method))


def first_item_with_torch(method: str | None) -> float:
    import torch  # noqa: F401  - workers are to have it as well

    return second(method)


async def first_item(method: str | None) -> float:
    began = time.perf_counter()
    async with worker_loader(graph(), method=method) as loader:
        await anext(aiter(loader))
        return time.perf_counter() - began


def torch_first(method: str) -> float:
    with torch_loader(method) as loader:
        began = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - began


def torch_second(method: str) -> float:
    torch_first(method)
    return torch_first(method)


def epoch(mode: str) -> float:
    """Return the milliseconds of a middling epoch."""
    if mode == "sync":
        with worker_loader(graph()) as loader:
            return _sync_epochs(loader)
    return asyncio.run(_async_epochs())


async def _async_epochs() -> float:
    spent = []
    async with worker_loader(graph()) as loader:
        for _ in range(EPOCHS):
            began = time.perf_counter()
            assert len([item async for item in loader]) == ITEMS
            spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


def torch_epoch() -> float:
    with torch_loader("fork") as loader:
        return _sync_epochs(loader)


def _sync_epochs(loader: Iterable[Any]) -> float:
    spent = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        assert len(list(loader)) == ITEMS
        spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


@contextmanager
def torch_loader(method: str) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    yield DataLoader(
        range(ITEMS),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context=method,
    )


FIRST = [
    Case("asyncloader, template, first loader", first, args=(None,)),
    Case("asyncloader, template, second loader", second, args=(None,)),
    Case("asyncloader, template, torch imported", first_item_with_torch, args=(None,)),
    Case("asyncloader, fork", second, args=("fork",)),
    Case("asyncloader, spawn", first, args=("spawn",)),
    Case("torch, fork", torch_second, args=("fork",)),
    Case("torch, forkserver, second loader", torch_second, args=("forkserver",)),
    Case("torch, spawn", torch_first, args=("spawn",)),
]
SHORT = [
    Case("asyncloader, async for", epoch, args=("async",)),
    Case("asyncloader, for", epoch, args=("sync",)),
    Case("torch DataLoader", torch_epoch),
]

if __name__ == "__main__":
    compare(FIRST, unit="s", against=[case.name for case in FIRST if "torch," in case.name])
    compare(SHORT, unit="ms", against=["torch DataLoader"])
