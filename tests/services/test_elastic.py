"""States that are taken with one number of workers and loaded with another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES
from asyncloader.datapipes.running import cursor_history
from asyncloader.errors import SnapshotError
from tests.samples import double, double_soon, is_odd, twice
from tests.steps import loader_from


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
    "results in lists": (
        lambda: numbers().sharding_filter().async_map_batches(double_soon, 3, flatten=False),
        "async_map_batches",
    ),
}


def is_small(number: int) -> bool:
    return number % 3 > 0


def loader_of(make: Any, workers: int, state: Any = None) -> DataLoader2[Any]:
    return loader_from(make(), MultiProcessingReadingService(workers), state)


def state_after(make: Any, workers: int, step: int) -> Any:
    with loader_of(make, workers) as loader:
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        return loader.state_dict(include_datapipe=False)


@pytest.mark.sweep
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


def slowly(item: Any) -> Any:
    """Take so long that the pipes' places are noted again before the next item."""
    time.sleep(0.002)
    return item


def forked() -> Any:
    numbers = it.IterableWrapper(range(120)).sharding_filter().map(slowly)
    batches = numbers.batch(2, across_workers=True)
    one, other = batches.fork(2)
    return one.map(slowly).zip(other)


def forked_twice() -> Any:
    pairs = forked()
    one, other = pairs.demux(2, is_even_pair)
    return one.map(slowly).zip(other)


def is_even_pair(pair: Any) -> int:
    return int(pair[0][0] // 2 % 2 == 0)


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("make", [forked, forked_twice])
@pytest.mark.parametrize("counts", [(3, 2), (2, 0), (0, 2)])
def test_the_place_that_branches_in_the_loader_keep_is_made_that_of_another_number(
    make, counts, monkeypatch
):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    taken_with, run_with = counts
    with loader_of(make, 0) as loader:
        items = list(loader)
    with loader_of(make, taken_with) as loader:
        for step, _ in enumerate(loader, 1):
            state = loader.state_dict(include_datapipe=False)
            keeps_a_place = '"above":[[' in state["position"]["cursors"]
            if keeps_a_place or (taken_with == 0 and step == 20):
                break
    assert keeps_a_place or taken_with == 0
    with loader_of(make, run_with, state) as loader:
        assert list(loader) == items[step:]


@pytest.mark.parametrize("name", CLASHING)
@pytest.mark.parametrize(
    "counts",
    [(2, 3), *(pytest.param(each, marks=pytest.mark.sweep) for each in [(2, 0), (0, 2)])],
)
@pytest.mark.filterwarnings("ignore:nothing shards")
def test_where_the_order_depends_on_the_number_the_pipe_in_the_way_is_named(name, counts):
    make, pipe = CLASHING[name]
    state = state_after(make, counts[0], 4)
    loader = loader_of(make, counts[1])
    with pytest.raises(SnapshotError, match=rf"{pipe}.* yields other items"):
        loader.load_state_dict(state)
    loader.shutdown()


def test_a_filter_behind_what_is_dealt_divides_among_ranks_alone():
    def make() -> Any:
        return dispatched(numbers()).sharding_filter().map(double)

    state = state_after(make, 1, 4)
    with (
        loader_of(make, 2) as loader,
        pytest.raises(SnapshotError, match=r"sharding_filter.* yields other items"),
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


# What is put into the graph on its way to the workers -------------------------------------------


def in_pairs(pipe: Any, *_: Any) -> Any:
    return pipe.batch(2)


def doubled(pipe: Any, *_: Any) -> Any:
    return pipe.map(double)


def as_given(pipe: Any, *_: Any) -> Any:
    return pipe


class Changing(ReadingServiceInterface):
    """A user's service."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def initialize(self, datapipe: Any) -> Any:
        return self.change(datapipe)


class ChangingEachEpoch(Changing):
    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        return self.change


def initialized_by(change: Any) -> Callable[[int], Any]:
    return lambda workers: MultiProcessingReadingService(workers, worker_init_fn=change)


def reset_by(change: Any) -> Callable[[int], Any]:
    return lambda workers: MultiProcessingReadingService(workers, worker_reset_fn=change)


def before_the_workers(service: Any) -> Callable[[int], Any]:
    return lambda workers: SequentialReadingService(service, MultiProcessingReadingService(workers))


def behind_the_workers(service: Any) -> Callable[[int], Any]:
    return lambda workers: SequentialReadingService(MultiProcessingReadingService(workers), service)


CHANGES_IN_THE_WAY: dict[str, tuple[Callable[[int], Any], str]] = {
    "init": (initialized_by(in_pairs), r"worker_init_fn=in_pairs .*batch\(2\) into"),
    "reset": (reset_by(in_pairs), r"worker_reset_fn=in_pairs.*batch\(2\) into"),
    "service": (
        before_the_workers(Changing(in_pairs)),
        r"batch\(2\), which a reading service added, yields other items",
    ),
    "service's reset": (
        before_the_workers(ChangingEachEpoch(in_pairs)),
        r"the reset of a reading service changes.*batch\(2\) into",
    ),
}
CHANGES_THAT_FIT: dict[str, Callable[[int], Any]] = {
    "init": initialized_by(as_given),
    "init map": initialized_by(doubled),
    "reset": reset_by(as_given),
    "service": before_the_workers(Changing(doubled)),
    "service in the loader": behind_the_workers(Changing(in_pairs)),
}


def shared_out() -> Any:
    return numbers().sharding_filter().map(double)


def begun_with(service: Any) -> tuple[Any, list[Any]]:
    """Return a state in the middle of an epoch, and the items that follow."""
    with loader_from(shared_out(), service) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        return loader.state_dict(include_datapipe=False), list(iterator)


@pytest.mark.soak
@pytest.mark.parametrize("name", CHANGES_IN_THE_WAY)
def test_what_functions_and_services_put_in_the_way_is_named(name):
    make, expected = CHANGES_IN_THE_WAY[name]
    for taken_with, run_with in [(2, [1, 0]), (0, [1])]:
        state, _ = begun_with(make(taken_with))
        for workers in run_with:
            with (
                loader_from(shared_out(), make(workers), state) as loader,
                pytest.raises(SnapshotError, match=expected),
            ):
                next(iter(loader))


@pytest.mark.parametrize("name", ["init", "reset", "service"])
def test_with_as_many_workers_what_they_put_there_goes_on_exactly(name):
    make, _ = CHANGES_IN_THE_WAY[name]
    state, rest = begun_with(make(2))
    with loader_from(shared_out(), make(2), state) as loader:
        assert list(iter(loader)) == rest


@pytest.mark.parametrize("name", CHANGES_THAT_FIT)
def test_where_they_keep_one_item_for_one_another_number_goes_on_exactly(name):
    make = CHANGES_THAT_FIT[name]
    for counts in [(2, 0), (0, 2)]:
        state, rest = begun_with(make(counts[0]))
        with loader_from(shared_out(), make(counts[1]), state) as loader:
            assert list(iter(loader)) == rest


def test_between_epochs_they_are_in_nobodys_way():
    make = initialized_by(in_pairs)
    with loader_from(shared_out(), make(2)) as loader:
        list(loader)
        state = loader.state_dict(include_datapipe=False)
    with loader_from(shared_out(), make(0), state) as loader:
        assert sorted(number for pair in loader for number in pair) == sorted(
            2 * number for number in range(60)
        )
