"""torch's DataLoader, and torchdata's StatefulDataLoader, which is made of it."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS

MIB = 1 << 20


def in_process(job: Job) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(**_stream(job))


def batched_in_process(job: Job) -> Any:
    """Batch in the dataset: what the loader itself does takes longer."""
    from torch.utils.data import DataLoader

    from tests.benchmarks.peers.torch_datasets import Batches

    return DataLoader(Batches(job), batch_size=None, collate_fn=_unchanged)


def processes(job: Job, workers: int = WORKERS) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(**_stream(job), **_workers(job, workers))


def stateful_in_process(job: Job) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(**_stream(job))


def stateful_processes(job: Job, workers: int = WORKERS) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    # Its workers send their state along with every item, unless told to do so less often.
    usual = _workers(job, workers)
    return StatefulDataLoader(**_stream(job), **usual, snapshot_every_n_steps=1000)


def _stream(job: Job) -> dict[str, Any]:
    from tests.benchmarks.peers.torch_datasets import Stream

    # Without a function of our own it would make tensors, which takes far longer.
    collate = job.collate if job.batch_size else _unchanged
    return {"dataset": Stream(job), "batch_size": job.batch_size or None, "collate_fn": collate}


def _workers(job: Job, workers: int) -> dict[str, Any]:
    # Sixteen ahead is best for small items; of large ones they would not stay in any cache.
    ahead = 2 if job.nbytes >= MIB else 16
    return {"num_workers": workers, "persistent_workers": True, "prefetch_factor": ahead}


def _unchanged(item: Any) -> Any:
    return item
