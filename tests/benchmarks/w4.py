"""W4: JPEG images of 256 x 256 pixels decoded to tensors, in batches of 32.

    python -m tests.benchmarks.w4 [--rounds 5]

The limit is one process for each core that decodes and stacks and does nothing else.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

from tests.benchmarks.harness import Case, compare
from tests.benchmarks.measuring import async_rate, loop_factory, ours, shard, sync_rate
from tests.benchmarks.measuring import torch_loader as new_torch_loader

IMAGES = 8_192
DISTINCT = 64
SIZE = 256
BATCH_SIZE = 32
EPOCHS = 2


@cache
def files() -> list[bytes]:
    """Return images that are as smooth, and so as large, as photographs are."""
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(0)
    encoded = []
    for _ in range(DISTINCT):
        coarse = Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=numpy.uint8))
        buffer = io.BytesIO()
        coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


def decode(number: int) -> Any:
    import numpy
    import torch
    from PIL import Image

    image = Image.open(io.BytesIO(files()[number % DISTINCT]))
    return torch.from_numpy(numpy.array(image))


def stack(images: list[Any]) -> Any:
    import torch

    return torch.stack(images)


def graph() -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(IMAGES)).sharding_filter().map(decode)
    return pipe.batch(BATCH_SIZE).collate(stack)


def workers(mode: str) -> float:
    prepare()
    return ours(graph(), len, mode, epochs=EPOCHS)


def threads() -> float:
    from asyncloader import DataLoader2
    from asyncloader.datapipes.iter import IterableWrapper

    prepare()
    pipe = IterableWrapper(range(IMAGES)).thread_map(decode, concurrency=os.cpu_count())
    loader = DataLoader2(pipe.batch(BATCH_SIZE).collate(stack))
    with asyncio.Runner(loop_factory=loop_factory("asyncio")) as runner:
        return runner.run(async_rate(loader, len, EPOCHS))


def prepare() -> None:
    import torch

    torch.set_num_threads(1)
    files()


def torch_workers() -> float:
    prepare()

    def mine(worker: int, workers: int) -> Iterable[Any]:
        return map(decode, range(worker, IMAGES, workers))

    loader = new_torch_loader(shard(mine), batch_size=BATCH_SIZE, collate_fn=stack)
    return sync_rate(loader, len, EPOCHS)


def batches(worker: int, workers: int) -> Iterator[Any]:
    images = map(decode, range(worker, IMAGES, workers))
    while batch := list(islice(images, BATCH_SIZE)):
        yield stack(batch)


def limit() -> float:
    """Return the rate of one process for each core that hand nothing over."""
    prepare()
    cores = os.cpu_count() or 1
    began = time.perf_counter()
    children = [_decoding(core, cores) for core in range(cores)]
    for child in children:
        os.waitpid(child, 0)
    return IMAGES / (time.perf_counter() - began)


def _decoding(core: int, cores: int) -> int:
    child = os.fork()
    if not child:
        for batch in batches(core, cores):
            del batch
        os._exit(0)
    return child


TORCH, LIMIT = "torch DataLoader", "limit: a process for each core"
CASES = [
    Case(LIMIT, limit),
    Case("asyncloader, 2 workers, async for", workers, args=("async",)),
    Case("asyncloader, 2 workers, for", workers, args=("sync",)),
    Case("asyncloader, thread_map", threads),
    Case(TORCH, torch_workers),
]

if __name__ == "__main__":
    compare(CASES, unit="images/s", against=[LIMIT, TORCH])
