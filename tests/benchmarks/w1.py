"""W1: 200,000 integers, each changed by a function, in batches of 64, in one process.

python -m tests.benchmarks.w1 [--rounds 5]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from statistics import median
from typing import Any

from tests.benchmarks.harness import Case, compare

ITEMS = 200_000
BATCH_SIZE = 64
EPOCHS = 5


def add_one(number: int) -> int:
    return number + 1


def rate_of(epoch: Callable[[], int]) -> float:
    """Return the items per second of a middling epoch, after one to warm up."""
    assert epoch() == ITEMS
    return ITEMS / median(_seconds(epoch) for _ in range(EPOCHS))


def _seconds(epoch: Callable[[], int]) -> float:
    began = time.perf_counter()
    epoch()
    return time.perf_counter() - began


def count(batches: Iterable[Any]) -> int:
    return sum(len(batch) for batch in batches)


# Plain Python: the limits ---------------------------------------------------------------


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


def batched(numbers: Iterable[int]) -> Iterator[list[int]]:
    items = iter(numbers)
    while batch := list(islice(items, BATCH_SIZE)):
        yield batch


def plain() -> float:
    return rate_of(lambda: count(appended(mapped(range(ITEMS)))))


def plain_islice() -> float:
    return rate_of(lambda: count(batched(mapped(range(ITEMS)))))


# asyncloader ----------------------------------------------------------------------------


def new_loader() -> Any:
    from asyncloader import DataLoader2
    from asyncloader.datapipes.iter import IterableWrapper

    return DataLoader2(IterableWrapper(range(ITEMS)).map(add_one).batch(BATCH_SIZE))


def sync() -> float:
    with new_loader() as loader:
        return rate_of(lambda: count(loader))


def on_asyncio() -> float:
    return asyncio_rate(asyncio.new_event_loop)


def on_uvloop() -> float:
    import uvloop

    return asyncio_rate(uvloop.new_event_loop)


def asyncio_rate(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> float:
    loader = new_loader()

    async def epoch() -> int:
        total = 0
        async for batch in loader:
            total += len(batch)
        return total

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        rate = rate_of(lambda: runner.run(epoch()))
        closing: Awaitable[None] = loader.aclose()
        runner.run(closing)
        return rate


# torch ----------------------------------------------------------------------------------


def dataset_of(make: Callable[[], Iterable[Any]]) -> Any:
    from torch.utils.data import IterableDataset

    class Items(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            return iter(make())

    return Items()


def torch_loader() -> float:
    from torch.utils.data import DataLoader

    dataset = dataset_of(lambda: mapped(range(ITEMS)))
    # Without a function of our own it would make tensors, which takes far longer.
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=list)
    return rate_of(lambda: count(loader))


def torch_loader_of_batches() -> float:
    from torch.utils.data import DataLoader

    dataset = dataset_of(lambda: batched(mapped(range(ITEMS))))
    loader = DataLoader(dataset, batch_size=None, collate_fn=list)
    return rate_of(lambda: count(loader))


CASES = [
    Case("plain generators, append", plain),
    Case("plain generators, islice", plain_islice),
    Case("asyncloader, for", sync),
    Case("asyncloader, async for (asyncio)", on_asyncio),
    Case("asyncloader, async for (uvloop)", on_uvloop, needs=("uvloop",)),
    Case("torch DataLoader", torch_loader, needs=("torch",)),
    Case("torch DataLoader, batched in the dataset", torch_loader_of_batches, needs=("torch",)),
]

if __name__ == "__main__":
    references = ["plain generators, append", "plain generators, islice", "torch DataLoader"]
    compare(CASES, unit="items/s", against=references)
