"""The PyTorch data loader you can await."""

from typing import TYPE_CHECKING, Any

from asyncloader.datapipes.call import set_debug
from asyncloader.errors import (
    ConcurrentIterationError,
    ForkedError,
    HttpError,
    HttpUnavailable,
    IteratorInvalidated,
    LoaderClosed,
    LoaderError,
    LoopMismatchError,
    Overloaded,
    PipelineError,
    RankError,
    RankTimeout,
    ResourceExhausted,
    SnapshotError,
    TooManyErrors,
    TransportError,
    WorkerDied,
    WorkerStartupError,
    WorkerTimeout,
)
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.loader.iterators import DataLoader2Iterator
from asyncloader.loader.stage_stats import StageStats
from asyncloader.loader.stats import LoaderStats, Metric
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
)
from asyncloader.services.distributed import DistributedReadingService
from asyncloader.services.in_process import InProcessReadingService
from asyncloader.services.multi_processing import MultiProcessingReadingService
from asyncloader.services.ray import RayReadingService
from asyncloader.services.sequential import SequentialReadingService
from asyncloader.worker_info import WorkerInfo, get_worker_info
from asyncloader.workers.worker_stats import WorkerStats

if TYPE_CHECKING:
    from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
    from asyncloader.serving.feed import Feed
    from asyncloader.serving.requests import FeedStats

__all__ = [
    "CheckpointableReadingServiceInterface",
    "ConcurrentIterationError",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "Feed",
    "FeedStats",
    "ForkedError",
    "HttpError",
    "HttpUnavailable",
    "InProcessReadingService",
    "IterDataPipe",
    "IteratorInvalidated",
    "LoaderClosed",
    "LoaderError",
    "LoaderStats",
    "LoopMismatchError",
    "MapDataPipe",
    "Metric",
    "MultiProcessingReadingService",
    "Overloaded",
    "PipelineError",
    "RankError",
    "RankTimeout",
    "RayReadingService",
    "ReadingServiceInterface",
    "ResourceExhausted",
    "SeedGenerator",
    "SequentialReadingService",
    "SnapshotError",
    "StageStats",
    "TooManyErrors",
    "TransportError",
    "WorkerDied",
    "WorkerInfo",
    "WorkerStartupError",
    "WorkerStats",
    "WorkerTimeout",
    "functional_datapipe",
    "get_worker_info",
    "set_debug",
]


def __dir__() -> list[str]:
    # What an editor or a shell offers, whether it was asked for before or not.
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Defining a pipe gives all pipes its fluent method. Whoever writes a pipe is to have them
    # all, and a process where nobody does is not to import all families of pipes.
    module: Any
    if name == "Feed":
        from asyncloader.serving import feed as module
    elif name == "FeedStats":
        from asyncloader.serving import requests as module
    elif name in ("IterDataPipe", "functional_datapipe"):
        from asyncloader.datapipes import iter as module
    elif name == "MapDataPipe":
        from asyncloader.datapipes import map as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, so that it is found like any other name from now on.
    globals()[name] = found = getattr(module, name)
    return found
