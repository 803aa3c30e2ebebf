"""A state that is loaded into a loader that has begun sets it back, or on, to that place."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

import asyncloader.datapipes.iter as it
from asyncloader import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    IteratorInvalidated,
    LoaderClosed,
    MultiProcessingReadingService,
    Version,
)
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import SnapshotError
from tests.leaks import leaves_nothing
from tests.samples import double, double_soon, is_odd
from tests.steps import SEED, check_rest, loader_from, some_steps, states_at_every_step

COUNT = 24


def numbers() -> Any:
    return it.IterableWrapper(range(COUNT)).shuffle(buffer_size=7)


def sharded() -> Any:
    return numbers().sharding_filter().map(double)


def dispatched() -> Any:
    return numbers().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(double)


def workers(count: Any = 2) -> Any:
    return MultiProcessingReadingService(num_workers=count)


#: What is run, and by which service.
RUN: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "in the consumer's thread": (lambda: numbers().filter(is_odd).batch(2), lambda: None),
    "beside the consumer": (lambda: numbers().map(double).prefetch(3), lambda: None),
    "in calls that run": (lambda: numbers().async_map(double_soon).batch(2), lambda: None),
    "in threads": (lambda: numbers().thread_map(double), lambda: None),
    "in workers": (sharded, workers),
    "in workers that are dealt to": (dispatched, workers),
    "in workers that are chosen": (sharded, lambda: workers("auto")),
}


class Known:
    """What a seed's first epochs are, and the states at all steps of the first."""

    def __init__(self, name: str) -> None:
        make, service = RUN[name]
        # Any number of workers resumes a state of workers that are chosen.
        self.states = states_at_every_step(loader_from(make(), service()))
        with loader_from(make(), service()) as loader:
            self.epochs = [list(loader) for _ in range(3)]

    def moments(self) -> Iterator[tuple[int, int]]:
        """Yield how many items come before a load, and at which step the state was taken."""
        before = itertools.cycle((1, len(self.epochs[0]) // 2, len(self.epochs[0]), 0))
        return zip(before, sorted(some_steps(len(self.states))), strict=False)


@functools.cache
def known_of(name: str) -> Known:
    """Return what is known of a run, which no test changes."""
    return Known(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUN)
def test_a_state_that_is_loaded_in_the_midst_of_an_epoch_is_where_the_next_for_begins(
    name: str,
) -> None:
    known, (make, service) = known_of(name), RUN[name]
    with leaves_nothing(), loader_from(make(), service()) as loader:
        for before, step in known.moments():
            items = iter(loader)
            assert len(list(islice(items, before))) == before
            loader.load_state_dict(known.states[step])
            assert loader.state_dict(include_datapipe=False) == known.states[step]
            check_rest(known.epochs, step, [list(loader), list(loader)])


@pytest.mark.soak
@pytest.mark.parametrize("name", RUN)
async def test_a_state_that_is_loaded_in_an_async_for_is_where_the_next_one_begins(
    name: str,
) -> None:
    known, (make, service) = await asyncio.to_thread(known_of, name), RUN[name]
    async with loader_from(make(), service()) as loader:
        for before, step in known.moments():
            items = aiter(loader)
            for _ in range(before):
                await anext(items)
            loader.load_state_dict(known.states[step])
            assert loader.state_dict(include_datapipe=False) == known.states[step]
            rest = [[item async for item in loader] for _ in range(2)]
            check_rest(known.epochs, step, rest)


@pytest.mark.parametrize("name", RUN)
def test_a_loader_is_set_back_to_its_own_states(name: str) -> None:
    make, service = RUN[name]
    with loader_from(make(), service()) as loader:
        states, taken = [loader.state_dict(include_datapipe=False)], []
        for item in islice(iter(loader), 5):
            taken.append(item)
            states.append(loader.state_dict(include_datapipe=False))
        for step in (5, 2, 0):
            loader.load_state_dict(states[step])
            assert list(islice(iter(loader), 5 - step)) == taken[step:]


@pytest.mark.parametrize("name", RUN)
def test_the_iterator_that_ran_ends_by_name(name: str) -> None:
    make, service = RUN[name]
    with leaves_nothing(), loader_from(make(), service()) as loader:
        state, items = loader.state_dict(), iter(loader)
        next(items)
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(IteratorInvalidated, match="a state was loaded"):
                next(items)


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUN)
def test_an_iterator_of_which_nothing_was_asked_begins_with_the_state(name: str) -> None:
    known, (make, service) = known_of(name), RUN[name]
    with leaves_nothing(), loader_from(make(), service()) as loader:
        list(islice(loader, 2))
        items = iter(loader)
        loader.load_state_dict(known.states[4])
        check_rest(known.epochs, 4, [list(items), list(loader)])


def test_an_iterator_that_had_yielded_everything_ends_as_usual() -> None:
    with loader_from(sharded()) as loader:
        state = loader.state_dict()
        seen = []
        for item in loader:
            seen.append(item)
            if len(seen) == COUNT:
                loader.load_state_dict(state)
        assert list(loader) == seen


def test_a_state_that_is_refused_leaves_the_iterator_that_runs() -> None:
    with loader_from(numbers().batch(2)) as other:
        state = other.state_dict()
    with loader_from(sharded(), workers()) as loader:
        first = list(loader)
    with loader_from(sharded(), workers()) as loader:
        items = iter(loader)
        begun = list(islice(items, 3))
        with pytest.raises(SnapshotError, match="another graph"):
            loader.load_state_dict(state)
        assert begun + list(items) == first


@pytest.mark.parametrize("service", [lambda: None, workers], ids=["here", "in workers"])
def test_a_thread_that_waits_for_an_item_is_told(service: Any) -> None:
    async def wait(number: int) -> int:
        await asyncio.sleep(3600 if number == 1 else 0)
        return number

    graph = it.IterableWrapper(range(3)).sharding_filter().async_map(wait, concurrency=1)
    with leaves_nothing(), DataLoader2(graph, reading_service=service()) as loader:
        state, items, told = loader.state_dict(), iter(loader), []
        assert next(items) == 0

        def take() -> None:
            with pytest.raises(IteratorInvalidated, match="a state was loaded") as raised:
                next(items)
            told.append(raised.value)

        taking = threading.Thread(target=take)
        taking.start()
        while loader.why() is None:
            os.sched_yield()
        loader.load_state_dict(state)
        taking.join(30)
        assert len(told) == 1
        assert next(iter(loader)) == 0


async def test_a_task_that_waits_for_an_item_is_told() -> None:
    async def wait(number: int) -> int:
        await asyncio.sleep(3600 if number == 1 else 0)
        return number

    graph = it.IterableWrapper(range(3)).async_map(wait, concurrency=1)
    async with DataLoader2(graph) as loader:
        state, items = loader.state_dict(), aiter(loader)
        assert await anext(items) == 0
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        loader.load_state_dict(state)
        with pytest.raises(IteratorInvalidated, match="a state was loaded"):
            await waiting
        assert await anext(aiter(loader)) == 0


@pytest.mark.parametrize("service", [lambda: None, workers], ids=["here", "in workers"])
def test_what_was_not_acknowledged_is_left_to_the_state(service: Any) -> None:
    with loader_from(sharded(), service()) as loader:
        expected = list(loader)
    with loader_from(sharded(), service(), acknowledge=True) as loader:
        items = iter(loader)
        list(islice(items, 6))
        loader.ack(2)
        state = loader.state_dict(include_datapipe=False)
        list(islice(items, 3))
        loader.load_state_dict(state)
        assert loader.unacknowledged == 0
        with pytest.raises(ValueError, match="0 were delivered"):
            loader.ack()
        assert list(loader) == expected[2:]
        loader.ack(COUNT - 2)
        assert loader.state_dict()["position"]["items"] == 0


async def answer(prompt: int) -> int:
    await asyncio.sleep(0)
    return prompt


def test_what_a_rollout_had_in_flight_comes_again() -> None:
    graph = it.IterableWrapper(range(COUNT)).rollout(answer, concurrency=6)
    with leaves_nothing(), DataLoader2(graph, seed=1, acknowledge=True) as loader:
        items = iter(loader)
        settled = list(loader_numbers(loader, islice(items, 5)))
        loader.ack(5)
        state = loader.state_dict(include_datapipe=False)
        for _ in range(2):
            loader.load_state_dict(state)
            rest = list(loader_numbers(loader, loader))
            assert sorted(settled + rest) == list(range(COUNT))
            loader.ack(loader.unacknowledged)


def parts(number: int) -> Iterator[tuple[int, int]]:
    yield from ((number, part) for part in range(3))


def of_policy(version: Version) -> Any:
    prompts = it.IterableWrapper(range(COUNT))
    return prompts.rollout(answer, version=version, max_lag=2, per_step=4)


#: What is run, with a policy's version, and by which service.
ACKNOWLEDGED: dict[str, tuple[Callable[[Version], Any], Callable[[], Any]]] = {
    "here": (lambda _: numbers(), lambda: None),
    "in workers": (lambda _: sharded(), workers),
    "in workers that are chosen": (lambda _: sharded(), lambda: workers("auto")),
    "parts": (lambda _: numbers().flatmap(parts, repeatable=False), lambda: None),
    "parts in workers": (lambda _: sharded().flatmap(parts, repeatable=False), workers),
    "a rollout": (lambda _: numbers().rollout(answer), lambda: None),
    "a rollout behind workers": (lambda _: sharded().rollout(answer), workers),
    "a rollout of a policy": (of_policy, lambda: None),
}


def acknowledging(name: str, version: Version) -> Any:
    graph, service = ACKNOWLEDGED[name]
    return DataLoader2(graph(version), reading_service=service(), seed=SEED, acknowledge=True)


@pytest.mark.parametrize("name", ACKNOWLEDGED)
def test_an_item_of_before_a_load_is_not_acknowledged_in_place_of_one_after_it(name: str) -> None:
    version = Version()
    with acknowledging(name, version) as loader:
        former = iter(loader)
        list(islice(former, 4))
        version.advance()
        former.ack(2)
        state = loader.state_dict(include_datapipe=False)
        next(former)
        loader.load_state_dict(state)
        with pytest.raises(IteratorInvalidated, match="come again: drop them"):
            former.ack()
        latest = iter(loader)
        list(islice(latest, 3))
        version.advance()
        with pytest.raises(IteratorInvalidated, match="come again: drop them"):
            former.ack(3)
        assert loader.unacknowledged == 3
        latest.ack(3)
        assert loader.unacknowledged == 0


@pytest.mark.parametrize("name", ["here", "parts", "a rollout"])
async def test_an_item_of_before_a_load_is_refused_on_a_loop_too(name: str) -> None:
    async with acknowledging(name, Version()) as loader:
        state, former = loader.state_dict(), aiter(loader)
        await anext(former)
        loader.load_state_dict(state)
        latest = aiter(loader)
        await anext(latest)
        with pytest.raises(IteratorInvalidated, match="come again: drop them"):
            former.ack()
        latest.ack()
        await anext(latest)
        loader.ack()


def test_a_trainer_behind_a_queue_is_told_that_what_it_trained_comes_again() -> None:
    batches: queue.Queue[int] = queue.Queue()
    is_loaded = threading.Event()
    trained: list[int] = []
    refused: list[str] = []

    def train(items: Any) -> None:
        is_loaded.wait()
        while not batches.empty():
            trained.append(batches.get())
            try:
                items.ack()
            except IteratorInvalidated as error:
                refused.append(str(error))

    with DataLoader2(it.IterableWrapper(range(COUNT)), acknowledge=True) as loader:
        beginning, former = loader.state_dict(), iter(loader)
        trainer = threading.Thread(target=train, args=(former,))
        trainer.start()
        for item in islice(former, 5):
            batches.put(item)
        loader.load_state_dict(beginning)
        assert list(islice(loader, 6)) == list(range(6))
        is_loaded.set()
        trainer.join()
        assert (trained, len(refused)) == (list(range(5)), 5)
        # Nothing of them counts: a resume begins where the state that was loaded does.
        assert loader.unacknowledged == 6
        assert loader.state_dict()["position"]["items"] == 0


def test_the_last_items_of_an_epoch_are_not_acknowledged_after_a_load_either() -> None:
    with DataLoader2(it.IterableWrapper(range(3)), acknowledge=True) as loader:
        beginning, former = loader.state_dict(), iter(loader)
        assert list(former) == [0, 1, 2]
        former.ack()
        loader.load_state_dict(beginning)
        latest = iter(loader)
        with pytest.raises(IteratorInvalidated, match="come again"):
            former.ack(2)
        assert list(latest) == [0, 1, 2]
        latest.ack(3)
        # An epoch that is over has nothing left to acknowledge.
        assert next(iter(loader)) == 0
        with pytest.raises(ValueError, match="0 were delivered"):
            latest.ack()


def loader_numbers(loader: DataLoader2[Any], items: Any) -> Iterator[int]:
    for _ in items:
        yield from loader.numbers


class Source(it.IterableWrapper[int]):
    """A source that says its place itself."""

    def __init__(self) -> None:
        super().__init__(range(COUNT))
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        at, self.at = self.at, 0
        for number in range(at, COUNT):
            self.at = number + 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("service", [lambda: None, lambda: workers(1)], ids=["here", "in a worker"])
def test_a_source_that_says_its_place_is_told_it(service: Any) -> None:
    with DataLoader2(Source().map(double), reading_service=service()) as loader:
        states, items = [loader.state_dict(include_datapipe=False)], iter(loader)
        for _ in range(6):
            next(items)
            states.append(loader.state_dict(include_datapipe=False))
        for step in (3, 0, 6):
            loader.load_state_dict(states[step])
            assert list(loader) == [2 * number for number in range(step, COUNT)]
            assert len(list(loader)) == COUNT


class Counting(CheckpointableReadingServiceInterface):
    """A service whose state is how many epochs it has begun, and that says what it is told."""

    def __init__(self) -> None:
        self.epochs = 0
        self.log: list[str] = []

    def initialize_iteration(self, seed_generator: Any) -> None:
        self.epochs += 1
        self.log.append(f"begin {self.epochs}")

    def finalize_iteration(self) -> None:
        self.log.append("end")

    def finalize(self) -> None:
        self.log.append("finalize")

    def checkpoint(self) -> bytes:
        return str(self.epochs).encode()

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.epochs = int(serialized_state)
        self.log.append(f"restore {self.epochs}")
        return datapipe


def test_a_service_ends_its_epoch_and_begins_from_its_own_state_each_time() -> None:
    with loader_from(numbers(), Counting()) as loader:
        items = iter(loader)
        next(items)
        state, log = loader.state_dict(include_datapipe=False), loader.reading_service.log
        for _ in range(2):
            log.clear()
            loader.load_state_dict(state)
            assert len(list(islice(iter(loader), 2))) == 2
            assert log == ["end", "finalize", "restore 1", "begin 2"]


async def test_a_service_may_be_started_before_the_next_item() -> None:
    async with loader_from(numbers(), Counting()) as loader:
        items = aiter(loader)
        await anext(items)
        state, log = loader.state_dict(include_datapipe=False), loader.reading_service.log
        log.clear()
        loader.load_state_dict(state)
        await loader.start()
        assert log == ["end", "finalize", "restore 1"]
        assert len([item async for item in loader]) == COUNT - 1


def test_a_limit_holds_after_a_load() -> None:
    with loader_from(numbers()) as loader:
        state, items = loader.state_dict(), iter(loader)
        loader.limit(3)
        first = list(items)
        loader.load_state_dict(state)
        again = iter(loader)
        assert list(again) == first
        loader.limit(None)
        assert len(list(again)) == COUNT - 3


def test_the_stats_of_an_epoch_that_is_begun_again_count_anew() -> None:
    with loader_from(sharded()) as loader:
        state, items = loader.state_dict(), iter(loader)
        list(islice(items, 5))
        loader.load_state_dict(state)
        assert loader.stats().items == 0
        list(islice(loader, 2))
        assert (loader.stats().epochs, loader.stats().items) == (2, 2)


def test_data_may_grow_before_an_epoch_is_begun_again() -> None:
    data = list(range(9))

    def new_loader() -> DataLoader2[int]:
        return DataLoader2(it.IterableWrapper(data, deepcopy=False).shuffle(), seed=SEED)

    with new_loader() as loader:
        beginning = loader.state_dict(include_datapipe=False)
        items = iter(loader)
        next(items)
        loader.state_dict()
        data.append(9)
        loader.load_state_dict(beginning)
        items = iter(loader)
        next(items)
        state = loader.state_dict(include_datapipe=False)
        rest = list(items)
    with new_loader() as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_a_loader_that_was_shut_down_loads_nothing() -> None:
    loader = loader_from(numbers())
    state = loader.state_dict()
    loader.shutdown()
    with pytest.raises(LoaderClosed):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_beginning_of_a_loader_without_a_seed_is_that_of_its_first_epoch(workers: int) -> None:
    def new_loader() -> DataLoader2[Any]:
        return DataLoader2.from_dataset(
            range(COUNT), batch_size=4, shuffle=True, num_workers=workers
        )

    with new_loader() as loader:
        state = loader.state_dict()
        assert loader.state_dict() == state
        epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
        loader.load_state_dict(state)
        assert [torch.cat(list(loader)).tolist() for _ in range(2)] == epochs
    with new_loader() as loader:
        loader.load_state_dict(state)
        assert [torch.cat(list(loader)).tolist() for _ in range(2)] == epochs


def test_a_seed_that_is_given_after_a_load_counts_from_the_next_epoch() -> None:
    with loader_from(numbers()) as loader:
        epochs = [list(loader), list(loader)]
    with loader_from(numbers()) as loader:
        items = iter(loader)
        list(islice(items, 3))
        state = loader.state_dict()
        next(items)
        loader.load_state_dict(state)
        loader.seed(SEED)
        assert [list(loader) for _ in range(3)] == [epochs[0][3:], *epochs]
