"""The PyTorch data loader you can await."""

from importlib import import_module
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
    StarvedError,
    TooManyErrors,
    TransportError,
    WorkerDied,
    WorkerStartupError,
    WorkerTimeout,
)
from asyncloader.seeds import SeedGenerator
from asyncloader.worker_info import WorkerInfo, get_worker_info

if TYPE_CHECKING:
    from asyncloader.datapipes.admission import Again, Version
    from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
    from asyncloader.datapipes.patterns import Pipe
    from asyncloader.datapipes.rollouts import RolloutStats
    from asyncloader.datapipes.running.cursor_forms import State
    from asyncloader.datapipes.running.run import Edge
    from asyncloader.datapipes.running.watch.under_way import UnderWay
    from asyncloader.loader.dataloader2 import DataLoader2
    from asyncloader.loader.iterators import DataLoader2Iterator
    from asyncloader.loader.long_waits import Wait
    from asyncloader.loader.stage_stats import StageStats
    from asyncloader.loader.stats import LoaderStats, Metric
    from asyncloader.services.base import (
        CheckpointableReadingServiceInterface,
        IterResetFn,
        ReadingServiceInterface,
        unchanged,
    )
    from asyncloader.services.distributed import DistributedReadingService
    from asyncloader.services.in_process import InProcessReadingService
    from asyncloader.services.multi_processing import MultiProcessingReadingService
    from asyncloader.services.multi_threading import MultiThreadingReadingService
    from asyncloader.services.ray import RayReadingService
    from asyncloader.services.sequential import SequentialReadingService
    from asyncloader.serving.feed import Feed
    from asyncloader.serving.requests import FeedStats
    from asyncloader.workers.worker_stats import WorkerStats

__all__ = [
    "Again",
    "CheckpointableReadingServiceInterface",
    "ConcurrentIterationError",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "Edge",
    "Feed",
    "FeedStats",
    "ForkedError",
    "HttpError",
    "HttpUnavailable",
    "InProcessReadingService",
    "IterDataPipe",
    "IterResetFn",
    "IteratorInvalidated",
    "LoaderClosed",
    "LoaderError",
    "LoaderStats",
    "LoopMismatchError",
    "MapDataPipe",
    "Metric",
    "MultiProcessingReadingService",
    "MultiThreadingReadingService",
    "Overloaded",
    "Pipe",
    "PipelineError",
    "RankError",
    "RankTimeout",
    "RayReadingService",
    "ReadingServiceInterface",
    "ResourceExhausted",
    "RolloutStats",
    "SeedGenerator",
    "SequentialReadingService",
    "SnapshotError",
    "StageStats",
    "StarvedError",
    "State",
    "TooManyErrors",
    "TransportError",
    "UnderWay",
    "Version",
    "Wait",
    "WorkerDied",
    "WorkerInfo",
    "WorkerStartupError",
    "WorkerStats",
    "WorkerTimeout",
    "functional_datapipe",
    "get_worker_info",
    "set_debug",
    "unchanged",
]

#: What is imported when it is asked for, and where it is: a worker needs nothing of loaders.
_HOMES = {
    "Again": "datapipes.admission",
    "CheckpointableReadingServiceInterface": "services.base",
    "DataLoader2": "loader.dataloader2",
    "DataLoader2Iterator": "loader.iterators",
    "DistributedReadingService": "services.distributed",
    "Edge": "datapipes.running.run",
    "Feed": "serving.feed",
    "FeedStats": "serving.requests",
    "InProcessReadingService": "services.in_process",
    # Defining a pipe gives all pipes its fluent method. Whoever writes a pipe is to have them all.
    "IterDataPipe": "datapipes.iter",
    "IterResetFn": "services.base",
    "LoaderStats": "loader.stats",
    "MapDataPipe": "datapipes.map",
    "Metric": "loader.stats",
    "MultiProcessingReadingService": "services.multi_processing",
    "MultiThreadingReadingService": "services.multi_threading",
    "Pipe": "datapipes.iter",
    "RayReadingService": "services.ray",
    "ReadingServiceInterface": "services.base",
    "RolloutStats": "datapipes.rollouts",
    "SequentialReadingService": "services.sequential",
    "StageStats": "loader.stage_stats",
    "State": "datapipes.running.cursor_forms",
    "Version": "datapipes.admission",
    "UnderWay": "datapipes.running.watch.under_way",
    "Wait": "loader.long_waits",
    "WorkerStats": "workers.worker_stats",
    "functional_datapipe": "datapipes.iter",
    "unchanged": "services.base",
}


def __dir__() -> list[str]:
    # What an editor or a shell offers: public names, whether they were asked for before or not,
    # and the public modules that were imported.
    modules = {"adapters", "datapipes", "errors", "graph", "serving", "testing"}
    return sorted({*__all__, *modules.intersection(globals())})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, so that it is found like any other name from now on.
    globals()[name] = found = getattr(import_module(f"asyncloader.{_HOMES[name]}"), name)
    return found
