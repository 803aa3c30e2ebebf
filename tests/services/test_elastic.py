"""States that are taken with one number of workers and loaded with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES
from asyncloader.errors import SnapshotError
from tests.samples import double, double_soon, is_odd, twice

SEED = 4


def numbers() -> Any:
    return it.IterableWrapper(range(60)).shuffle(buffer_size=11)


def as_it_is(item: Any, device: Any) -> Any:
    return item


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


FITTING: dict[str, Callable[[], Any]] = {
    "maps": lambda: numbers().sharding_filter().map(double).map(double_soon),
    "behind a filter": lambda: numbers().filter(is_odd).sharding_filter().map(double),
    "behind a flatmap": lambda: numbers().flatmap(twice).sharding_filter().map(double),
    "batches divided": lambda: numbers().batch(4).sharding_filter().map(sum),
    "batches in the loader": lambda: (
        numbers().sharding_filter().map(double).batch(3, across_workers=True).map(sum)
    ),
    "filter in the loader": lambda: (
        numbers().sharding_filter().map(double).pin_memory(pin_memory_fn=as_it_is).filter(is_small)
    ),
    "dealt": lambda: dispatched(numbers().filter(is_odd)).map(double),
}
CLASHING: dict[str, tuple[Callable[[], Any], str]] = {
    "batch": (lambda: numbers().sharding_filter().batch(3), r"batch\(3\)"),
    "filter": (lambda: numbers().sharding_filter().filter(is_odd).map(double), r"filter\(is_odd\)"),
    "no division": (lambda: numbers().map(double), "shuffle"),
}


def is_small(number: int) -> bool:
    return number % 3 > 0


def loader_of(make: Any, workers: int, state: Any = None) -> DataLoader2[Any]:
    loader = DataLoader2(make(), reading_service=MultiProcessingReadingService(workers))
    if state is None:
        loader.seed(SEED)
    else:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def state_after(make: Any, workers: int, step: int) -> Any:
    with loader_of(make, workers) as loader:
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        return loader.state_dict(include_datapipe=False)


@pytest.mark.parametrize("name", FITTING)
def test_another_number_of_workers_goes_on_exactly(name):
    make = FITTING[name]
    with loader_of(make, 0) as loader:
        epochs = [list(loader), list(loader)]
    middle, last = len(epochs[0]) // 2, len(epochs[0])
    for taken_with, run_with, step in [
        (0, 2, 1),
        (2, 0, middle),
        (2, 3, 1),
        (3, 1, middle),
        (1, 2, last),
    ]:
        state = state_after(make, taken_with, step)
        with loader_of(make, run_with, state) as loader:
            assert [list(loader), list(loader)] == [epochs[0][step:], epochs[1]]


@pytest.mark.parametrize("name", CLASHING)
@pytest.mark.parametrize("counts", [(2, 3), (2, 0), (0, 2)])
@pytest.mark.filterwarnings("ignore:nothing shards")
def test_where_the_order_depends_on_the_number_the_pipe_in_the_way_is_named(name, counts):
    make, pipe = CLASHING[name]
    state = state_after(make, counts[0], 4)
    loader = loader_of(make, counts[1])
    with pytest.raises(SnapshotError, match=rf"{pipe}.* comes out otherwise"):
        loader.load_state_dict(state)
    loader.shutdown()


def test_a_filter_behind_what_is_dealt_divides_among_ranks_alone():
    def make() -> Any:
        return dispatched(numbers()).sharding_filter().map(double)

    state = state_after(make, 1, 4)
    with (
        loader_of(make, 2) as loader,
        pytest.raises(SnapshotError, match=r"sharding_filter.* comes out otherwise"),
    ):
        loader.load_state_dict(state)


def test_between_epochs_any_number_goes_on():
    def make() -> Any:
        return numbers().sharding_filter().batch(3)

    with loader_of(make, 2) as loader:
        list(loader)
        state = loader.state_dict(include_datapipe=False)
    with loader_of(make, 3, state) as loader:
        assert sorted(number for batch in loader for number in batch) == list(range(60))
