"""W4: JPEG images of 256 x 256 pixels decoded to tensors, in batches of 32.

They are collated as torch's ``default_collate`` does, by every loader, which is what most of
them do by default: some can make the batch where it is sent from. The limits are a process and
a thread for each core that decode and collate, and do nothing else.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from threading import Thread
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, graph_of, ours, peer_rate
from tests.benchmarks.peers.catalogue import PROCESSES, THREADS, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

IMAGES = sized(4_096, 256)
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


def collated(images: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate(images)


JOB = Job(IMAGES, decode, BATCH_SIZE, collated, nbytes=BATCH_SIZE * SIZE * SIZE * 3)


def workers(mode: str, count: int = WORKERS) -> float:
    prepare()
    graph = graph_of(replace(JOB, collate=list), count).collate()
    return ours(graph, len, mode, EPOCHS, count)


def threads(mode: str) -> float:
    from asyncloader.datapipes.iter import IterableWrapper

    prepare()
    pipe = IterableWrapper(range(IMAGES)).thread_map(decode, concurrency=os.cpu_count())
    return ours(pipe.batch(BATCH_SIZE).collate(), len, mode, EPOCHS, workers=0)


def threads_by_batches(mode: str) -> float:
    """As the peers do it with threads: one call makes a batch."""
    from asyncloader.datapipes.iter import IterableWrapper

    prepare()
    make, numbers = JOB.calls()
    pipe = IterableWrapper(numbers).thread_map(make, concurrency=os.cpu_count())
    return ours(pipe, len, mode, EPOCHS, workers=0)


def peer(open_: Callable[[Job], Any]) -> float:
    prepare()
    return peer_rate(open_, JOB, len, EPOCHS)


def prepare() -> None:
    import torch

    torch.set_num_threads(1)
    files()


def process_limit() -> float:
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
        _decode_part(core, cores)
        os._exit(0)
    return child


def thread_limit() -> float:
    """Return the rate of one thread for each core that hand nothing over."""
    prepare()
    cores = os.cpu_count() or 1
    began = time.perf_counter()
    running = [Thread(target=_decode_part, args=(core, cores)) for core in range(cores)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return IMAGES / (time.perf_counter() - began)


def _decode_part(core: int, cores: int) -> None:
    for batch in JOB.part(core, cores):
        del batch


LIMIT = "limit: a process for each core"
ASYNC, THREAD_MAP = "asyncloader, 2 workers, async for", "asyncloader, thread_map, async for"
BY_BATCHES = "asyncloader, thread_map by batches, async for"
CASES = [
    Case(LIMIT, process_limit),
    Case("limit: a thread for each core", thread_limit),
    Case(ASYNC, workers, args=("async",)),
    Case(ASYNC, workers, args=("async",)).portable(),
    Case("asyncloader, 2 workers, for", workers, args=("sync",)),
    Case(THREAD_MAP, threads, args=("async",)),
    Case("asyncloader, thread_map, for", threads, args=("sync",)),
    Case(BY_BATCHES, threads_by_batches, args=("async",)),
    Case("asyncloader, thread_map by batches, for", threads_by_batches, args=("sync",)),
    *cases([*PROCESSES, *THREADS], peer),
]
COMPARISONS = [
    Comparison(
        "W4: JPEG images decoded to tensors, in batches of 32",
        "images/s",
        CASES,
        against=[LIMIT, TORCH],
        targets=[
            Target(ASYNC, 0.93, LIMIT),
            Target(THREAD_MAP, 0.97, LIMIT),
            Target(BY_BATCHES, 0.97, LIMIT),
        ],
    )
]
