"""torchdata 0.9, the last with DataLoader2, in an environment of its own."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.environments import Environment
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS

#: What it imports beside torch.
ENVIRONMENT = Environment(
    "torchdata-0.9",
    (
        "torchdata==0.9.0",
        "requests==2.34.2",
        "urllib3==2.8.0",
        "idna==3.20",
        "certifi==2026.10.18",
        "charset_normalizer==3.5.2",
    ),
)


def in_process(job: Job) -> Any:
    from torchdata.dataloader2 import DataLoader2

    return DataLoader2(_graph(job, sharded=False))


def processes(job: Job, method: str = "fork") -> Any:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    service = MultiProcessingReadingService(WORKERS, multiprocessing_context=method)
    return DataLoader2(_graph(job, sharded=True), reading_service=service)


def _graph(job: Job, *, sharded: bool) -> Any:
    from torchdata.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(job.count), deepcopy=False)
    if sharded:
        pipe = pipe.sharding_filter()
    pipe = pipe.map(job.function)
    if not job.batch_size:
        return pipe
    # Its batches are lists already.
    batches = pipe.batch(job.batch_size, wrapper_class=list)
    return batches if job.collate is list else batches.map(job.collate)
