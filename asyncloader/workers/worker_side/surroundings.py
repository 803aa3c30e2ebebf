"""What a worker's process is like for the user's code in it.

This file is about the global random generators, torch's threads, the allocator, and what
tells other libraries that this is a worker.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

from asyncloader.worker_info import WorkerInfo, is_hidden, set_worker_info
from asyncloader.workers.processes.late_imports import when_imported
from asyncloader.workers.worker_side.heap import keep_freed_memory


def become_worker(info: WorkerInfo) -> None:
    """Make ``get_worker_info`` answer, ours and torch's, and give torch one thread."""
    set_worker_info(info)
    keep_freed_memory()
    when_imported("torch", partial(_settle_torch, info, None))


def seed_globals(info: WorkerInfo | None, seeds: Sequence[int]) -> None:
    """Seed random, torch and numpy for an epoch, be they imported already or later.

    Each has one of the three seeds.
    """
    random_seed, torch_seed, numpy_seed = seeds
    random.seed(random_seed)
    when_imported("torch", partial(_settle_torch, info, torch_seed))
    # numpy itself imports it only when somebody looks at it.
    when_imported("numpy.random", partial(_seed_numpy, numpy_seed >> 32))


def _settle_torch(info: WorkerInfo | None, seed: int | None, torch: ModuleType) -> None:
    torch.set_num_threads(1)
    if seed is not None:
        torch.manual_seed(seed)
    if info is not None:
        _tell_torch(info, seed)


def _tell_torch(info: WorkerInfo, seed: int | None) -> None:
    # torch's own get_worker_info reads this variable; other libraries shard by it.
    from torch.utils.data._utils import worker as torch_worker

    worker: Any = torch_worker

    facts: dict[str, Any] = {
        "id": info.worker_id,
        "num_workers": info.num_workers,
        "seed": seed or 0,
        "dataset": None,
    }
    worker._worker_info = worker.WorkerInfo(**facts)
    # Many hold the function itself, so it is the function that has to answer otherwise.
    worker.is_hidden = is_hidden
    worker.get_worker_info.__code__ = _get_torch_worker_info.__code__


#: Stands for torch's own variable of that name.
_worker_info: Any = None


def _get_torch_worker_info() -> Any:
    return None if is_hidden() else _worker_info


def _seed_numpy(seed: int, numpy_random: ModuleType) -> None:
    numpy_random.seed(seed)
