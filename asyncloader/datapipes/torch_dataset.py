"""A graph for torch's own DataLoader.

This file is about ``as_torch_dataset``, which lets a classic DataLoader run a graph:
each of its workers gets its share, and all of them agree on the order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from asyncloader.datapipes.edges import pipes_from
from asyncloader.datapipes.running.traits import is_filter_of_shards, is_random
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.seeds import SeedGenerator


def as_torch_dataset(pipe: Iterable[Any]) -> Any:
    """Return a ``torch.utils.data.IterableDataset`` over a graph.

    In the workers of a DataLoader the graph's sharding pipes divide the items; a
    graph without any runs whole in every worker, and each yields its share.
    Shuffles before the division have the same order in all workers.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> dataset = as_torch_dataset(IterableWrapper(range(4)).sharding_filter())
    >>> list(dataset)
    [0, 1, 2, 3]
    """
    dataset: Any = _dataset_class()(pipe)
    return dataset


@functools.cache
def _dataset_class() -> type:
    from torch.utils.data import IterableDataset, get_worker_info

    class PipeDataset(IterableDataset):  # type: ignore[type-arg]
        """The items of a graph, divided among the workers of a DataLoader."""

        def __init__(self, pipe: Iterable[Any]) -> None:
            self.pipe = pipe
            self.epoch = 0

        def __len__(self) -> int:
            return len(self.pipe)  # type: ignore[arg-type]  # a TypeError, as for any pipe

        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            if worker is None:
                return iter(self.pipe)
            # torch gives a persistent worker the same seed in all epochs.
            seeds = SeedGenerator((worker.seed - worker.id) % 2**64).spawn(self.epoch)
            self.epoch += 1
            return share_of(self.pipe, seeds.generate_seed(), worker.num_workers, worker.id)

        def __reduce__(self) -> Any:
            # The class is made on demand, so it cannot be pickled by name.
            return as_torch_dataset, (self.pipe,)

    return PipeDataset


def share_of(pipe: Iterable[Any], seed: int, workers: int, worker: int) -> Iterator[Any]:
    """Return an iterator over one worker's share of a graph; sets the graph up for that."""
    seeds = SeedGenerator(seed)
    sharding = list(filter(is_filter_of_shards, pipes_from(pipe)))
    for found in sharding:
        found.apply_sharding(workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    # Pipes after the division should differ between workers: they draw their own seeds from
    # torch's generator, which the DataLoader has seeded for this worker.
    for shared in filter(is_random, _each_once(sharding or [pipe])):
        shared.set_seed(seeds.generate_shared_seed())
    return iter(pipe) if sharding else islice(pipe, worker, None, workers)


def _each_once(pipes: list[Any]) -> list[Any]:
    found = {id(above): above for pipe in pipes for above in pipes_from(pipe)}
    return list(found.values())
