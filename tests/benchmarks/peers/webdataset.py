"""webdataset: its pipeline, alone and in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS


@dataclass
class Numbers:
    """The first stage of a pipeline."""

    count: int

    def __call__(self) -> Iterator[int]:
        return iter(range(self.count))


def in_process(job: Job) -> Any:
    import webdataset

    return webdataset.DataPipeline(Numbers(job.count), *_stages(job))


def processes(job: Job) -> Any:
    import webdataset

    # Its splitter of what it calls shards splits numbers as well.
    stages = [webdataset.split_by_worker, *_stages(job)]
    items = webdataset.DataPipeline(Numbers(job.count), *stages)
    ahead = 2 if job.nbytes >= 1 << 20 else 16
    return webdataset.WebLoader(
        items,
        batch_size=None,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=ahead,
        collate_fn=_unchanged,
    )


def _stages(job: Job) -> list[Any]:
    import webdataset

    stages = [webdataset.map(job.function)]
    if job.batch_size:
        stages.append(webdataset.batched(job.batch_size, collation_fn=job.collate))
    return stages


def _unchanged(item: Any) -> Any:
    return item
