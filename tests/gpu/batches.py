"""Batches whose every number says which batch it is in, and the graphs that make them."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe

LARGE = 200_000
SMALL = 3


class Pair(NamedTuple):
    """A named tuple of tensors."""

    small: torch.Tensor
    large: torch.Tensor


@dataclass
class Own:
    """A user's batch, which pins and moves itself."""

    inside: torch.Tensor
    was_pinned: bool = False

    def pin_memory(self) -> Own:
        return Own(self.inside.pin_memory(), was_pinned=True)

    def to(self, device: Any, non_blocking: bool = False) -> Own:
        return Own(self.inside.to(device, non_blocking=non_blocking), self.was_pinned)


def full(number: int, count: int = LARGE) -> torch.Tensor:
    return torch.full((count,), float(number))


def make(number: int) -> dict[str, Any]:
    """Return a batch of every kind of container."""
    return {
        "number": number,
        "tensor": full(number),
        "nested": {"list": [full(number, SMALL), "text", None], "tuple": (full(number),)},
        "ordered": OrderedDict(x=full(number)),
        "pair": Pair(full(number, SMALL), full(number)),
        "own": Own(full(number)),
        "strided": full(number).reshape(400, 500).t(),
        "expanded": full(number, 1).expand(LARGE),
        "empty": torch.empty(0),
        "half": torch.full((LARGE,), number, dtype=torch.float16),
    }


def tensors_of(batch: dict[str, Any]) -> list[torch.Tensor]:
    """Return all dense tensors of such a batch that have elements."""
    listed, other, nothing = batch["nested"]["list"]
    assert (other, nothing) == ("text", None)
    assert type(batch["pair"]) is Pair
    assert type(batch["ordered"]) is OrderedDict
    return [
        batch["tensor"],
        listed,
        *batch["nested"]["tuple"],
        *batch["ordered"].values(),
        *batch["pair"],
        batch["own"].inside,
        batch["strided"],
        batch["expanded"],
        batch["half"],
    ]


def is_right(batch: dict[str, Any], number: int) -> torch.Tensor:
    """Return whether all numbers are that of the batch, as a tensor: nothing waits for it."""
    assert batch["number"] == number
    assert batch["empty"].numel() == 0
    return torch.stack([(tensor == number).all() for tensor in tensors_of(batch)]).all()


def loader_of(graph: Any, workers: int, adapter: Any = None) -> DataLoader2[Any]:
    """Return a loader of a graph in so many workers, or in this process."""
    service = MultiProcessingReadingService(workers) if workers else None
    return DataLoader2(graph, adapter, reading_service=service)


def all_of(loader: DataLoader2[Any], form: str) -> list[Any]:
    """Return a loader's items by ``for`` or ``async for``, and shut it down."""
    if form == "for":
        with loader:
            return list(loader)
    return asyncio.run(_all_of(loader))


async def _all_of(loader: DataLoader2[Any]) -> list[Any]:
    async with loader:
        return [item async for item in loader]


def sharded(count: int) -> IterDataPipe[dict[str, Any]]:
    return IterableWrapper(range(count)).sharding_filter().map(make)


#: How many samples a batch of the measurements has.
SAMPLES = 32
ENDLESS = 1 << 20


@cache
def sample(nbytes: int) -> torch.Tensor:
    """Return the sample that every batch of this size consists of; each worker has one."""
    return torch.ones(nbytes // 4 // SAMPLES)


def samples(nbytes: int, number: int) -> list[torch.Tensor]:
    """Return the samples of a batch of so many bytes."""
    return [sample(nbytes)] * SAMPLES


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """The same for torch's DataLoader."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __len__(self) -> int:
        return ENDLESS * SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return sample(self.nbytes)


def has_no_cuda(number: int) -> tuple[int, bool, torch.Tensor]:
    """Return in which process this runs, and whether CUDA is initialized there."""
    return os.getpid(), torch.cuda.is_initialized(), full(number)


def filled(number: int) -> torch.Tensor:
    """Return 4 MiB of a number."""
    return torch.full((1 << 20,), number, dtype=torch.int32)
