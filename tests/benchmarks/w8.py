"""W8: memory over a loader and two workers, in MiB, for a million rows of a path and a label.

    python -m tests.benchmarks.w8 [--rounds 3]

What is counted is how much more memory (as the kernel divides it among those who share
it) all processes have at the end of a shuffled epoch than with a thousand rows, so that
interpreters and libraries do not count. Each number takes two fresh processes.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.harness import ROOT, Case, compare
from tests.benchmarks.measuring import torch_loader, worker_loader
from tests.leaks import descendants

ROWS = 1_000_000
FEW = 1000
MIB = 1 << 20


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        label = number % 1000
        yield {"path": f"train/{label:04}/image_{number:08}.jpg", "label": label}


def growth(kind: str, method: str | None) -> float:
    """Return the MiB that a million rows cost."""
    return (_total(kind, method, ROWS) - _total(kind, method, FEW)) / MIB


def _total(kind: str, method: str | None, count: int) -> int:
    command = [sys.executable, "-m", __name__, "total", kind, method or "", str(count)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def total(kind: str, method: str | None, count: int) -> int:
    """Return the bytes of this process and its workers after an epoch of so many rows."""
    if kind == "SharedSequence":
        with worker_loader(shared_graph(count), method=method) as loader:
            return _after_epoch(loader, count)
    data: Sequence[Any] = PackedRows(count) if kind == "numpy" else list(rows(count))
    loader = torch_loader(
        data, batch_size=64, shuffle=True, collate_fn=list, multiprocessing_context=method
    )
    return _after_epoch(loader, count)


def shared_graph(count: int) -> Any:
    from asyncloader.datapipes.map import SharedSequence

    return SharedSequence(rows(count)).shuffle().sharding_filter().batch(64)


class PackedRows:
    """The rows in two arrays, as people pack them by hand."""

    def __init__(self, count: int) -> None:
        import numpy

        self.paths = numpy.fromiter((row["path"] for row in rows(count)), "S34", count)
        self.labels = numpy.fromiter((row["label"] for row in rows(count)), "i8", count)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"path": self.paths[index].decode(), "label": int(self.labels[index])}


def _after_epoch(loader: Any, count: int) -> int:
    assert sum(len(batch) for batch in loader) == count
    gc.collect()
    return sum(map(_memory_of, ["self", *map(str, descendants())]))


def _memory_of(pid: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = [line.split() for line in file]
    return next(1024 * int(words[1]) for words in sizes if words[0] == "Pss:")


METHODS = [None, "fork", "spawn", "forkserver"]
CASES = [
    *[
        Case(f"SharedSequence, {method or 'template'}", growth, args=("SharedSequence", method))
        for method in METHODS
    ],
    Case("torch, packed numpy, fork", growth, ("torch", "numpy"), ("numpy", "fork")),
    Case("torch, packed numpy, forkserver", growth, ("torch", "numpy"), ("numpy", "forkserver")),
    Case("torch, list, fork", growth, ("torch",), ("list", "fork")),
    Case("torch, list, forkserver", growth, ("torch",), ("list", "forkserver")),
]


def main() -> None:
    if sys.argv[1:2] == ["total"]:
        kind, method, count = sys.argv[2:]
        print(total(kind, method or None, int(count)))
    else:
        compare(CASES, unit="MiB", against=["torch, packed numpy, fork", "torch, list, fork"])


if __name__ == "__main__":
    main()
