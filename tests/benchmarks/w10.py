"""W10: what it costs to take the state at every step, and to go on at 90 % of a million items.

A step is a batch: of small integers, where taking the state is most of the work, and of
decoded images, which is what a step costs in training. Seconds to resume are those from a
loader to its first item, less those of the same loader without a state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from statistics import median
from typing import Any

from tests.benchmarks import w4
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, graph_of, our_loader, sync_rate
from tests.benchmarks.peers.catalogue import STATEFUL, STATEFUL_NEEDS
from tests.benchmarks.sizes import sized

SMALL = Job(sized(204_800, 2_048), batch_size=64)
ROWS = sized(1_000_000, 10_000)
SHARE = 0.9
BATCH_SIZE = 100
#: Start-ups of each kind, of whose differences the median counts.
PAIRS = sized(5, 1)
#: A start-up varies by more than resuming takes; a difference below this is none.
LEAST = 1e-4


class Stepping:
    """A loader whose state is taken at every step, or of the same loops without."""

    def __init__(self, loader: Any, take_state: Callable[[], Any]) -> None:
        self.loader = loader
        self.take_state = take_state

    def __iter__(self) -> Any:
        for item in self.loader:
            self.take_state()
            yield item


def nothing() -> None:
    """Take no state."""


def our_steps(job: Job, workers: int, states: bool) -> float:
    w4.prepare()
    with our_loader(graph_of(job, workers), workers) as loader:
        return _rate(loader, states)


def stateful_steps(job: Job, workers: int, states: bool) -> float:
    w4.prepare()
    # The state at every step takes a state of the workers at every step.
    return _rate(_stateful(job, workers), states)


def _stateful(job: Job, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    settings: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 4}
    dataset = _items(job)
    return StatefulDataLoader(
        dataset,
        batch_size=job.batch_size,
        collate_fn=job.collate,
        num_workers=workers,
        snapshot_every_n_steps=1,
        **(settings if workers else {}),
    )


def _items(job: Job) -> Any:
    from tests.benchmarks.peers.torch_datasets import Items

    return Items(job)


def _rate(loader: Any, states: bool) -> float:
    return sync_rate(Stepping(loader, loader.state_dict if states else nothing), len, epochs=2)


def our_resume(workers: int) -> float:
    """Return the seconds that the first batch takes longer after a state than without."""
    with _our_rows(workers) as loader:
        _take(loader)
        state = loader.state_dict()
    return median([_our_difference(workers, state) for _ in range(PAIRS)])


def _our_difference(workers: int, state: dict[str, Any]) -> float:
    with _our_rows(workers) as fresh, _our_rows(workers) as resumed:
        resumed.load_state_dict(state)
        return _longer(resumed, fresh)


def _our_rows(workers: int) -> Any:
    from asyncloader.datapipes.map import SequenceWrapper

    rows = SequenceWrapper(range(ROWS)).shuffle()
    rows = rows.sharding_filter() if workers else rows
    loader = our_loader(rows.batch(BATCH_SIZE), workers)
    loader.seed(1)
    return loader


def stateful_resume(workers: int) -> float:
    loader = _stateful_rows(workers)
    _take(loader)
    state = loader.state_dict()
    return median([_stateful_difference(workers, state) for _ in range(PAIRS)])


def _stateful_difference(workers: int, state: dict[str, Any]) -> float:
    fresh, resumed = _stateful_rows(workers), _stateful_rows(workers)
    resumed.load_state_dict(state)
    return _longer(resumed, fresh)


def _stateful_rows(workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        _items(Job(ROWS)),
        batch_size=BATCH_SIZE,
        shuffle=True,
        collate_fn=list,
        num_workers=workers,
        snapshot_every_n_steps=1,
    )


def _take(loader: Iterable[Any]) -> None:
    """Take 90 % of the rows."""
    for _ in islice(loader, int(SHARE * ROWS) // BATCH_SIZE):
        pass


def _longer(one: Iterable[Any], other: Iterable[Any]) -> float:
    return max(_seconds_to_first(one) - _seconds_to_first(other), LEAST)


def _seconds_to_first(loader: Iterable[Any]) -> float:
    began = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began


def steps(title: str, job: Job, workers: int) -> Comparison:
    where = f"{workers} workers" if workers else "in-process"
    ours, stateful = f"asyncloader, {where}", f"{STATEFUL}, {where}"
    states = "state_dict at every step"
    return Comparison(
        f"W10: {title}, {where}, with and without the state at every step",
        "items/s",
        [
            Case(ours, our_steps, args=(job, workers, False)),
            Case(f"{ours}, {states}", our_steps, args=(job, workers, True)),
            Case(stateful, stateful_steps, STATEFUL_NEEDS, (job, workers, False)),
            Case(f"{stateful}, {states}", stateful_steps, STATEFUL_NEEDS, (job, workers, True)),
        ],
        against=[ours, stateful],
        targets=[Target(f"{ours}, {states}", 0.95, ours)],
    )


def resume(workers: int) -> Comparison:
    where = f"{workers} workers" if workers else "in-process"
    return Comparison(
        f"W10: to go on at 90 % of {ROWS:,} shuffled rows, {where}, beyond start-up",
        "s",
        [
            Case("asyncloader", our_resume, args=(workers,)),
            Case(STATEFUL, stateful_resume, STATEFUL_NEEDS, (workers,)),
        ],
        against=[STATEFUL],
        targets=[Target("asyncloader", 0.1, at_most=True)],
        less_is_better=True,
    )


COMPARISONS = [
    steps("batches of 64 integers", SMALL, 0),
    steps("batches of 64 integers", SMALL, WORKERS),
    steps("batches of 32 images", w4.JOB, 0),
    steps("batches of 32 images", w4.JOB, WORKERS),
    resume(0),
    resume(WORKERS),
]
