"""The graph and the service of a loader that is made as torch's DataLoader is.

This file is about ``DataSetSettings``: the settings of ``DataLoader2.from_dataset``, which have
torch's names and defaults, and what they make.

    a map-style data set      looked up, shuffled, in batches ─ sharding_filter ─ collate
    with a sampler            looked up as it says, in batches ─ sharding_filter ─ collate
    an iterable one           each worker iterates its share ─ in batches ─ collate
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from asyncloader.arguments import checked_count, checked_function, kind_name
from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.converting import MapToIterConverter
from asyncloader.datapipes.full_sync import Uneven
from asyncloader.datapipes.mapping import Collator, Mapper
from asyncloader.datapipes.prefetching import PinMemory
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES, ShardingFilter
from asyncloader.datapipes.shared_sequence import SharedSequence
from asyncloader.datapipes.shuffling import MapShuffler
from asyncloader.datapipes.sources import IterableWrapper, SequenceWrapper
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.services.distributed import DistributedReadingService
from asyncloader.services.in_process import InProcessReadingService
from asyncloader.services.multi_processing import MultiProcessingReadingService
from asyncloader.services.multi_threading import MultiThreadingReadingService
from asyncloader.services.on_workers import with_number_alone
from asyncloader.services.sequential import SequentialReadingService
from asyncloader.system import HAS_WORKERS

logger = logging.getLogger("asyncloader")

WorkerKind = Literal["processes", "threads"]


@dataclass(frozen=True, kw_only=True)
class DataSetSettings:
    """The settings of ``DataLoader2.from_dataset``; ValueError for some that contradict."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int | Literal["auto"]
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    pin_memory_device: str
    in_order: bool
    seed: int | None
    distributed: Any
    uneven: Uneven
    on_worker_death: Literal["raise", "restart"]
    workers: WorkerKind | None

    def __post_init__(self) -> None:
        if is_pipe(self.dataset) and not isinstance(self.dataset, SharedSequence):
            raise TypeError(
                f"from_dataset takes a data set, got the pipe {self.dataset!r}; pass it to"
                " DataLoader2(...)"
            )
        if not (self.is_iterable or hasattr(type(self.dataset), "__getitem__")):
            raise TypeError(
                f"dataset must have __getitem__ or __iter__, got {kind_name(self.dataset)}"
            )
        for name, sampler in (("sampler", self.sampler), ("batch_sampler", self.batch_sampler)):
            is_iterable = isinstance(sampler, Iterable) or hasattr(sampler, "__getitem__")
            if sampler is not None and not is_iterable:
                raise TypeError(f"{name} must be iterable, got {kind_name(sampler)}")
        if self.prefetch_factor is not None:
            checked_count("prefetch_factor", self.prefetch_factor, at_least=0)
        for wrong, message in self._contradictions():
            if wrong:
                raise ValueError(message)

    def _contradictions(self) -> Iterable[tuple[bool, str]]:
        """Yield what may be wrong, as torch's DataLoader has it."""
        has_order = self.sampler is not None or self.batch_sampler is not None
        yield (
            self.is_iterable and bool(self.shuffle or has_order),
            "an iterable data set has its own order: leave out shuffle, sampler and"
            " batch_sampler (or shuffle in the data set)",
        )
        yield (
            self.sampler is not None and bool(self.shuffle),
            "sampler and shuffle exclude each other",
        )
        yield (
            self.batch_sampler is not None
            and (
                self.batch_size != 1
                or bool(self.shuffle or self.drop_last)
                or self.sampler is not None
            ),
            "batch_sampler excludes batch_size, shuffle, sampler and drop_last",
        )
        yield (
            self.batch_size is None and self.batch_sampler is None and self.drop_last,
            "batch_size=None, which makes no batches, excludes drop_last",
        )
        yield self.timeout < 0, f"timeout must be at least 0, got {self.timeout}"
        for name, is_given in (
            ("prefetch_factor", self.prefetch_factor is not None),
            ("multiprocessing_context", self.multiprocessing_context is not None),
        ):
            yield is_given and self.num_workers == 0, f"{name} goes with num_workers > 0"
        yield (
            self.workers not in ("processes", "threads", None),
            f'workers must be "processes", "threads" or None, got {self.workers!r}',
        )
        yield (
            self.workers == "threads" and self.multiprocessing_context is not None,
            'multiprocessing_context goes with workers="processes"',
        )
        yield (
            self.uneven != "drop" and self.distributed is False and not self._has_torchs_sampler(),
            f"uneven={self.uneven!r} goes with distributed",
        )
        yield (
            _divides_among_ranks(self.batch_sampler)
            or (_divides_among_ranks(self.sampler) and not self._has_torchs_sampler()),
            "a sampler that divides among ranks is not needed: pass distributed=True, with"
            " shuffle=True to shuffle. If it divides among data-parallel ranks alone, pass those,"
            ' distributed=mesh["dp"], a process group, or (rank, size)',
        )

    def without_ranks_sampler(self) -> DataSetSettings:
        """Return settings that say themselves what a DistributedSampler says, if that is given.

        Ranks divide batches then, and each epoch is shuffled anew without its ``set_epoch``.
        """
        if not self._has_torchs_sampler():
            return self
        sampler: Any = self.sampler
        if self.shuffle or self.distributed is not False:
            raise ValueError(
                "a DistributedSampler says itself how to shuffle and among which ranks: leave out"
                " shuffle and distributed"
            )
        if len(sampler.dataset) != len(self.dataset):
            raise ValueError(
                f"the DistributedSampler is one of {len(sampler.dataset)} items, and dataset has"
                f" {len(self.dataset)}"
            )
        has_seed = self.seed is not None or self.generator is not None
        return replace(
            self,
            sampler=None,
            shuffle=sampler.shuffle,
            seed=self.seed if has_seed else sampler.seed,
            distributed=(sampler.rank, sampler.num_replicas),
        )

    def _has_torchs_sampler(self) -> bool:
        data = sys.modules.get("torch.utils.data.distributed")
        return data is not None and type(self.sampler) is data.DistributedSampler

    @property
    def is_iterable(self) -> bool:
        """Whether the data set is iterated, and not looked up by key."""
        data = sys.modules.get("torch.utils.data")
        if data is not None and isinstance(self.dataset, data.IterableDataset):
            return True
        return hasattr(type(self.dataset), "__iter__") and not hasattr(
            type(self.dataset), "__getitem__"
        )

    def graph(self) -> Any:
        """Return the graph that the settings describe."""
        pipe = self._iterated() if self.is_iterable else self._looked_up()
        if self.batch_size is None and self.batch_sampler is None:
            pipe = Mapper(pipe, converted if self.collate_fn is None else self.collate_fn)
        else:
            pipe = Collator(pipe, collate_fn=self.collate_fn)
        return PinMemory(pipe, self.pin_memory_device or None) if self.pin_memory else pipe

    def _looked_up(self) -> Any:
        if self.batch_sampler is not None:
            batches: Any = SampledItems(self.dataset, self.batch_sampler, in_batches=True)
            return ShardingFilter(batches)
        return ShardingFilter(self._batched(self._ordered()))

    def _ordered(self) -> Any:
        if self.sampler is not None:
            return SampledItems(self.dataset, self.sampler)
        is_shared = isinstance(self.dataset, SharedSequence)
        data = self.dataset if is_shared else SequenceWrapper(self.dataset, deepcopy=False)
        return MapShuffler(data) if self.shuffle else MapToIterConverter(data)

    def _iterated(self) -> Any:
        # As in torch's workers, the data set itself takes a worker's share.
        shards_itself = True if self.num_workers else None
        pipe: Any = IterableWrapper(self.dataset, deepcopy=False, shards_itself=shards_itself)
        if self.distributed is not False:
            pipe = ShardingFilter(pipe, SHARDING_PRIORITIES.DISTRIBUTED)
        return self._batched(pipe)

    def _batched(self, pipe: Any) -> Any:
        return pipe if self.batch_size is None else Batcher(pipe, self.batch_size, self.drop_last)

    def service(self) -> ReadingServiceInterface:
        """Return the service that runs the graph."""
        here = self._workers() if self.num_workers else InProcessReadingService()
        if self.distributed is False:
            return here
        group = None if self.distributed is True else self.distributed
        among_ranks = DistributedReadingService(group=group, uneven=self.uneven)
        return SequentialReadingService(among_ranks, here)

    def _workers(self) -> ReadingServiceInterface:
        context, init_fn = self.multiprocessing_context, self.worker_init_fn
        method = (
            context if context is None or isinstance(context, str) else context.get_start_method()
        )
        if init_fn is not None:
            checked_function("worker_init_fn", init_fn, takes=1)
        make: Callable[..., ReadingServiceInterface] = (
            MultiThreadingReadingService
            if self._are_threads()
            else partial(MultiProcessingReadingService, multiprocessing_context=method)
        )
        return make(
            num_workers=self.num_workers,
            worker_prefetch_cnt=10 if self.prefetch_factor is None else self.prefetch_factor,
            worker_init_fn=None if init_fn is None else partial(with_number_alone, init_fn),
            in_order=self.in_order,
            timeout=self.timeout or None,
            on_worker_death=self.on_worker_death,
        )

    def _are_threads(self) -> bool:
        if self.workers is None and not HAS_WORKERS:
            logger.info(
                "the workers of this loader are threads, since there are no worker processes on"
                ' this system; workers="threads" says so, and the guide on workers what it'
                " means for random numbers"
            )
            return True
        return self.workers == "threads"

    def first_seed(self) -> int | None:
        """Return the seed of the loader, if there is one."""
        if self.seed is not None or self.generator is None:
            return self.seed
        import torch

        if not isinstance(self.generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {kind_name(self.generator)}")
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return int(drawn.item())


def _divides_among_ranks(sampler: Any) -> bool:
    counts = ("num_replicas", "world_size")
    return hasattr(sampler, "set_epoch") and any(hasattr(sampler, name) for name in counts)


def converted(item: Any) -> Any:
    """Return an item as torch's DataLoader does without batches: arrays become tensors."""
    from torch.utils.data import default_convert

    return default_convert(item)  # type: ignore[no-untyped-call]
