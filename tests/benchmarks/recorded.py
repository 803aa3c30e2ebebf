"""What it costs to record what becomes of each item: ``python -m tests.benchmarks.recorded``.

This file is about a command. It compares graphs whose function is said not to repeat with the same
ones whose function is, in turns, by the CPU time of all processes; and it takes states with 512 and
with 10,000 items in flight, scattered among others that are settled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.cost import cpu_seconds, seconds
from tests.benchmarks.sizes import sized

ITEMS = sized(200_000, 2_000)
FEW = sized(40_000, 1_000)
ROUNDS = sized(5, 1)
IN_FLIGHT = (512, 10_000)
STATES = sized(50, 2)


def same(item: int) -> int:
    """Return the item."""
    return item


async def answer(item: int) -> int:
    """Return the item, as a server would."""
    return item


def is_good(item: int) -> bool:
    """Keep the item."""
    return True


def mapped(count: int, repeatable: bool) -> Any:
    """Return a graph that works on items and puts them together."""
    pipe = IterableWrapper(range(count)).shuffle(buffer_size=100).sharding_filter()
    return pipe.map(same, repeatable=repeatable).filter(is_good).batch(64)


def single(count: int, repeatable: bool) -> Any:
    """Return a graph that yields each item alone."""
    pipe = IterableWrapper(range(count)).shuffle(buffer_size=100).sharding_filter()
    return pipe.filter(is_good, repeatable=repeatable)


def asked(count: int, repeatable: bool) -> Any:
    """Return a graph that asks a server for each item."""
    pipe = IterableWrapper(range(count)).sharding_filter()
    answers = pipe.async_map(answer, concurrency=256, repeatable=repeatable)
    return answers.filter(is_good).batch(64)


Graph = Callable[[int, bool], Any]

#: What is measured: its name, the graph, how many items, how many workers, and whether they are
#: acknowledged.
CASES: list[tuple[str, Graph, int, int, bool]] = [
    ("map, filter, batch", mapped, ITEMS, 0, False),
    ("the same, acknowledged", mapped, ITEMS, 0, True),
    ("the same, in two workers", mapped, ITEMS, 2, False),
    ("filter alone", single, ITEMS, 0, False),
    ("filter alone, in two workers", single, ITEMS, 2, False),
    ("async_map, filter, batch", asked, FEW, 0, False),
    ("the same, in two workers", asked, FEW, 2, False),
]


def epoch_seconds(graph: Any, workers: int, acknowledges: bool) -> float:
    """Return the CPU time of a loader's second epoch, in all processes."""
    service = MultiProcessingReadingService(workers) if workers else None
    with DataLoader2(graph, None, service, acknowledge=acknowledges) as loader:
        for epoch in range(2):
            begun = cpu_seconds()
            for _ in loader:
                if acknowledges:
                    loader.ack()
            if epoch:
                return cpu_seconds() - begun
    raise AssertionError("there are two epochs")


def show_items() -> None:
    """Print what an item takes, and what recording adds."""
    print(f"{'CPU time of an item':34}{'repeats':>12}{'recorded':>12}{'more':>12}")
    for name, graph, count, workers, acknowledges in CASES:
        taken: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for repeatable in (True, False):
                spent = epoch_seconds(graph(count, repeatable), workers, acknowledges)
                taken[repeatable].append(spent / count)
        # What else the machine does can only add to it.
        repeats, recorded = min(taken[True]), min(taken[False])
        figures = repeats, recorded, max(recorded - repeats, 0.0)
        print(f"{name:34}" + "".join(f"{seconds(each):>12}" for each in figures), flush=True)


def held(count: int, repeatable: bool) -> Any:
    """Return a graph in which so many items are in flight, any of the last ones."""
    pipe = IterableWrapper(range(10 * count)).shuffle(buffer_size=100).sharding_filter()
    return pipe.map(same, repeatable=repeatable).shuffle(buffer_size=count)


def show_states() -> None:
    """Print how large states are, and the CPU time that they take."""
    print(f"\n{'a state with so many in flight':34}{'size':>12}{'time':>12}{'if repeats':>12}")
    for count in IN_FLIGHT:
        for workers in (0, 2):
            size, taken = state_of(count, workers, repeatable=False)
            _, otherwise = state_of(count, workers, repeatable=True)
            name = f"{count:,} in {workers or 'no'} workers"
            times = f"{seconds(taken):>12}{seconds(otherwise):>12}"
            print(f"{name:34}{size / 1024:>8.1f} KiB{times}", flush=True)


def state_of(count: int, workers: int, *, repeatable: bool) -> tuple[int, float]:
    """Return the size of what a state says of the section, and the CPU time of a state."""
    service = MultiProcessingReadingService(workers) if workers else None
    # Each of the workers holds a part of them.
    graph = held(count // max(workers, 1), repeatable)
    with DataLoader2(graph, None, service) as loader:
        items, taken = iter(loader), []
        for _ in islice(items, 3 * count):
            pass
        for _ in range(STATES):
            next(items)
            begun = time.process_time()
            state = loader.state_dict(include_datapipe=False)
            taken.append(time.process_time() - begun)
    cursors = json.loads(state["position"]["cursors"]).values()
    own = [cursor for cursor in cursors if {"frontier", "shares"} & cursor.keys()]
    said = [{name: value for name, value in each.items() if name != "marks"} for each in own]
    return len(json.dumps(said)), median(taken)


def main() -> None:
    """Print both tables."""
    show_items()
    show_states()


if __name__ == "__main__":
    main()
