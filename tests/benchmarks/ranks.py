"""What it takes to read the states of very many ranks, and to divide what is left among others.

This file is about a command: ``python -m tests.benchmarks.ranks``. The states of 100, 1,000 and
10,000 ranks with eight workers each, in the middle of an epoch, are loaded on one rank of a run
with a tenth of ranks more and with six workers; once where items are counted (``map``), and once
where it is recorded what became of each (``map`` with ``repeatable=False``). CPU seconds: of
reading and checking the states, and of all that ``load_state_dict`` does; and MiB: of the states
themselves, and by how much the most memory grew beyond them.

The first rank and the last are real: their loaders have eight workers. A state is that of the first
rank, with each worker's place moved to where that of its own rank is in the shuffled order; those
of the first and of the last rank are checked to be there. Each number of ranks is measured in a
process of its own.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from time import process_time
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService, SequentialReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.graph.fingerprint import fingerprint
from asyncloader.places.snapshot import Snapshot, SnapshotEncoder, decode
from asyncloader.places.states import rank_snapshots
from tests.before.side import pin_places
from tests.benchmarks.sizes import sized
from tests.services.test_elastic_ranks import OnRank

RANKS = (100, 1_000, 10_000)[: sized(3, 1)]
ROUNDS = sized(3, 1)
ROWS = 10**9
WORKERS, OTHER_WORKERS = 8, 6
#: Items that each rank had: ten of each worker.
ITEMS = 10 * WORKERS

State = dict[str, Any]


def same(item: int) -> int:
    """Return the item."""
    return item


def counted() -> Any:
    return IterableWrapper(range(ROWS)).shuffle(buffer_size=1000).sharding_filter().map(same)


def recorded() -> Any:
    numbers = IterableWrapper(range(ROWS)).shuffle(buffer_size=1000).sharding_filter()
    return numbers.map(same, repeatable=False)


GRAPHS: dict[str, Callable[[], Any]] = {"counted": counted, "recorded": recorded}


def loader_of(graph: Any, rank: int, ranks: int, workers: int) -> DataLoader2[Any]:
    in_workers = MultiProcessingReadingService(workers)
    service = SequentialReadingService(OnRank(rank, ranks), in_workers)
    return DataLoader2(graph, reading_service=service, seed=1)


def real_state(make: Callable[[], Any], rank: int, ranks: int) -> State:
    """Return the state of a rank that has yielded its first items."""
    with loader_of(make(), rank, ranks, WORKERS) as loader:
        for _ in islice(loader, ITEMS):
            pass
        return loader.state_dict(include_datapipe=False)


def states_of(make: Callable[[], Any], ranks: int) -> list[State]:
    """Return the states of all ranks, as they come from files: none shares a text with another."""
    first, last = real_state(make, 0, ranks), real_state(make, ranks - 1, ranks)
    check_places(decode(last), ranks)
    one, encoder = decode(first), SnapshotEncoder(fingerprint(make()))
    states = []
    for rank in range(ranks):
        snapshot = replace(one, rank=rank, cursors=moved(one.cursors, rank * WORKERS))
        check_places(snapshot, ranks)
        states.append(json.loads(json.dumps(encoder.encode(snapshot))))
    assert states[0] == first
    return states


def moved(cursors: Any, by: int) -> Any:
    """Return cursors with those of shuffles so many items later."""
    if isinstance(cursors, list):
        return [moved(each, by) for each in cursors]
    if not isinstance(cursors, dict):
        return cursors
    if "drawn" in cursors:
        return {**cursors, "drawn": cursors["drawn"] + by, "taken": cursors["taken"] + by}
    return {key: moved(each, by) for key, each in cursors.items()}


def check_places(snapshot: Snapshot, ranks: int) -> None:
    """Check that each worker's shuffle is where the share of the worker is."""
    (part,) = snapshot.cursors.values()
    marks = part["marks"] if "marks" in part else [mark for mark, _ in part["workers"]]
    shares = ranks * WORKERS
    for worker, (_, places, _) in enumerate(marks):
        for _, shuffle in places:
            number = snapshot.rank * WORKERS + worker
            assert (shuffle["drawn"] - 1) % shares == number, (number, shuffle)


def measure(name: str, ranks: int) -> dict[str, float]:
    pin_places()
    make = GRAPHS[name]
    before = most_memory()
    states = states_of(make, ranks)
    held = most_memory()
    begun = process_time()
    rank_snapshots(states)
    reading = process_time() - begun
    others = ranks + ranks // 10
    loader = loader_of(make(), others - 1, others, OTHER_WORKERS)
    begun = process_time()
    loader.load_state_dict(states)
    return {
        "reading": reading,
        "loading": process_time() - begun,
        "states": held - before,
        "more": most_memory() - held,
        "bytes": max(len(pickle.dumps(state)) for state in states),
    }


def most_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def best_of(name: str, ranks: int) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, name, str(ranks)]
    rounds = [json.loads(subprocess.check_output(command)) for _ in range(ROUNDS)]
    return {key: min(each[key] for each in rounds) for key in rounds[0]}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    print(
        f"{'ranks':>16} {'reading, s':>11} {'all, s':>7} {'states, MiB':>12} {'more, MiB':>10}",
        end="",
    )
    print(f" {'bytes of one':>13}")
    for name in GRAPHS:
        for ranks in RANKS:
            found = best_of(name, ranks)
            print(f"{name:9} {ranks:6,} {found['reading']:11.3f} {found['loading']:7.3f}", end="")
            print(f" {found['states']:12.1f} {found['more']:10.1f} {found['bytes']:13}", flush=True)


if __name__ == "__main__":
    main()
