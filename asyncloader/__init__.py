"""The PyTorch data loader you can await."""

from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.errors import (
    ConcurrentIterationError,
    ForkedError,
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
    TransportError,
    WorkerDied,
    WorkerStartupError,
    WorkerTimeout,
)
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.loader.iterators import DataLoader2Iterator
from asyncloader.runtime import WorkerInfo, get_worker_info
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
)
from asyncloader.services.distributed import DistributedReadingService
from asyncloader.services.in_process import InProcessReadingService
from asyncloader.services.multi_processing import MultiProcessingReadingService
from asyncloader.services.sequential import SequentialReadingService
from asyncloader.serving.feed import Feed

__all__ = [
    "CheckpointableReadingServiceInterface",
    "ConcurrentIterationError",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "Feed",
    "ForkedError",
    "InProcessReadingService",
    "IterDataPipe",
    "IteratorInvalidated",
    "LoaderClosed",
    "LoaderError",
    "LoopMismatchError",
    "MapDataPipe",
    "MultiProcessingReadingService",
    "Overloaded",
    "PipelineError",
    "RankError",
    "RankTimeout",
    "ReadingServiceInterface",
    "ResourceExhausted",
    "SeedGenerator",
    "SequentialReadingService",
    "SnapshotError",
    "TransportError",
    "WorkerDied",
    "WorkerInfo",
    "WorkerStartupError",
    "WorkerTimeout",
    "functional_datapipe",
    "get_worker_info",
]
