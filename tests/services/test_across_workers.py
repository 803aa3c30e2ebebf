"""Batches that do not depend on the number of workers."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService, get_worker_info
from asyncloader.datapipes.iter import IterableWrapper
from tests.collecting import drain, drain_async


def with_worker(number: int) -> tuple[int, bool]:
    """Return a number, and whether a worker did."""
    return number, get_worker_info() is not None


def loader_of(num_workers: int, **settings: Any) -> DataLoader2[Any]:
    items = IterableWrapper(range(50)).shuffle().sharding_filter().map(with_worker)
    loader = DataLoader2(
        items.batch(8, **settings),
        reading_service=MultiProcessingReadingService(num_workers),
    )
    loader.seed(7)
    return loader


def numbers_in(batches: list[Any]) -> list[list[int]]:
    return [[number for number, _ in batch] for batch in batches]


@pytest.fixture
def expected() -> list[list[int]]:
    return numbers_in(drain(loader_of(0, across_workers=True)))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_are_the_same_for_any_number_of_workers(
    num_workers: int, drop_last: bool, expected: list[list[int]]
) -> None:
    batches = drain(loader_of(num_workers, drop_last=drop_last, across_workers=True))

    assert numbers_in(batches) == (expected[:-1] if drop_last else expected)
    assert all(in_worker for batch in batches for _, in_worker in batch)


async def test_they_are_the_same_in_async_for() -> None:
    batches = await drain_async(loader_of(2, across_workers=True))

    assert numbers_in(batches) == numbers_in(await drain_async(loader_of(0, across_workers=True)))


def test_other_batches_are_made_of_one_workers_items(expected: list[list[int]]) -> None:
    batches = numbers_in(drain(loader_of(2)))

    assert batches != expected
    assert sorted(n for batch in batches for n in batch) == list(range(50))
