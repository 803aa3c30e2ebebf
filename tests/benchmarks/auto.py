"""What ``num_workers="auto"`` finds, against fixed numbers: ``python -m tests.benchmarks.auto``.

For each load, a loader with "auto" runs for ten seconds. Then it and loaders with 0, 1, 2, 3 and 4
workers are measured alternately, each for a while in every round, in one process. The table has
the medians of the rounds, and how near "auto" comes to the best of the fixed numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

#: What "auto" is held against.
FIXED = (0, 1, 2, 3, 4)
#: More items than any run takes.
_ITEMS = 50_000_000


@dataclass(frozen=True)
class Load:
    """A function for each item, and what the consumer does with an item."""

    name: str
    function: Callable[[int], Any]
    consumer_seconds: float = 0.0
    #: The function for the first items, where the load changes, and how many those are.
    before: Callable[[int], Any] | None = None
    first: int = 0

    def graph(self, *, changes: bool) -> Any:
        function = self.function
        if changes and self.before is not None:
            function = partial(_one_then_another, self.before, self.function, self.first)
        return IterableWrapper(range(_ITEMS)).sharding_filter().map(function)


def decode(number: int, seconds: float = 0.004) -> int:
    """Compute for so long, in processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return number


def wait(number: int) -> int:
    time.sleep(0.004)
    return number


def same(number: int) -> int:
    return number


def large(number: int) -> Any:
    import numpy as np

    return np.full(1 << 20, number, dtype=np.float32)


def _one_then_another(one: Any, other: Any, first: int, number: int) -> Any:
    return one(number) if number < first else other(number)


LOADS = (
    Load("decode, 4 ms of a core", decode),
    Load("waits 4 ms", wait),
    Load("tiny items", same),
    Load("arrays of 4 MiB", large),
    Load("a slow consumer, 10 ms", decode, consumer_seconds=0.01),
    Load("changes to decode", decode, before=partial(decode, seconds=0.0002), first=10_000),
)


class Runner:
    """One loader, whose rate is measured now and then."""

    def __init__(self, load: Load, workers: Any) -> None:
        service = MultiProcessingReadingService(workers)
        self.load = load
        graph = load.graph(changes=workers == "auto")
        self.loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
        self.items: Iterator[Any] = iter(self.loader)
        self.rates: list[float] = []

    def run(self, seconds: float) -> float:
        """Take items for so long; return how many a second."""
        begin, count = time.perf_counter(), 0
        end = begin + seconds
        for _ in self.items:
            count += 1
            if self.load.consumer_seconds:
                time.sleep(self.load.consumer_seconds)
            if time.perf_counter() >= end:
                break
        return count / (time.perf_counter() - begin)

    def measure(self, seconds: float) -> None:
        """Note the rate, after what was made in advance is used up."""
        self.run(seconds / 3)
        self.rates.append(self.run(seconds))


def measured(load: Load, rounds: int, seconds: float, warm_up: float) -> dict[Any, Runner]:
    runners: dict[Any, Runner] = {"auto": Runner(load, "auto")}
    try:
        if load.first:
            for _ in islice(runners["auto"].items, load.first):
                pass
        runners["auto"].run(warm_up)
        for workers in FIXED:
            runners[workers] = Runner(load, workers)
            runners[workers].run(seconds / 3)
        for _ in range(rounds):
            for runner in runners.values():
                runner.measure(seconds)
        return runners
    finally:
        for runner in runners.values():
            runner.loader.shutdown()


def row(load: Load, runners: dict[Any, Runner]) -> str:
    rates = {workers: median(runner.rates) for workers, runner in runners.items()}
    best = max(FIXED, key=lambda workers: rates[workers])
    # The best fixed number differs from round to round, so round is held against round.
    fixed, auto = runners[best].rates, runners["auto"].rates
    ratio = median(one / other for one, other in zip(auto, fixed, strict=True))
    cells = [f"{rates[workers]:,.0f}" for workers in FIXED]
    chosen = runners["auto"].loader.num_workers
    return f"| {load.name} | {' | '.join(cells)} | {rates['auto']:,.0f} ({chosen}) | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.auto", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each loader and round")
    parser.add_argument("--warm-up", type=float, default=10.0, help='how long "auto" may search')
    parser.add_argument("--only", default="", help="loads with this in their names")
    given = parser.parse_args()
    print(f"| items a second | {' | '.join(map(str, FIXED))} | auto (its number) | auto/best |")
    print(f"|---|{'---|' * (len(FIXED) + 2)}")
    for load in LOADS:
        if given.only in load.name:
            runners = measured(load, given.rounds, given.seconds, given.warm_up)
            print(row(load, runners), flush=True)
            for choice in runners["auto"].loader.stats().choices:
                print(f"<!-- {choice} -->", flush=True)


if __name__ == "__main__":
    main()
