"""What a loader has of the names of torch's DataLoader: the same value, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> int:
        return number * number


class Countdown(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9, 0, -1))


SQUARES = Squares()
#: What a loader is made with, and which of torch's names it has.
MADE_WITH: dict[str, tuple[dict[str, Any], str]] = {
    "in batches": ({"dataset": SQUARES, "batch_size": 4}, "dataset"),
    "shuffled": ({"dataset": SQUARES, "batch_size": 4, "shuffle": True}, "dataset"),
    "full batches": ({"dataset": SQUARES, "batch_size": 4, "drop_last": True}, "dataset"),
    "single items": ({"dataset": SQUARES, "batch_size": None}, "dataset"),
    "a sampler": ({"dataset": SQUARES, "sampler": RandomSampler(SQUARES)}, "dataset"),
    "a batch sampler": (
        {"dataset": SQUARES, "batch_sampler": BatchSampler(SequentialSampler(SQUARES), 4, True)},
        "dataset",
    ),
    "workers": ({"dataset": SQUARES, "num_workers": 2, "prefetch_factor": 3}, "dataset"),
    "iterable": ({"dataset": Countdown(), "batch_size": 4}, ""),
    "everything else": (
        {
            "dataset": SQUARES,
            "collate_fn": list,
            "generator": torch.Generator(),
            "num_workers": 1,
            "timeout": 9,
            "worker_init_fn": print,
            "multiprocessing_context": "spawn",
        },
        "dataset",
    ),
}
ALWAYS = {"batch_size", "drop_last", "num_workers"}


def names_of_torch() -> list[str]:
    """Return the attributes of torch's loader; its private ones, which trainers set, as well."""
    loader = DataLoader(SQUARES)
    named = set(vars(loader)) | {
        name for name, value in vars(DataLoader).items() if isinstance(value, property)
    }
    return sorted(name for name in named if "__" not in name)


@pytest.mark.parametrize("made_with", MADE_WITH)
def test_an_attribute_of_torchs_loader_has_the_same_value_or_is_not_there(made_with: str) -> None:
    arguments, others = MADE_WITH[made_with]
    ours, torchs = DataLoader2.from_dataset(**arguments), DataLoader(**arguments)
    there = [name for name in names_of_torch() if hasattr(ours, name)]
    assert set(there) == ALWAYS | set(others.split())
    for name in there:
        assert getattr(ours, name) is getattr(torchs, name), name
    assert not hasattr(ours, "set_epoch")


def test_who_asks_for_a_sampler_is_told_what_decides_the_order() -> None:
    keys = [3, 1]
    for loader in (
        DataLoader2.from_dataset(SQUARES),
        DataLoader2.from_dataset(SQUARES, sampler=keys),
        DataLoader2(IterableWrapper(range(3))),
    ):
        for ask in (lambda loader: loader.sampler, lambda loader: loader.batch_sampler):
            with pytest.raises(AttributeError, match=r"leave .*set_epoch.*ignore_data_skip"):
                ask(loader)


def test_who_tells_the_epoch_is_told_that_the_loader_counts_them() -> None:
    with pytest.raises(AttributeError, match=r"counts epochs itself.*leave set_epoch"):
        DataLoader2.from_dataset(SQUARES).set_epoch(1)


def test_a_graph_says_its_names_by_its_pipes() -> None:
    squares = SequenceWrapper(SQUARES, deepcopy=False)
    pipe = squares.shuffle().batch(4, drop_last=True).sharding_filter().map(len)
    loader = DataLoader2(pipe)
    assert (loader.dataset, loader.batch_size, loader.drop_last) == (SQUARES, 4, True)
    twice = DataLoader2(squares.batch(2).batch(3))
    assert (twice.dataset, twice.batch_size, twice.drop_last) == (SQUARES, None, False)
    assert not hasattr(DataLoader2(IterableWrapper(Countdown())), "dataset")


def test_an_attribute_that_a_trainer_sets_by_a_name_of_torchs_changes_nothing() -> None:
    with DataLoader2.from_dataset(SQUARES) as loader:
        former = iter(loader)
        next(former)
        # Lightning does this to a loader that has the attribute, to end torch's iterator.
        if hasattr(loader, "_iterator"):
            loader._iterator = None
        assert len(list(loader)) == len(SQUARES)
        with pytest.raises(RuntimeError, match="invalidated"):
            next(former)
