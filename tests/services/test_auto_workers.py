"""A number of workers that the service chooses, and that changes while the loader is used."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import pickle
import random
import re
import signal
import time
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    LoaderClosed,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerStartupError,
)
from tests.leaks import worker_processes
from tests.samples import double, double_soon
from tests.services.test_elastic import CLASHING, FITTING

SEED = 5
#: What a number is changed to, one after the other.
NUMBERS = (1, 0, 3, 2, 0, 2, 1)


def auto(**settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService("auto", max_workers=3, **settings)


def loader_of(make: Any, service: Any) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(make(), reading_service=service)
    loader.seed(SEED)
    return loader


def expected(make: Any, epochs: int = 2) -> list[list[Any]]:
    with loader_of(make, MultiProcessingReadingService(0)) as loader:
        return [list(loader) for _ in range(epochs)]


def change(loader: DataLoader2[Any], workers: int) -> None:
    """Do what the loader does when it has measured that another number is better."""
    loader.reading_service.resume_with(workers)
    loader._engine.change_settings()


def sleepy(number: int) -> int:
    time.sleep(0.003)
    return number


def sleepy_any(item: Any) -> Any:
    time.sleep(0.01)
    return item


class Untuned(MultiProcessingReadingService):
    """Chooses nothing by itself, so that only the test changes its number."""

    def note(self, window: Any) -> None:
        """Ignore what was measured."""


def untuned(**settings: Any) -> Untuned:
    return Untuned("auto", max_workers=3, **settings)


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("ahead", [0, 10])
@pytest.mark.parametrize("name", FITTING)
def test_a_number_that_changes_after_any_item_changes_no_item(name, ahead):
    make = FITTING[name]
    epochs = expected(make)
    # Without prefetching, no workers means that the consumer's own thread makes the items.
    with loader_of(make, untuned(main_prefetch_cnt=ahead)) as loader:
        for items in epochs:
            seen = []
            numbers = list(NUMBERS)
            for item in loader:
                seen.append(item)
                if numbers and len(seen) % 3 == 0:
                    change(loader, numbers.pop(0))
            assert seen == items


@pytest.mark.sweep
@pytest.mark.parametrize("name", FITTING)
async def test_it_changes_in_an_async_for_too(name):
    make = FITTING[name]
    epochs = await asyncio.to_thread(expected, make)
    async with loader_of(make, untuned()) as loader:
        for items in epochs:
            seen = []
            numbers = list(NUMBERS)
            async for item in loader:
                seen.append(item)
                if numbers and len(seen) % 3 == 0:
                    change(loader, numbers.pop(0))
            assert seen == items


@functools.cache
def states_while_it_changes(name: str) -> dict[int, Any]:
    """States as JSON, by the number of items before each."""
    states = {}
    with loader_of(FITTING[name], untuned()) as loader:
        numbers = list(NUMBERS)
        for count, _ in enumerate(loader, 1):
            if numbers and count % 3 == 0:
                change(loader, numbers.pop(0))
            states[count] = json.dumps(loader.state_dict(include_datapipe=False))
    return states


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("name", FITTING)
def test_a_state_taken_while_it_changes_resumes_with_any_number(name, workers):
    make = FITTING[name]
    first, second = expected(make)
    states = states_while_it_changes(name)
    counts = [count for count in states if count % 4 == workers]
    for count in random.Random(name).sample(counts, min(4, len(counts))):
        for service in (MultiProcessingReadingService(workers), auto()):
            loader = DataLoader2(make(), reading_service=service)
            loader.load_state_dict(json.loads(states[count]))
            with loader:
                assert list(loader) == first[count:]
                assert list(loader) == second


def test_pauses_and_limits_hold_while_the_number_changes():
    make = FITTING["maps"]
    (items,) = expected(make, 1)
    with loader_of(make, untuned()) as loader:
        seen = []
        iterator = iter(loader)
        iterator.limit(7)
        for number in (*NUMBERS, *NUMBERS):
            part = list(iterator)
            assert len(part) == min(7, len(items) - len(seen))
            seen += part
            change(loader, number)
            loader.pause()
            assert list(iterator) == []
            loader.resume()
        assert seen + list(iterator) == items[:]


def acknowledged_states(name: str, ahead: int) -> dict[int, Any]:
    """States as JSON while the number changes, by how many items were acknowledged before each."""
    states, draw = {}, random.Random(name)
    service = untuned(main_prefetch_cnt=ahead)
    with DataLoader2(
        FITTING[name](), reading_service=service, seed=SEED, acknowledge=True
    ) as loader:
        numbers = list(NUMBERS)
        for count, _ in enumerate(loader, 1):
            if numbers and count % 3 == 0:
                change(loader, numbers.pop(0))
            # It is far behind, so that it lies before one change or before several.
            if draw.random() < 0.2:
                loader.ack(draw.randint(1, loader.unacknowledged))
            states[count - loader.unacknowledged] = json.dumps(
                loader.state_dict(include_datapipe=False)
            )
        loader.ack(loader.unacknowledged - 1)
        states[count - 1] = json.dumps(loader.state_dict(include_datapipe=False))
    return states


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("ahead", [0, 10])
@pytest.mark.parametrize("name", FITTING)
def test_items_not_acknowledged_before_the_number_changes_come_again(name, ahead):
    make = FITTING[name]
    first, second = expected(make)
    states = acknowledged_states(name, ahead)
    assert len(states) >= 4
    for step, (count, state) in enumerate(states.items()):
        services = auto(), MultiProcessingReadingService(step % 3)
        loader = DataLoader2(make(), reading_service=services[step % 2])
        loader.load_state_dict(json.loads(state))
        with loader:
            assert list(loader) == first[count:]
            assert list(loader) == second


def test_where_work_is_recorded_a_loader_that_acknowledges_changes_between_epochs_only():
    pipe = it.IterableWrapper(range(60)).sharding_filter().map(sleepy)
    pipe = pipe.map(double, repeatable=False)
    with DataLoader2(pipe, reading_service=untuned(), acknowledge=True) as loader:
        loader.reading_service.resume_with(1)
        items = iter(loader)
        seen = [next(items) for _ in range(20)]
        loader.ack(5)
        change(loader, 2)
        assert seen + list(items) == [2 * number for number in range(60)]
        assert loader.num_workers == 1
        loader.ack(55)
        assert len(list(loader)) == 60
        assert loader.num_workers == 2


def test_items_that_wait_for_an_ack_are_not_made_again_when_the_number_changes():
    made_here = []

    def noted(number: int) -> bool:
        made_here.append(number)
        return sleepy(number) >= 0

    pipe = it.IterableWrapper(range(200)).filter(noted).sharding_filter()
    with DataLoader2(
        pipe, reading_service=untuned(main_prefetch_cnt=0), acknowledge=True
    ) as loader:
        loader.reading_service.resume_with(1)
        items = iter(loader)
        for _ in range(150):
            next(items)
        change(loader, 0)
        assert list(items)[-1] == 199
        assert loader.num_workers == 0
        assert loader.unacknowledged == 200
    assert min(made_here) > 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_while_the_number_changes_loses_nothing(victim):
    make = FITTING["maps"]
    (items,) = expected(make, 1)
    with loader_of(make, untuned(on_worker_death="restart")) as loader:
        seen = []
        for item in loader:
            seen.append(item)
            if len(seen) in (5, 25, 40):
                pool = loader.reading_service._pool
                pids = [handle.process.pid for handle in pool.handles]
                if len(seen) == 25:
                    change(loader, 1 + len(pids) % 3)
                os.kill(pids[victim % len(pids)], signal.SIGKILL)
                if len(seen) != 25:
                    change(loader, 1 + len(pids) % 3)
        assert seen == items


def test_an_error_of_the_users_comes_in_its_place_after_changes():
    def fail_at_30(number: int) -> int:
        if number == 30:
            raise ZeroDivisionError("thirty")
        return number

    pipe = it.IterableWrapper(range(60)).sharding_filter().map(fail_at_30)
    with loader_of(lambda: pipe, untuned()) as loader:
        iterator = iter(loader)
        for number in range(30):
            assert next(iterator) == number
            if number % 4 == 0:
                change(loader, NUMBERS[number // 4 % len(NUMBERS)])
        with pytest.raises(ZeroDivisionError, match="thirty"):
            next(iterator)


async def test_a_consumer_that_is_cancelled_while_the_number_changes_loses_nothing():
    make = FITTING["maps"]
    (items,) = await asyncio.to_thread(expected, make, 1)
    async with loader_of(make, untuned()) as loader:
        seen = []
        iterator = aiter(loader)
        numbers = list(NUMBERS)
        seen.append(await anext(iterator))
        for number in numbers:
            change(loader, number)
            waiting = asyncio.ensure_future(anext(iterator))
            for _ in range(number * 5):
                await asyncio.sleep(0)
            if waiting.done():
                seen.append(waiting.result())
                continue
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                seen.append(waiting.result())
        assert seen + [item async for item in iterator] == items


@pytest.mark.parametrize("name", ["batch", "filter", "results in lists"])
def test_where_the_order_depends_on_the_number_it_changes_between_epochs_only(name):
    make = CLASHING[name][0]
    with loader_of(make, untuned()) as loader:
        iterator = iter(loader)
        next(iterator)
        assert not loader.reading_service.is_elastic
        before = loader.num_workers
        loader.reading_service.resume_with(3 - before)
        list(iterator)
        assert loader.num_workers == before
        list(loader)
        assert loader.num_workers == 3 - before


class Own(it.IterDataPipe[int]):
    """A user's own source, of which nothing is known."""

    def __iter__(self) -> Any:
        return iter(range(9))


def split(pipe: Any) -> Any:
    one, other = pipe.sharding_filter().demux(2, is_multiple_of_three)
    return one.concat(other)


def is_multiple_of_three(number: int) -> int:
    return int(number % 3 == 0)


NUMBERS_HERE = it.IterableWrapper(range(9))


@pytest.mark.parametrize(
    "pipe",
    [
        it.IterableWrapper(dict.fromkeys(range(9)).keys(), deepcopy=False).sharding_filter(),
        Own().sharding_filter().map(double),
        split(NUMBERS_HERE.shuffle()),
        NUMBERS_HERE.sharding_filter().async_map(double_soon, ordered=False),
        NUMBERS_HERE.sharding_filter().map(double, on_error="skip"),
    ],
)
def test_what_would_be_read_again_or_has_no_order_is_not_changed_in_an_epoch(pipe):
    with loader_of(lambda: pipe, untuned()) as loader:
        assert not loader.reading_service.is_elastic
        assert len(list(loader)) == 9


def test_items_that_come_in_any_order_are_not_changed_in_an_epoch():
    with loader_of(FITTING["maps"], untuned(in_order=False)) as loader:
        assert not loader.reading_service.is_elastic


def test_a_state_from_the_middle_of_an_epoch_that_depends_on_the_number_resumes_with_it():
    make = CLASHING["batch"][0]
    with loader_of(make, MultiProcessingReadingService(3)) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(4)]
        state = loader.state_dict(include_datapipe=False)
        rest = list(iterator)
    assert first
    loader = DataLoader2(make(), reading_service=auto())
    loader.load_state_dict(state)
    with loader:
        assert list(loader) == rest


def test_nothing_is_multiplied_where_nothing_shards_the_graph():
    with loader_of(lambda: it.IterableWrapper(range(20)).map(double), auto()) as loader:
        assert list(loader) == [2 * number for number in range(20)]
        assert loader.num_workers <= 1


class TwoMore(ReadingServiceInterface):
    """A user's own service."""

    def initialize(self, datapipe: Any) -> Any:
        return datapipe


def test_a_users_own_service_beside_it_sees_one_epoch():
    service = SequentialReadingService(TwoMore(), auto())
    with loader_of(FITTING["maps"], service) as loader:
        assert service.adjustable() is None
        assert list(loader) == expected(FITTING["maps"], 1)[0]


@pytest.mark.soak
def test_more_workers_are_used_for_a_function_that_waits_and_the_log_says_so_once(caplog):
    pipe = it.IterableWrapper(range(12_000)).shuffle().sharding_filter().map(sleepy)
    caplog.set_level(logging.INFO, "asyncloader")
    with loader_of(lambda: pipe, MultiProcessingReadingService("auto")) as loader:
        first = loader.num_workers
        seen = []
        for number in loader:
            seen.append(number)
            if caplog.messages:
                break
        stats = loader.stats()
    tried = [int(number) for number in re.findall(r"(\d+): ", caplog.messages[0])]
    assert max(tried) > first or first >= 4
    assert len(set(seen)) == len(seen)
    assert stats.items == len(seen)
    assert caplog.messages == [str(stats.choices[0])]
    assert "num_workers=" in stats.choices[0]
    assert stats.choices[0] in str(stats)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["maps", "batch"])
def test_short_epochs_are_measured_too(name):
    make = {**FITTING, "batch": CLASHING["batch"][0]}[name]

    def graph() -> Any:
        return make().map(sleepy_any)

    with loader_of(graph, MultiProcessingReadingService("auto")) as loader:
        for _ in range(100):
            list(loader)
            (choice,) = loader.stats().choices
            if "first number" not in choice:
                return
    pytest.fail(choice)


def test_it_is_copied_and_pickled_as_it_was_made():
    service = MultiProcessingReadingService("auto", worker_prefetch_cnt="auto", max_workers=5)
    again = pickle.loads(pickle.dumps(service))
    assert (again.num_workers, again.worker_prefetch_cnt, again.max_workers) == ("auto", "auto", 5)
    assert repr(again) == "MultiProcessingReadingService(num_workers='auto')"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"num_workers": "many"},
            TypeError,
            "num_workers must be a number or \"auto\", got 'many'",
        ),
        ({"worker_prefetch_cnt": "all"}, TypeError, 'prefetch_cnt must be a number or "auto"'),
        ({"num_workers": "auto", "max_workers": 0}, ValueError, "max_workers must be at least 1"),
        ({"num_workers": 2, "max_workers": 3}, ValueError, 'max_workers goes with num_workers="'),
    ],
)
def test_bad_values_are_refused_by_name(settings, error, message):
    with pytest.raises(error, match=message):
        MultiProcessingReadingService(**settings)


def test_prefetch_alone_may_be_chosen():
    make = FITTING["maps"]
    service = MultiProcessingReadingService(2, worker_prefetch_cnt="auto")
    with loader_of(make, service) as loader:
        assert list(loader) == expected(make, 1)[0]
        assert loader.num_workers == 2


def test_a_soon_function_is_called_for_each_item_once_at_least_while_the_number_changes():
    make = lambda: it.IterableWrapper(range(60)).sharding_filter().async_map(double_soon)  # noqa: E731
    (items,) = expected(make, 1)
    with loader_of(make, untuned()) as loader:
        seen = []
        for item in loader:
            seen.append(item)
            if len(seen) % 9 == 0:
                change(loader, len(seen) // 9 % 4)
        assert seen == items


class Crowded(Untuned):
    """Has no room for other workers beside those that run, and fails to start some."""

    failures = 0

    async def _has_room_beside(self, workers: int) -> bool:
        return False

    async def _started(self, datapipe: Any, workers: int) -> Any:
        if self.failures:
            self.failures -= 1
            raise WorkerStartupError("no room")
        return await super()._started(datapipe, workers)


def slow_numbers() -> Any:
    return it.IterableWrapper(range(300)).shuffle().sharding_filter().map(sleepy)


@pytest.mark.soak
def test_without_room_beside_them_workers_are_ended_before_others_are_started():
    make = slow_numbers
    epochs = expected(make)
    with loader_of(make, Crowded("auto", max_workers=3)) as loader:
        numbers, wanted = [], [1, 3, 0, 2]
        for items in epochs:
            seen = []
            for item in loader:
                seen.append(item)
                numbers.append(loader.num_workers)
                assert len(worker_processes()) <= 3
                # Two groups of all that three workers may have ready are 60 items.
                if wanted and len(seen) % 75 == 0:
                    change(loader, wanted.pop(0))
            assert seen == items
        assert {0, 1, 2, 3} <= set(numbers)


@pytest.mark.soak
@pytest.mark.parametrize("failures", [1, 2])
def test_workers_that_cannot_take_the_place_of_those_that_were_ended_lose_no_item(failures: int):
    make = slow_numbers
    first, second = expected(make)
    with loader_of(make, Crowded("auto", max_workers=3)) as loader:
        loader.reading_service.resume_with(2)
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(4)]
        loader.reading_service.failures = failures
        change(loader, 3)
        if failures == 1:
            # As many as before are started again.
            assert [*seen, *iterator] == first
            assert loader.num_workers == 2
        else:
            with pytest.raises(WorkerStartupError, match="no room"):
                seen.extend(iterator)
            assert seen == first[: len(seen)]
        assert list(loader) == second


async def test_a_loader_that_is_closed_while_others_take_the_place_leaves_nothing():
    is_starting, may_start = asyncio.Event(), asyncio.Event()

    class Slow(Crowded):
        async def _started(self, datapipe: Any, workers: int) -> Any:
            if workers == 3:
                is_starting.set()
                await may_start.wait()
            return await super()._started(datapipe, workers)

    loader = loader_of(slow_numbers, Slow("auto", max_workers=3))
    loader.reading_service.resume_with(2)
    items = aiter(loader)
    await anext(items)
    change(loader, 3)
    waiting = asyncio.create_task(last_of(items))
    await is_starting.wait()
    await loader.aclose()
    may_start.set()
    with pytest.raises(LoaderClosed):
        await waiting
    assert not worker_processes()


async def last_of(items: Any) -> Any:
    async for item in items:
        last = item
    return last
