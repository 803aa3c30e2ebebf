"""W3: float32 tensors from two workers, made fresh for each item; and W3b, where the
consumer reads every byte, or keeps the last hundred. At 4 MiB also numpy's arrays. The limit
is one thread that copies into recycled memory.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import Take, our_rate, peer_rate
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

KIB, MIB = 1 << 10, 1 << 20
EPOCHS = 2
KEPT = 100


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


def theirs(open_: Callable[[Job], Any], job: Job, take: Take) -> float:
    import torch  # noqa: F401

    return peer_rate(open_, job, take, EPOCHS) / 1e9


def memcpy(nbytes: int, items: int) -> float:
    """Return what one thread copies into recycled shared memory."""
    from asyncloader.memory import Segment

    source, segment = Ones(nbytes)(0), Segment.create(nbytes)
    began = time.perf_counter()
    for _ in range(items):
        ctypes.memmove(segment.address, source.data_ptr(), nbytes)
    return items * nbytes / (time.perf_counter() - began) / 1e9


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
    limit = "limit: memcpy"
    kind = "tensors" if library == "torch" else "numpy arrays"
    compared = [
        Case(limit, memcpy, args=(nbytes, items)),
        Case(ASYNC, ours, args=(job, "async", take)),
        Case(FOR, ours, args=(job, "sync", take)),
        *cases(PROCESSES, theirs, replace(job, count=peers_items), take),
    ]
    return Comparison(
        f"{'W3' if what == 'counted' else 'W3b'}: {kind} of {size} from 2 workers, {what}",
        "GB/s",
        compared,
        against=[TORCH, limit],
        targets=[Target(ASYNC, times, TORCH)] if times else [],
    )


COMPARISONS = [
    comparison("64 KiB", "counted", nbytes_of, 20),
    comparison("4 MiB", "counted", nbytes_of, 20),
    comparison("32 MiB", "counted", nbytes_of, 1.8),
    comparison("4 MiB", "counted", nbytes_of, 0, library="numpy"),
    comparison("4 MiB", "read", read, 3),
    comparison("4 MiB", "kept", Keep(), 0),
]
