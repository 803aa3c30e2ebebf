"""W3: float32 tensors from two workers, made fresh for each item; and W3b, where the
consumer reads every byte, or keeps the last hundred.

    python -m tests.benchmarks.w3 [--rounds 5] [--only "4 MiB"]
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tests.benchmarks.harness import Case, compare
from tests.benchmarks.measuring import ours, shard, sync_rate, torch_loader

KIB, MIB = 1 << 10, 1 << 20
#: Bytes of an item, and items of an epoch: ours, torch's.
SIZES = {"64 KiB": (64 * KIB, 20_000, 2_000), "4 MiB": (4 * MIB, 1_500, 150)}
SIZES["32 MiB"] = (32 * MIB, 150, 50)


def tensor(nbytes: int) -> Any:
    import torch

    return torch.ones(nbytes // 4)


def nbytes_of(item: Any) -> int:
    return int(item.nbytes)


def read(item: Any) -> int:
    """Read every byte, as a copy to a device would."""
    item.sum()
    return int(item.nbytes)


def keeper() -> Callable[[Any], int]:
    kept: deque[Any] = deque(maxlen=100)

    def keep(item: Any) -> int:
        kept.append(item)
        return int(item.nbytes)

    return keep


def taker(what: str) -> Callable[[Any], int]:
    """Return what the consumer does with an item: "count", "read" or "keep" it."""
    if what == "keep":
        return keeper()
    return read if what == "read" else nbytes_of


def tensors(size: str, what: str, mode: str) -> float:
    from asyncloader.datapipes.iter import IterableWrapper

    single_threaded()
    nbytes, items, _ = SIZES[size]
    graph = IterableWrapper([nbytes]).cycle(items).sharding_filter().map(tensor)
    return ours(graph, taker(what), mode, epochs=2) / 1e9


def torch_tensors(size: str, what: str) -> float:
    single_threaded()
    nbytes, _, items = SIZES[size]

    def mine(worker: int, workers: int) -> Iterable[Any]:
        return (tensor(nbytes) for _ in range(worker, items, workers))

    return sync_rate(torch_loader(shard(mine)), taker(what), epochs=2) / 1e9


def memcpy(size: str) -> float:
    """Return what one thread copies into recycled shared memory."""
    from asyncloader.memory import Segment

    nbytes, items, _ = SIZES[size]
    source, segment = tensor(nbytes), Segment.create(nbytes)
    began = time.perf_counter()
    for _ in range(items):
        ctypes.memmove(segment.address, source.data_ptr(), nbytes)
    return items * nbytes / (time.perf_counter() - began) / 1e9


def single_threaded() -> None:
    """Leave the cores to the workers, in every case alike."""
    import torch

    torch.set_num_threads(1)


def cases_of(size: str, what: str) -> list[Case]:
    return [
        Case(f"asyncloader, {size}, {what}, async for", tensors, args=(size, what, "async")),
        Case(f"asyncloader, {size}, {what}, for", tensors, args=(size, what, "sync")),
        Case(torch_name(size, what), torch_tensors, args=(size, what)),
    ]


def torch_name(size: str, what: str) -> str:
    return f"torch DataLoader, {size}, {what}"


CASES = [
    case
    for size in SIZES
    for case in (*cases_of(size, "count"), Case(f"memcpy, {size}", memcpy, args=(size,)))
]
CASES += cases_of("4 MiB", "read") + cases_of("4 MiB", "keep")

if __name__ == "__main__":
    names = [case.name for case in CASES if case.function is torch_tensors]
    compare(CASES, unit="GB/s", against=names)
