"""torchdata's nodes: a mapper of threads or of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.job import Job, Repeated, forever
from tests.benchmarks.measuring import CORES, WORKERS

#: Items that travel together where they are small and come one by one.
TOGETHER = 64


@dataclass
class Forever:
    """The values again and again; its workers end with an epoch, so epochs never end."""

    values: Any

    def __iter__(self) -> Iterator[Any]:
        return forever(self.values)


def in_process(job: Job) -> Any:
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper

    items = Mapper(IterableWrapper(range(job.count)), job.function)
    if not job.batch_size:
        return Loader(items)
    batches = Batcher(items, job.batch_size, drop_last=False)
    return Loader(batches if job.collate is list else Mapper(batches, job.collate))


def one_call_a_batch(job: Job) -> Any:
    from torchdata.nodes import IterableWrapper, Loader, Mapper

    function, values = job.calls()
    return Loader(Mapper(IterableWrapper(values), function))


def threads(job: Job, count: int = CORES) -> Any:
    return _parallel(job, "thread", count)


def processes(job: Job) -> Any:
    return _parallel(job, "process", WORKERS)


def _parallel(job: Job, method: str, workers: int) -> Any:
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, Prefetcher

    function, values = job.calls()
    mapped = ParallelMapper(
        IterableWrapper(Forever(values)),
        function,
        num_workers=workers,
        method=method,
        multiprocessing_context="fork" if method == "process" else None,
        prebatch=TOGETHER if method == "process" and not (job.batch_size or job.nbytes) else None,
        snapshot_frequency=1000,
    )
    ahead = 2 if job.nbytes else 16
    return Repeated(Loader(Prefetcher(mapped, ahead, snapshot_frequency=1000)), len(job))
