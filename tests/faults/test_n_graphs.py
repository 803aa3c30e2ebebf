"""What random graphs found."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.datapipes.running import cursor_history
from asyncloader.waiting import Stopped
from tests.samples import Numbers, double, is_odd, with_key
from tests.steps import check_rest, loader_from, states_at_every_step


class Closed(IterDataPipe[int]):
    """A source that is closed elsewhere after its first item, as that of a dead process is."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise Stopped


async def soon(number: int) -> int:
    return number


RUN_AHEAD = {
    "prefetch": lambda pipe: pipe.prefetch(2),
    "async_map": lambda pipe: pipe.async_map(soon),
    "async_map without order": lambda pipe: pipe.async_map(soon, ordered=False),
    "async_map_batches": lambda pipe: pipe.async_map_batches(soon, 2),
    "batch": lambda pipe: pipe.batch(2, max_wait=0.001),
}


@pytest.mark.parametrize("name", RUN_AHEAD)
@pytest.mark.parametrize("form", ["sync", "async"])
async def test_what_runs_ahead_takes_a_closed_source_for_no_end(name, form):
    pipe: Any = RUN_AHEAD[name](Closed())
    with pytest.raises(Stopped):
        await _read(pipe, form)


async def _read(pipe: Any, form: str) -> list[Any]:
    return list(pipe) if form == "sync" else [item async for item in pipe]


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("name", ["prefetch", "async_map"])
def test_a_dispatcher_that_dies_as_an_epoch_begins_empties_no_epoch(name, caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")
    for _ in range(10):
        dealt = IterableWrapper(range(16)).sharding_round_robin_dispatch(
            SHARDING_PRIORITIES.MULTIPROCESSING
        )
        service = MultiProcessingReadingService(1, on_worker_death="restart")
        with DataLoader2(RUN_AHEAD[name](dealt), reading_service=service) as loader:
            next(iter(loader))
            dispatcher = loader.reading_service._pool.all_handles[-1]
            os.kill(dispatcher.process.pid, signal.SIGKILL)
            assert [list(loader) for _ in range(2)] == [list(range(16))] * 2


# A splitter behind a splitter ---------------------------------------------------------------------


def early_and_late(pipe: Any) -> Any:
    _, other = pipe.fork(2)
    evens, odds = other.demux(2, is_odd)
    return evens.header(2).concat(odds)


def early_and_late_beside_a_sister(pipe: Any) -> Any:
    sister, other = pipe.fork(2)
    evens, odds = other.demux(2, is_odd)
    return evens.header(2).concat(odds).zip(sister)


def after_a_sister_has_left(pipe: Any) -> Any:
    sister, other = pipe.fork(2)
    first, second = other.map(double).fork(2)
    return sister.header(3).concat(first.header(2), second)


def of_evens_and_odds(numbers: list[int]) -> list[int]:
    evens = [number for number in numbers if not is_odd(number)]
    return evens[:2] + [number for number in numbers if is_odd(number)]


NESTED: dict[Any, Any] = {
    early_and_late: of_evens_and_odds,
    early_and_late_beside_a_sister: lambda numbers: [
        *zip(of_evens_and_odds(numbers), numbers, strict=False)
    ],
    after_a_sister_has_left: lambda numbers: [
        *numbers[:3],
        *(double(number) for number in [*numbers[:2], *numbers]),
    ],
}
nested = pytest.mark.parametrize("make", NESTED)


def shuffled() -> Any:
    return IterableWrapper(range(24)).shuffle()


@nested
def test_a_branch_that_is_read_late_gets_what_its_sisters_saw(make):
    with loader_from(shuffled()) as loader:
        orders = [list(loader) for _ in range(2)]
    with loader_from(make(shuffled())) as loader:
        assert [list(iter(loader)) for _ in range(2)] == [NESTED[make](order) for order in orders]


@nested
def test_from_every_state_it_goes_on_in_the_same_way(make):
    with loader_from(make(shuffled())) as loader:
        epochs = [list(iter(loader)) for _ in range(3)]
    for step, state in enumerate(states_at_every_step(loader_from(make(shuffled())))):
        with loader_from(make(shuffled()), None, state) as loader:
            check_rest(epochs, step, [list(iter(loader)) for _ in range(2)])


@nested
@pytest.mark.parametrize("count", [1, 3, 5])
def test_when_it_is_left_early_its_source_is_closed(make, count):
    numbers = Numbers()
    items = iter(make(numbers))
    for _ in range(count):
        next(items)
    items.close()
    gc.collect()
    assert numbers.opens.now == 0


def dealt_and_taken_apart_twice() -> Any:
    dealt = IterableWrapper(range(24)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )
    left, right = dealt.map(with_key).unzip(2)
    first, second = left.map(with_key).unzip(2)
    return second.zip_longest(right.zip_longest(first))


def dealt_and_sorted_behind_its_half() -> Any:
    dealt = IterableWrapper(range(24)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )
    left, right = dealt.map(with_key).unzip(2)
    odd, even = right.demux(2, lambda number: number % 2)
    return left.batch(2).mux(even.zip(odd))


def dealt_and_forked_behind_its_half() -> Any:
    dealt = IterableWrapper(range(24)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )
    left, right = dealt.map(with_key).unzip(2)
    first, second = left.fork(2)
    return right.zip_longest(second).mux(first)


def note_places_at_every_item(pipe: Any, info: Any) -> Any:
    cursor_history._SHARE = 0
    return pipe


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        dealt_and_taken_apart_twice,
        dealt_and_sorted_behind_its_half,
        dealt_and_forked_behind_its_half,
    ],
)
def test_what_was_dealt_to_a_splitter_behind_a_splitter_goes_on(make, workers):
    def loader(state: Any = None) -> DataLoader2[Any]:
        service = MultiProcessingReadingService(
            workers, worker_prefetch_cnt=0, worker_init_fn=note_places_at_every_item
        )
        return loader_from(make(), service, state)

    with loader() as undisturbed:
        epochs = [list(iter(undisturbed)) for _ in range(3)]
    states = states_at_every_step(loader())
    for step in range(0, len(states), 7):
        with loader(states[step]) as resumed:
            check_rest(epochs, step, [list(iter(resumed)) for _ in range(2)])
