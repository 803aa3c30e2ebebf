"""Which worker this process is, if it is one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerInfo:
    """Which of how many workers this process is.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def named(pipe, info):
    ...     return pipe.map(lambda number: f"{number} of worker {info.worker_id}")
    >>> pipe = IterableWrapper(range(2)).sharding_filter()
    >>> service = MultiProcessingReadingService(2, worker_init_fn=named)
    >>> with DataLoader2(pipe, None, service) as loader:
    ...     list(loader)
    ['0 of worker 0', '1 of worker 1']
    """

    num_workers: int
    worker_id: int


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return what worker this process is, or None outside of workers.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(2)).sharding_filter().map(lambda number: get_worker_info())
    >>> with DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader:
    ...     list(loader)
    [WorkerInfo(num_workers=2, worker_id=0), WorkerInfo(num_workers=2, worker_id=1)]
    >>> get_worker_info() is None
    True
    """
    return _worker_info


def set_worker_info(info: WorkerInfo) -> None:
    """Make this process a worker."""
    global _worker_info
    _worker_info = info
