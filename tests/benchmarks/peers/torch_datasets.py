"""Jobs as torch's datasets; a module that imports torch, so it is imported where one is opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.benchmarks.job import Job


class Stream(IterableDataset):  # type: ignore[type-arg]
    """A job's items, without batches; each worker has its share."""

    def __init__(self, job: Job) -> None:
        self.job = Job(job.count, job.function)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return self.job.part(info.id, info.num_workers) if info else self.job.part()


class Batches(Stream):
    """A job's items or batches; each worker has its share."""

    def __init__(self, job: Job) -> None:
        self.job = job


class Items(Dataset):  # type: ignore[type-arg]
    """A job's items by their number."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return self.job.count

    def __getitem__(self, number: int) -> Any:
        return self.job.function(number)
