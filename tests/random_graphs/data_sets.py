"""What programs bring along: data sets, samplers and services of their own.

This file is about data sets and samplers of every kind that ``from_dataset`` takes: torch's, and
ones as users write them, with generators of NumPy and of Python, their own and the process's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (  # noqa: F401 - graphs are built with their names
    BatchSampler,
    ConcatDataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from asyncloader import DataLoader2
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import IterResetFn, ReadingServiceInterface, unchanged

#: Ids of one source lie between two multiples of it.
SPAN = 1000


def ids(source: int, count: int) -> list[int]:
    """The ids of a source."""
    return list(range(source * SPAN, source * SPAN + count))


def plain(item: Any) -> Any:
    """Make ids of what is in tensors and arrays, so that items can be compared."""
    if isinstance(item, (torch.Tensor, numpy.ndarray, numpy.integer)):
        return item.tolist()
    if isinstance(item, (list, tuple)):
        return type(item)(map(plain, item))
    return {key: plain(value) for key, value in item.items()} if isinstance(item, dict) else item


def from_data_set(data: Any, **settings: Any) -> Any:
    """The graph of a loader that is made as torch's, of which each worker has its share."""
    return DataLoader2.from_dataset(data, collate_fn=plain, num_workers=1, **settings).datapipe


# Data sets --------------------------------------------------------------------------------------


class Rows:
    """A data set that is looked up, one item after the other."""

    def __init__(self, source: int, count: int, made: Callable[[Any], Any] | None = None) -> None:
        self.ids = ids(source, count)
        self.made = made

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: int) -> Any:
        return self.ids[key] if self.made is None else self.made(self.ids[key])


class ManyRows(Rows):
    """A data set that is asked for many items at once."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


class ReadAgain(Rows):
    """A data set whose state leaves the data out; a copy reads them again."""

    def __init__(self, source: int, count: int) -> None:
        super().__init__(source, count)
        self.told = source, count

    def __getstate__(self) -> dict[str, Any]:
        return {"told": self.told}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["told"])  # type: ignore[misc]  # as such data sets do it


class Named:
    """A data set that is looked up by names."""

    def __init__(self, source: int, count: int) -> None:
        self.rows = {str(each): each for each in ids(source, count)}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> int:
        return self.rows[name]


def tensors(source: int, count: int) -> Any:
    """A data set in memory, of tensors."""
    numbers = torch.tensor(ids(source, count), dtype=torch.int64)
    return TensorDataset(numbers, torch.zeros(count, 2))


def array(source: int, count: int) -> Any:
    """A data set in memory, which is one array."""
    return numpy.array(ids(source, count), dtype=numpy.int64)


def dicts(source: int, count: int) -> Any:
    """A data set in memory, of dicts."""
    return [{"id": each, "text": str(each)} for each in ids(source, count)]


def put_together(source: int, count: int) -> Any:
    """A data set of parts of others."""
    half = count // 2
    whole = Rows(source, count)
    return ConcatDataset(
        [Subset(whole, range(half)), Subset(ManyRows(source, count), range(half, count))]  # type: ignore[arg-type]
    )


class Streamed(IterableDataset[int]):
    """A data set that is iterated, and takes a worker's share itself."""

    def __init__(self, source: int, count: int) -> None:
        self.ids = ids(source, count)

    def __iter__(self) -> Iterator[int]:
        yield from self.ids[_share()]


class Continued(IterableDataset[int]):
    """A data set that is iterated, and finds its place by itself."""

    def __init__(self, source: int, count: int) -> None:
        self.ids = ids(source, count)
        self.first = self.next = 0

    def __iter__(self) -> Iterator[int]:
        first, self.first = self.first, 0
        share = self.ids[_share()]
        for place in range(first, len(share)):
            self.next = place + 1
            yield share[place]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["next"]


def _share() -> slice:
    info = get_worker_info()
    return slice(None) if info is None else slice(info.id, None, info.num_workers)


# Samplers ---------------------------------------------------------------------------------------


class OfNumpy:
    """Draws its order from the global generator of NumPy."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        yield from numpy.random.permutation(self.count).tolist()


class OfPython(OfNumpy):
    """Draws each key from the global generator of Python when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        keys = list(range(self.count))
        while keys:
            yield keys.pop(random.randrange(len(keys)))


class OfTorch(OfNumpy):
    """Draws its order from the global generator of torch."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count).tolist()


class WithRandom(OfNumpy):
    """Has a generator of Python's own."""

    def __init__(self, count: int, seed: int | None = 0) -> None:
        super().__init__(count)
        self.luck = random.Random(seed)

    def __iter__(self) -> Iterator[int]:
        keys = list(range(self.count))
        self.luck.shuffle(keys)
        yield from keys


class WithNumpy(OfNumpy):
    """Has a generator of NumPy's own."""

    def __init__(self, count: int, seed: int | None = 0) -> None:
        super().__init__(count)
        self.generator = numpy.random.default_rng(seed)

    def __iter__(self) -> Iterator[int]:
        yield from self.generator.permutation(self.count).tolist()


class WithNumpyState(OfNumpy):
    """Has a generator of NumPy's, of the earlier kind."""

    def __init__(self, count: int, seed: int | None = 0) -> None:
        super().__init__(count)
        self.state = numpy.random.RandomState(seed)

    def __iter__(self) -> Iterator[int]:
        yield from self.state.permutation(self.count).tolist()


class WithSeveral(OfNumpy):
    """Has generators in a list, of which now one draws and now another."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.luck = [random.Random(1), random.Random(2)]

    def __iter__(self) -> Iterator[int]:
        keys = list(range(self.count))
        for luck in self.luck:
            luck.shuffle(keys)
        yield from keys


class Around(OfNumpy):
    """Asks another sampler."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(len(sampler))
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        yield from self.sampler


class Counting(OfNumpy):
    """Draws by the number of the epoch, which it counts itself."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        keys = list(range(self.count))
        random.Random(self.epoch).shuffle(keys)
        yield from keys


class Told(OfNumpy):
    """Draws by the number of the epoch, which it is told."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        keys = list(range(self.count))
        random.Random(self.epoch).shuffle(keys)
        yield from keys


class Resumed(OfNumpy):
    """Finds its place by itself, as samplers for exact resuming do; its order is of a seed."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.first = self.next = 0

    def __iter__(self) -> Iterator[int]:
        first, self.first = self.first, 0
        keys = list(range(self.count))
        random.Random(5).shuffle(keys)
        for place in range(first, self.count):
            self.next = place + 1
            yield keys[place]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["next"]


class InBuckets:
    """A batch sampler that puts neighbours together, and draws the order of the batches."""

    def __init__(self, count: int, size: int, luck: Any = random) -> None:
        self.count, self.size = count, size
        self.luck = luck

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        starts = list(range(0, self.count, self.size))
        self.luck.shuffle(starts)
        for start in starts:
            yield list(range(start, min(start + self.size, self.count)))


# Services ---------------------------------------------------------------------------------------


class Rekeyed(ReadingServiceInterface):
    """Changes what the epoch's seeds are drawn from."""

    def initialize_iteration(self, seed_generator: SeedGenerator) -> None:  # type: ignore[override]
        seed_generator.seed(seed_generator.generate_shared_seed() ^ 1)


class Spawned(ReadingServiceInterface):
    """Makes the seeds of workers others."""

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        seed_generator.spawn(3, inplace=True)
        return iter_reset_fn


class Resetting(ReadingServiceInterface):
    """Has a function of its own called with the graph before each epoch."""

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        async def reset(pipe: Any) -> Any:
            return await iter_reset_fn(pipe)

        return reset
