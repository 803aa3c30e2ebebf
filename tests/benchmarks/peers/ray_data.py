"""Ray Data: a dataset of numbers, mapped by tasks of a cluster; an item is a row or a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.job import Job

#: As many batches are on their way as a worker of ours may be ahead.
AHEAD = 10


@dataclass
class Rows:
    """The items of a job as rows; each iteration runs the dataset anew."""

    job: Job

    def __iter__(self) -> Iterator[Any]:
        for row in _numbers(self.job).map(self._row).iter_rows():
            yield row["item"]

    def _row(self, row: dict[str, int]) -> dict[str, Any]:
        return {"item": self.job.function(row["id"])}


@dataclass
class Batches:
    """The items of a job as arrays, or with ``is_torch`` as tensors, of so many together."""

    job: Job
    size: int
    is_torch: bool

    def __iter__(self) -> Iterator[Any]:
        data = _numbers(self.job).map_batches(self._batch, batch_size=self.size)
        settings = {"batch_size": self.size, "prefetch_batches": AHEAD}
        batches = data.iter_torch_batches if self.is_torch else data.iter_batches
        for batch in batches(**settings):
            yield batch["item"]

    def _batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy

        items = [self.job.function(number) for number in batch["id"].tolist()]
        return {"item": numpy.stack(list(map(numpy.asarray, items)))}


def _numbers(job: Job) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data.range(job.count)


def rows(job: Job) -> Iterable[Any]:
    return Rows(job)


def batches(job: Job) -> Iterable[Any]:
    return Batches(job, job.batch_size, is_torch=False)


def tensors(job: Job) -> Iterable[Any]:
    """Return the items as tensors: as batches of one where the job has no batches."""
    return Batches(job, job.batch_size or 1, is_torch=True)
