"""States of ranks that are kept as files, to be resumed by every later asyncloader.

``python -m tests.before.ranks --make NAME`` writes a new file, of the graphs here on two ranks and
on three, without workers and with two, at every step of two epochs. The tests resume a part.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.before import side
from tests.before.golden import FOLDER
from tests.processes.ranks import Company, scene

MODULE = "tests.before.ranks"
RANKS = FOLDER / "ranks"

GRAPHS = (
    "p0 = IterableWrapper(range(24)).shuffle(buffer_size=10).sharding_filter().map(tag)",
    "p0 = IterableWrapper(range(48)).shuffle().batch(2).sharding_filter().map(tag_all)",
    "p0 = SequenceWrapper(list(range(24))).shuffle().sharding_filter()",
    "p0 = IterableWrapper(range(40)).sharding_filter().shuffle(buffer_size=7).batch(3)",
    "p0 = IterableWrapper(range(40)).sharding_filter().groupby(kind, group_size=3)",
    "p0 = IterableWrapper(range(9)).shuffle().cycle(3).sharding_filter().enumerate()",
    "p0 = IterableWrapper(range(12)).shuffle()\n"
    "p1 = p0.concat(IterableWrapper(range(100, 112)).shuffle()).sharding_filter()",
    "p0, p1 = IterableWrapper(range(30)).shuffle().sharding_filter().fork(2)\n"
    "p2 = p0.zip(p1.map(tag))",
    "p0 = IterableWrapper(range(30)).shuffle().filter(is_kept).sharding_filter().prefetch(4)",
    "p0 = IterableWrapper(range(20)).sharding_filter().flatmap(thrice).shuffle(buffer_size=5)",
    "p0 = IterableWrapper(range(24)).shuffle().sharding_filter().thread_map(tag, concurrency=3)",
    "p0 = IterableWrapper(range(25)).shuffle().sharding_filter().map(tag).batch(2)",
)
ON_RANKS = "DistributedReadingService(60)"
PADDED = "DistributedReadingService(60, uneven='pad')"
WITH_WORKERS = "SequentialReadingService({}, MultiProcessingReadingService(2))"
SERVICES = (ON_RANKS, PADDED, WITH_WORKERS.format(ON_RANKS))


@dataclass(frozen=True)
class KeptOfRanks:
    """The epochs of a graph on each rank of a run, and the states along them, rank by rank."""

    graph: str
    service: str
    epochs: list[list[side.Items]]
    #: The number of the epoch, how many items came, and the state of each rank.
    states: list[tuple[int, int, list[dict[str, Any]]]]

    @property
    def size(self) -> int:
        return len(self.epochs)

    def rests(self, at: int) -> list[list[side.Items]]:
        """Return what comes on each rank after a state, in its epoch and the next one."""
        number, step, _ = self.states[at]
        return [side.after(epochs, number, step) for epochs in self.epochs]


def read() -> Iterator[KeptOfRanks]:
    """Yield all that is kept."""
    for file in sorted(RANKS.glob("*.xz")):
        with lzma.open(file, "rt") as lines:
            for line in lines:
                yield KeptOfRanks(**json.loads(line))


# On each rank -------------------------------------------------------------------------------------


@scene
def recorded(graph: str, service: str) -> dict[str, Any]:
    side.pin_places()
    return side.record(side.Graphs(), {"graph": graph, "service": service})


@scene
def resumed(graph: str, service: str, states: list[Any], form: str) -> list[side.Items]:
    task = {"graph": graph, "service": service, "form": form}

    found = side.rest(side.Graphs(), {**task, "state": states[dist.get_rank()]})
    return list(found["epochs"])


# Making them --------------------------------------------------------------------------------------


def make(name: str) -> None:
    """Write the file of this asyncloader."""
    file = RANKS / f"{name}.xz"
    count = 0
    with tempfile.TemporaryDirectory() as folder, Company(MODULE, Path(folder)) as company:
        kept = [_kept(company, size, *what) for size in (2, 3) for what in _chosen()]
    with lzma.open(file, "wt", preset=9 | lzma.PRESET_EXTREME) as lines:
        for each in kept:
            count += len(each.states)
            lines.write(json.dumps(asdict(each)) + "\n")
    print(f"{file.name}: {len(kept)} runs, {count} states, {file.stat().st_size / 2**10:.0f} KiB")


def _chosen() -> Iterator[tuple[str, str]]:
    for number, graph in enumerate(GRAPHS):
        yield graph, SERVICES[number % len(SERVICES)]
        yield graph, SERVICES[-1] if number % len(SERVICES) != len(SERVICES) - 1 else ON_RANKS


def _kept(company: Company, size: int, graph: str, service: str) -> KeptOfRanks:
    found = company.play("recorded", size, graph, service)
    # One rank may have another length than others only by what is wrong.
    steps = [[(number, step) for number, step, _ in each["states"]] for each in found]
    assert all(each == steps[0] for each in steps), graph
    refused = [state for each in found for *_, state in each["states"] if isinstance(state, str)]
    assert not refused, (graph, service, refused[0])
    states = [
        (number, step, [each["states"][at][2] for each in found])
        for at, (number, step) in enumerate(steps[0])
    ]
    return KeptOfRanks(graph, service, [each["epochs"] for each in found], states)


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--make", metavar="NAME", required=True, help="write a new file")
    make(parser.parse_args().make)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
