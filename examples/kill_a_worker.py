"""Kill a worker process in the middle of an epoch, and lose nothing.

Start:  python examples/kill_a_worker.py
Expect: two workers are killed and replaced, and every sample comes once; then a `WorkerDied`.

With `on_worker_death="restart"` a worker that dies (a crash in a C library, the kernel's OOM
killer) is replaced by one that resumes where it stood. Without it the death is an error, at
once.
"""

import asyncio
import os
import random
import signal
import time
from typing import Literal

from asyncloader import DataLoader2, MultiProcessingReadingService, WorkerDied
from asyncloader.datapipes.iter import IterableWrapper

ITEMS = 600


def slow_sample(number: int) -> tuple[float, int]:
    """Return a sample that is random, and the process that has made it."""
    time.sleep(0.001)
    return number + random.random(), os.getpid()


graph = IterableWrapper(range(ITEMS)).shuffle().sharding_filter().map(slow_sample)


def new_loader(on_worker_death: Literal["raise", "restart"]) -> DataLoader2:
    service = MultiProcessingReadingService(2, on_worker_death=on_worker_death)
    loader = DataLoader2(graph, reading_service=service)
    loader.seed(0)
    return loader


async def epoch(loader: DataLoader2, *, killings: set[int]) -> list[float]:
    """Return an epoch's samples; after so many of them, the maker of the last one dies."""
    samples = []
    async for sample, worker in loader:
        samples.append(sample)
        if len(samples) in killings:
            print(f"killed a worker after {len(samples)} samples", flush=True)
            os.kill(worker, signal.SIGKILL)
    return samples


async def main() -> None:
    async with new_loader("raise") as loader:
        undisturbed = await epoch(loader, killings=set())

    async with new_loader("restart") as loader:
        samples = await epoch(loader, killings={100, 300})
        print("workers replaced:", loader.stats().restarts)
    print("every sample once, in its place:", samples == undisturbed)

    async with new_loader("raise") as loader:
        try:
            await epoch(loader, killings={100})
        except WorkerDied as death:
            print(f"without restart: {type(death).__name__}:", death)


if __name__ == "__main__":
    asyncio.run(main())
