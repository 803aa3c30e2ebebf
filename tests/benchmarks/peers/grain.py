"""grain: its reading threads, and its worker processes with numpy's arrays in shared memory."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.job import Job, Repeated
from tests.benchmarks.measuring import CORES, WORKERS


def in_process(job: Job) -> Any:
    # Without threads, as it advises for data in memory.
    return _read(_mapped(job), threads=0)


def threads(job: Job, count: int = CORES) -> Any:
    return _read(_mapped(job), threads=count)


def processes(job: Job) -> Any:
    import grain

    # Workers end with an epoch; its way to several epochs is to repeat the dataset.
    items = _read(_mapped(job).repeat(), threads=0)
    ahead = 4 if job.nbytes else 64
    options = grain.multiprocessing.MultiprocessingOptions(WORKERS, per_worker_buffer_size=ahead)
    return Repeated(items.mp_prefetch(options), len(job))


def _mapped(job: Job) -> Any:
    import grain

    items = grain.MapDataset.range(job.count).map(job.function)
    return items.batch(job.batch_size, batch_fn=job.collate) if job.batch_size else items


def _read(items: Any, threads: int) -> Any:
    import grain

    return items.to_iter_dataset(grain.ReadOptions(threads, prefetch_buffer_size=max(threads, 64)))
