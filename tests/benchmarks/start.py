"""The first batch of data in memory, and all memory then: ``python -m tests.benchmarks.start``.

Each row is a program of its own, run in turn for some rounds: a data set is made, then a loader
with two workers, then a model; the clock runs from ``iter`` to the first batch. At the end of an
epoch the kernel says what memory all processes have together, shared pages once. The table has
the medians, and the medians of the ratios to torch's ``DataLoader`` (by fork) in the same round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

WORKERS = 2
BATCH = 256

LOADERS = ("torch, fork", "asyncloader", "asyncloader, fork")
DATA = ("nothing in memory", "an array of 1 GiB", "a tensor of 1 GiB", "1.5 million dicts")


class Rows:
    """A data set over what it holds in memory."""

    def __init__(self, kind: str, size: float) -> None:
        import numpy
        import torch

        count = int(size * (1 << 20))
        match kind:
            case "an array of 1 GiB":
                self.rows: Any = numpy.ones((count, 1024), dtype=numpy.uint8)
            case "a tensor of 1 GiB":
                self.rows = torch.ones((count, 1024), dtype=torch.uint8)
            case "1.5 million dicts":
                each = range(int(size * 1_500_000))
                self.rows = [{"path": f"{number}.jpg", "label": number} for number in each]
            case _:
                self.rows = range(int(size * 100_000))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        import torch

        return torch.as_tensor(self.rows[number]) if not isinstance(self.rows, list) else number


def measured(loader_kind: str, kind: str, size: float) -> dict[str, float]:
    """Return the seconds to the first batch, and the MiB of all processes after an epoch."""
    import torch
    from torch.utils.data import DataLoader

    from asyncloader import DataLoader2
    from tests.benchmarks.memory import MIB, total

    data: Any = Rows(kind, size)
    loader: Any
    if loader_kind == "torch, fork":
        loader = DataLoader(
            data, BATCH, shuffle=True, num_workers=WORKERS, multiprocessing_context="fork"
        )
    else:
        method = "fork" if "fork" in loader_kind else None
        loader = DataLoader2.from_dataset(
            data, BATCH, shuffle=True, num_workers=WORKERS, multiprocessing_context=method
        )
    torch.nn.Transformer(512, 8, 6, 6, batch_first=True)
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    most = 0
    for number, _ in enumerate(batches):
        if number == len(data) // BATCH - 10:
            most = total()
    return {"seconds": seconds, "MiB": most / MIB}


def in_its_own_program(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--measure", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=float, default=1.0, help="of the data, 1 is what they say")
    parser.add_argument("--only", default="", help="data with this in their names")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        loader, kind, size = given.measure
        print(json.dumps(measured(loader, kind, float(size))))
        return
    print("| data | loader | first batch, s | to torch's | memory, MiB | to torch's |")
    print("|---|---|---|---|---|---|")
    for kind in (kind for kind in DATA if given.only in kind):
        rounds = [
            {each: in_its_own_program(each, kind, str(given.size)) for each in LOADERS}
            for _ in range(given.rounds)
        ]
        for loader in LOADERS:
            cells = []
            for what in ("seconds", "MiB"):
                value = median(found[loader][what] for found in rounds)
                ratio = median(found[loader][what] / found[LOADERS[0]][what] for found in rounds)
                cells.append(
                    f"{value:,.2f} | {ratio:.2f}" if value < 100 else f"{value:,.0f} | {ratio:.2f}"
                )
            print(f"| {kind} | {loader} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
