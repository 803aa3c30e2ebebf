"""Rows of a map-style data set in a random order, in one process, beside torch's DataLoader.

This file is about a command: ``python -m tests.benchmarks.rows``. The data set answers at once, and
batches stay lists, so that all that is measured is the order, the lookups and the batches. Each
measurement is a process of its own, and they take turns. CPU times count, from the first ``next``
to the end of an epoch; and by how much the most memory grew from then on.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import torch

from asyncloader import DataLoader2
from tests.benchmarks.sizes import sized

ROWS = sized(10_000_000, 10_000)
SIZES = (8, 64, 1024)
ROUNDS = sized(3, 1)


def ours(batch_size: int) -> Iterator[Any]:
    settings: Any = {"batch_size": batch_size, "shuffle": True, "collate_fn": list}
    with DataLoader2.from_dataset(range(ROWS), **settings) as loader:
        yield from loader


def torchs(batch_size: int) -> Iterator[Any]:
    settings: Any = {"batch_size": batch_size, "shuffle": True, "collate_fn": list}
    yield from torch.utils.data.DataLoader(range(ROWS), **settings)  # type: ignore[arg-type]


WAYS: dict[str, Callable[[int], Iterator[Any]]] = {"asyncloader": ours, "torch": torchs}


def measure(way: str, batch_size: int) -> tuple[float, float]:
    """Return rows for each second of CPU time, and MiB."""
    batches = WAYS[way](batch_size)
    memory, begun = most_memory(), process_time()
    count = sum(map(len, batches))
    assert count == ROWS
    return count / (process_time() - begun), most_memory() - memory


def most_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(way: str, batch_size: int) -> tuple[float, float]:
    command = [sys.executable, "-m", __spec__.name, way, str(batch_size)]
    rate, memory = json.loads(subprocess.check_output(command))
    return rate, memory


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    print(f"{ROWS:,} rows, batches of {'':6} {'million/s':>11} {'of torch':>9} {'MiB':>6}")
    for size in SIZES:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way in WAYS:
                found[way].append(run(way, size))
        best = {way: max(each) for way, each in found.items()}
        for way, (rate, memory) in best.items():
            share = rate / best["torch"][0]
            print(f"{size:24} {way:12} {rate / 1e6:10.2f} {share:9.2f} {memory:6.1f}", flush=True)


if __name__ == "__main__":
    main()
