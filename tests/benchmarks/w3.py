"""W3: float32 tensors from two workers, made fresh for each item; W3b, where the consumer
reads every byte, or keeps the last hundred; and W3c, where the workers collate 32 of them to a
batch. At 4 MiB also numpy's arrays. The limits are one thread that copies into recycled memory,
and two processes that make the tensors and copy each, with nobody to take them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.benchmarks.bare_channel import BARE, BARE_ASYNC, bare_rate
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import (
    WORKERS,
    Take,
    graph_of,
    our_rate,
    peer_rate,
    single_threaded,
    sync_rate,
)
from tests.benchmarks.measuring import ours as measured
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

KIB, MIB = 1 << 10, 1 << 20
EPOCHS = 2
KEPT = 100
#: How many tensors are collated.
BATCH = 32


@dataclass(frozen=True)
class Ones:
    """Makes a new tensor for each number, or a new array."""

    nbytes: int
    library: str = "torch"

    def __call__(self, _: int) -> Any:
        if self.library == "numpy":
            import numpy

            return numpy.ones(self.nbytes // 4, dtype=numpy.float32)
        import torch

        return torch.ones(self.nbytes // 4)


def nbytes_of(item: Any) -> int:
    return int(item.nbytes)


def read(item: Any) -> int:
    """Read every byte, as a copy to a device would."""
    item.sum()
    return int(item.nbytes)


class Keep:
    """Holds the last hundred items."""

    def __init__(self) -> None:
        self.kept: deque[Any] = deque(maxlen=KEPT)

    def __call__(self, item: Any) -> int:
        self.kept.append(item)
        return int(item.nbytes)


def ours(job: Job, mode: str, take: Take) -> float:
    import torch  # noqa: F401  - as in the peers' processes, and single-threaded there too

    return our_rate(job, mode, take, EPOCHS) / 1e9


def bare_gigabytes(job: Job, mode: str, take: Take) -> float:
    import torch  # noqa: F401

    return bare_rate(job, mode, take, EPOCHS) / 1e9


def theirs(open_: Callable[[Job], Any], job: Job, take: Take) -> float:
    import torch  # noqa: F401

    return peer_rate(open_, job, take, EPOCHS) / 1e9


def their_batches(open_: Callable[[Job], Any], job: Job) -> float:
    import torch  # noqa: F401

    single_threaded()
    loader = open_(job)
    assert sum(map(len, loader)) == job.count
    return sync_rate(loader, nbytes_of, EPOCHS, warm_up=0) / 1e9


def memcpy(nbytes: int, items: int) -> float:
    """Return what one thread copies into recycled shared memory."""
    from asyncloader.memory import Segment

    source, segment = Ones(nbytes)(0), Segment.create(nbytes)
    began = time.perf_counter()
    for _ in range(items):
        ctypes.memmove(segment.address, source.data_ptr(), nbytes)
    return items * nbytes / (time.perf_counter() - began) / 1e9


def made_and_copied(nbytes: int, items: int) -> float:
    """Return what two processes make and copy, a core each, where nothing is sent."""
    import torch

    from asyncloader.system import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    _make_and_copy(nbytes, 8)
    began = time.perf_counter()
    children = [os.fork() for _ in range(WORKERS - 1)]
    _make_and_copy(nbytes, items // WORKERS)
    if 0 in children:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    return items * nbytes / (time.perf_counter() - began) / 1e9


def _make_and_copy(nbytes: int, items: int) -> None:
    from asyncloader.memory import Segment

    make, segment = Ones(nbytes), Segment.create(nbytes)
    for number in range(items):
        made = make(number)
        ctypes.memmove(segment.address, made.data_ptr(), nbytes)
        # Its memory is there for the next.
        del made


def collated(batch: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate(batch)


def our_batches(job: Job, mode: str) -> float:
    """Return our rate with the loader's own way to collate, which is what it is for."""
    import torch  # noqa: F401

    single_threaded()
    graph = graph_of(replace(job, collate=list)).collate()
    return measured(graph, nbytes_of, mode, EPOCHS) / 1e9


FOR, ASYNC = "asyncloader, for", "asyncloader, async for"
#: Bytes of an item, and items of an epoch: ours, the peers'.
SIZES = {
    "64 KiB": (64 * KIB, sized(20_000, 400), sized(4_000, 200)),
    "4 MiB": (4 * MIB, sized(1_500, 60), sized(600, 30)),
    "32 MiB": (32 * MIB, sized(150, 8), sized(100, 4)),
}


def comparison(
    size: str, what: str, take: Take, times: float, library: str = "torch"
) -> Comparison:
    nbytes, items, peers_items = SIZES[size]
    job = Job(items, Ones(nbytes, library), nbytes=nbytes, held=KEPT if what == "kept" else 1)
    limit, made = "limit: memcpy", "limit: made and copied by 2 processes"
    kind = "tensors" if library == "torch" else "numpy arrays"
    # It has too few slots for a consumer that keeps a hundred items.
    modes = {} if what == "kept" else {BARE: "sync", BARE_ASYNC: "async"}
    bare = [Case(name, bare_gigabytes, args=(job, modes[name], take)) for name in modes]
    compared = [
        Case(limit, memcpy, args=(nbytes, items)),
        Case(made, made_and_copied, args=(nbytes, items)),
        Case(ASYNC, ours, args=(job, "async", take)),
        Case(ASYNC, ours, args=(job, "async", take)).portable(),
        Case(FOR, ours, args=(job, "sync", take)),
        *bare,
        *cases(PROCESSES, theirs, replace(job, count=peers_items), take),
    ]
    return Comparison(
        f"{'W3' if what == 'counted' else 'W3b'}: {kind} of {size} from 2 workers, {what}",
        "GB/s",
        compared,
        against=[TORCH, limit, made, *modes],
        targets=[Target(ASYNC, times, TORCH)] if times else [],
    )


def batches(size: str, times: float) -> Comparison:
    """Return the comparison of batches that are of a size together."""
    nbytes, items, peers_items = SIZES[size]
    job = Job(items * BATCH, Ones(nbytes // BATCH), BATCH, collated, nbytes)
    compared = [
        Case(ASYNC, our_batches, args=(job, "async")),
        Case(ASYNC, our_batches, args=(job, "async")).portable(),
        Case(FOR, our_batches, args=(job, "sync")),
        *cases(PROCESSES, their_batches, replace(job, count=peers_items * BATCH)),
    ]
    return Comparison(
        f"W3c: {BATCH} tensors collated to batches of {size} in 2 workers",
        "GB/s",
        compared,
        against=[TORCH],
        targets=[Target(ASYNC, times, TORCH)],
    )


COMPARISONS = [
    comparison("64 KiB", "counted", nbytes_of, 20),
    comparison("4 MiB", "counted", nbytes_of, 20),
    comparison("32 MiB", "counted", nbytes_of, 1.8),
    comparison("4 MiB", "counted", nbytes_of, 0, library="numpy"),
    comparison("4 MiB", "read", read, 3),
    comparison("4 MiB", "kept", Keep(), 0),
    batches("4 MiB", 3),
]
