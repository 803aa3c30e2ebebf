"""Thousands of batches from workers whose memory is used again and again, checked on the GPU.

    python -m tests.gpu.stress                     count the wrong batches: there must be none
    python -m tests.gpu.stress --without wait      see that the check notices a missing wait
    python -m tests.gpu.stress --without sources   … and memory that is given back too early

Every batch is full of its own number. The GPU is kept busy in between, now for longer, now for
shorter than a copy takes, so that it reads a batch long after the program has dropped it. And
every tenth copy is late, so that a worker has time to write into memory that is copied.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest import mock

import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes import devices, moving
from asyncloader.datapipes.iter import IterableWrapper
from tests.gpu.batches import filled


def wrong_batches(count: int, ahead: int = 2, workers: int = 4, without: str = "nothing") -> int:
    """Return how many of so many batches held other numbers than their own."""
    device, afterwards = WITHOUT[without]
    with (
        mock.patch.object(devices, "CudaDevice", device),
        mock.patch.object(moving, "Afterwards", afterwards),
    ):
        return _wrong_batches(count, ahead, workers)


def _wrong_batches(count: int, ahead: int, workers: int) -> int:
    graph = IterableWrapper(range(count)).sharding_filter().map(filled).to_device("cuda", ahead)
    service = MultiProcessingReadingService(workers)
    lowest = torch.full((count,), -1, dtype=torch.int32, device="cuda")
    highest = lowest.clone()
    with DataLoader2(graph, reading_service=service) as loader:
        for at, batch in enumerate(loader):
            # At every other batch the GPU has something else to do first; at times for long.
            if at % 2:
                torch.cuda._sleep(3_000_000 if at % 50 == 1 else 200_000)
            lowest[at], highest[at] = batch.min(), batch.max()
            del batch
    # The first wait of this thread for the GPU.
    numbers = torch.arange(count, dtype=torch.int32, device="cuda")
    return int(((lowest != numbers) | (highest != numbers)).sum())


class Late(devices.CudaDevice):
    """A device that comes to every tenth copy some milliseconds late."""

    _begun = 0

    def copy(self, item: Any) -> devices.Copy:
        self._begun += 1
        if self._begun % 10 == 0:
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(10_000_000)
        return super().copy(item)


class Careless(Late):
    """A device that lets no stream wait for its copies."""

    def hand_over(self, copy: devices.Copy) -> devices.Event:
        return devices.Passed()


class Hasty(moving.Afterwards):
    """Gives the sources of a copy back when it has just begun."""

    def call(self, function: Any, event: Any) -> None:
        if self._name.endswith("copies"):
            function()
        else:
            super().call(function, event)


WITHOUT = {
    "nothing": (Late, moving.Afterwards),
    "wait": (Careless, moving.Afterwards),
    "sources": (Late, Hasty),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.stress", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--without", choices=WITHOUT, default="nothing")
    options = parser.parse_args()
    begun = time.perf_counter()
    wrong = wrong_batches(options.count, options.ahead, without=options.without)
    seconds = time.perf_counter() - begun
    print(f"{wrong} of {options.count} batches wrong, in {seconds:.1f} s")


if __name__ == "__main__":
    main()
