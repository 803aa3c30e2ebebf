"""States of loaders with workers, and workers that die and are replaced."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.adapters import Shuffle
from asyncloader.datapipes.iter import SHARDING_PRIORITIES
from asyncloader.datapipes.running import cursor_history
from asyncloader.errors import WorkerDied
from asyncloader.services.from_workers import FromWorkersPass
from tests.faults.deaths import signalled
from tests.samples import ITER_PIPES, MAP_PIPES, graph_with, is_odd, remainder, twice
from tests.standing import standing
from tests.steps import (
    check_rest,
    loader_from,
    some_steps,
    states_at_every_async_step,
    states_at_every_step,
)

PIPES = ITER_PIPES | MAP_PIPES


def noisy(number: Any) -> tuple[Any, float]:
    """A function that draws from the global generator of its process."""
    return number, random.random()


def noisy_everywhere(number: Any) -> Any:
    return number, random.random(), float(numpy.random.rand()), float(torch.rand(()))


def slow(number: int) -> int:
    time.sleep(0.002)
    return number


def now_and_then_slow(number: int) -> int:
    """A function that lets now one worker be ahead and now another."""
    time.sleep(random.choice([0, 0, 0, 0.004]))
    return number


def as_it_is(item: Any, device: Any) -> Any:
    return item


async def double_soon(number: int) -> int:
    return 2 * number


def numbers(count: int = 48) -> Any:
    return it.IterableWrapper(range(count))


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def pinned(*branches: Any) -> Any:
    """Branches for workers, which the loader puts together."""
    first, *others = [branch.pin_memory(pin_memory_fn=as_it_is) for branch in branches]
    return first.zip(*others)


class Doubled(it.IterDataPipe[Any]):
    """A user's pipe, of which nothing is known."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, random.random()
            yield item, random.random()


ZOO: dict[str, Callable[[], Any]] = {
    "batches": lambda: numbers().shuffle(buffer_size=30).sharding_filter().map(str).batch(3),
    "random numbers": lambda: numbers().sharding_filter().map(noisy).filter(not_a_fifth),
    "all generators": lambda: numbers(24).sharding_filter().map(noisy_everywhere).map(str),
    "shuffled in each": lambda: numbers().sharding_filter().flatmap(twice).shuffle(buffer_size=7),
    "async": lambda: numbers().sharding_filter().async_map(double_soon).filter(not_a_third),
    "prefetch": lambda: numbers().filter(is_odd).sharding_filter().prefetch(3).batch(2),
    "random numbers held": lambda: (
        numbers().sharding_filter().map(noisy).shuffle(buffer_size=7).map(noisy)
    ),
    "random numbers ahead": lambda: numbers().sharding_filter().map(noisy).prefetch(5).batch(2),
    "random numbers of one's own": lambda: Doubled(numbers().sharding_filter().map(noisy)),
    "dispatched": lambda: (
        dispatched(numbers(60).shuffle(buffer_size=9).filter(is_odd)).map(noisy).batch(2)
    ),
    "random numbers dealt": lambda: dispatched(numbers(30).map(noisy)).map(noisy),
    "dealt beside another branch": lambda: pinned(
        dispatched(numbers(30).map(noisy)).map(noisy), numbers(40).sharding_filter().map(noisy)
    ),
    "another branch beside dealt": lambda: pinned(
        numbers().shuffle(buffer_size=9).sharding_filter().batch(2),
        dispatched(numbers().shuffle(buffer_size=9).filter(is_odd)).map(noisy),
        mp.SequenceWrapper(range(24)).shuffle().sharding_filter(),
    ),
    "in the loader": lambda: (
        numbers().sharding_filter().batch(2).pin_memory(pin_memory_fn=as_it_is).unbatch()
    ),
    "two branches": lambda: pinned(
        numbers().shuffle(buffer_size=9).sharding_filter().batch(2),
        mp.SequenceWrapper(range(24)).shuffle().sharding_filter(),
    ),
    "cycle": lambda: numbers(9).shuffle().cycle(4).sharding_filter().batch(2),
}


def not_a_fifth(pair: Any) -> bool:
    return pair[0] % 5 > 0


def not_a_third(number: int) -> bool:
    return number % 3 > 0


def loader_of(make: Any, workers: int, state: Any = None, **settings: Any) -> DataLoader2[Any]:
    return loader_from(make(), MultiProcessingReadingService(workers, **settings), state)


def epochs_of(make: Any, workers: int, count: int = 3) -> list[list[Any]]:
    with loader_of(make, workers) as loader:
        return [list(loader) for _ in range(count)]


def check_steps(make: Any, workers: int, most: int | None = None) -> None:
    """Go on from the state at every second step, or about ``most``, at some on to the next epoch.

    One worker's loader goes on at the even steps, that of two at the odd ones. The first is
    iterated by ``for``, and by ``async for`` at some steps; the other the other way round.
    """
    # One item at a time, a worker says often where it stands.
    with standing(workers, worker_prefetch_cnt=0) as service:
        with loader_from(make(), service) as loader:
            epochs = [list(loader) for _ in range(3)]
        count = len(epochs[0])
        steps = set(range(workers - 1, count, 2 if most is None else max(1, count // most)))
        # At these on to the next epoch, at every other one in either form.
        some = sorted(some_steps(count + 2))
        in_for, in_async_for = set(some[workers % 2 :: 2]), set(some[1 - workers % 2 :: 2])
        check_sync_steps(make, service, epochs, steps if workers == 1 else set(), in_for)
        others = steps if workers > 1 else set()
        asyncio.run(check_async_steps(make, service, epochs, others, in_async_for))


def check_sync_steps(make: Any, service: Any, epochs: Any, steps: set[int], some: set[int]) -> None:
    states = states_at_every_step(loader_from(make(), service))
    assert len(states) == len(epochs[0]) + 2
    for step in steps | some:
        with loader_from(make(), service, states[step]) as loader:
            # list(loader) would work out its length each time.
            check_rest(epochs, step, [list(iter(loader)) for _ in range(1 + (step in some))])


async def check_async_steps(
    make: Any, service: Any, epochs: Any, steps: set[int], some: set[int]
) -> None:
    states = await states_at_every_async_step(loader_from(make(), service))
    assert len(states) == len(epochs[0]) + 2
    for step in steps | some:
        async with loader_from(make(), service, states[step]) as loader:
            count = 1 + (step in some)
            check_rest(epochs, step, [[item async for item in loader] for _ in range(count)])


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ZOO)
def test_every_graph_of_the_zoo_goes_on_in_workers(name, workers):
    check_steps(ZOO[name], workers)


# At every step they go on in tests/loader/test_resuming.py, where no worker takes its time.
@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:nothing shards the graph:UserWarning")
@pytest.mark.parametrize("pipe_class", PIPES, ids=lambda cls: cls.__name__)
def test_every_pipe_goes_on_in_workers(pipe_class):
    check_steps(lambda: graph_with(pipe_class), workers=2, most=4)


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize(
    "shuffled",
    [
        lambda source: source.shuffle(buffer_size=7),
        lambda source: source.shuffled_flatmap(twice, buffer_size=3),
        lambda source: source.batch(2).in_batch_shuffle(),
        lambda source: source.bucketbatch(2, batch_num=3),
        lambda _: mp.SequenceWrapper(range(24)).shuffle(),
    ],
    ids=["shuffle", "shuffled_flatmap", "in_batch_shuffle", "bucketbatch", "shuffle of a map"],
)
def test_a_shuffle_that_is_switched_off_goes_on_in_workers(shuffled):
    def make() -> Any:
        return Shuffle(False)(shuffled(numbers(24)).sharding_filter())

    check_steps(make, workers=2, most=3)


@pytest.mark.parametrize("name", ["random numbers", "dealt beside another branch"])
def test_workers_that_have_done_nothing_yet_go_on(name):
    make = ZOO[name]
    epochs = epochs_of(make, 2)
    states = states_at_every_step(loader_of(make, 2, worker_prefetch_cnt=0))
    step = len(states) * 2 // 3
    with loader_of(make, 2, states[step]) as loader:
        check_rest(epochs, step, [list(loader), list(loader)])


def test_a_chain_of_loaders_with_workers_hands_out_every_item_once():
    make = ZOO["random numbers"]
    expected = epochs_of(make, 2, 1)[0]
    state, items = None, []
    for _ in range(6):
        with loader_of(make, 2, state) as loader:
            iterator = iter(loader)
            items += [next(iterator) for _ in range(5)]
            state = loader.state_dict(include_datapipe=False)
    assert items == expected[:30]


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_without_order_the_rest_is_the_same_set(seed):
    def make() -> Any:
        pipe = numbers(200).sharding_filter().map(now_and_then_slow)
        return pipe.pin_memory(pin_memory_fn=as_it_is).batch(3) if seed % 2 else pipe

    luck = random.Random(seed)
    items: list[Any] = []
    state = None
    for _ in range(4):
        with loader_of(make, 2, state, in_order=False) as loader:
            iterator = iter(loader)
            items += [next(iterator) for _ in range(luck.randrange(16))]
            state = loader.state_dict(include_datapipe=False)
    with loader_of(make, 2, state, in_order=False) as loader:
        items += list(loader)
    found = itertools.chain.from_iterable(items) if seed % 2 else items
    assert sorted(found) == list(range(200))


# Workers that die -----------------------------------------------------------------------------


def processes_of(loader: DataLoader2[Any]) -> list[int]:
    """Return the pids of a loader's workers, and of its dispatching process."""
    pool = loader.reading_service._pool
    return [link.process.pid for link in pool.all_handles]


def kill_one(loader: DataLoader2[Any], luck: random.Random) -> None:
    # One that was killed before may be gone, if nothing of it was missed yet.
    links = loader.reading_service._pool.all_handles
    number = luck.choice([signal.SIGKILL, signal.SIGSEGV])
    signalled(luck.choice(links).process, number)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 2) for name in ZOO if name != "all generators"),
        *((name, 1) for name in ("random numbers", "dispatched", "dealt beside another branch")),
    ],
)
def test_workers_that_are_killed_at_random_are_not_missed(name, workers, caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")
    make, luck = ZOO[name], random.Random(f"{name}{workers}")
    expected = epochs_of(make, workers, 2)
    with loader_of(make, workers, on_worker_death="restart", worker_prefetch_cnt=1) as loader:
        for epoch in expected:
            items = []
            deaths = luck.sample(range(len(epoch)), 2)
            for item in loader:
                if len(items) in deaths:
                    kill_one(loader, luck)
                items.append(item)
            assert items == epoch


@pytest.mark.soak
@pytest.mark.parametrize("name", ["slow", "dealt"])
def test_every_death_in_the_middle_of_an_epoch_is_made_good(name, caplog):
    caplog.set_level(logging.WARNING, "asyncloader")

    def make() -> Any:
        source = numbers(150).shuffle(buffer_size=20)
        shared = source.sharding_filter() if name == "slow" else dispatched(source)
        return shared.map(slow).map(noisy)

    expected = epochs_of(make, 2, 1)[0]
    deaths = 0
    with loader_of(make, 2, on_worker_death="restart", worker_prefetch_cnt=2) as loader:
        items = []
        for item in loader:
            items.append(item)
            if len(items) % 30 == 10:
                kill_one(loader, random.Random(len(items)))
                deaths += 1
        assert loader.stats().restarts >= deaths - 1
    assert items == expected
    assert "it is replaced" in caplog.text


def test_a_state_taken_after_a_death_is_exact(caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")

    def make() -> Any:
        return numbers(120).shuffle(buffer_size=20).sharding_filter().map(slow).map(noisy)

    expected = epochs_of(make, 2, 1)[0]
    with loader_of(make, 2, on_worker_death="restart", worker_prefetch_cnt=1) as loader:
        iterator = iter(loader)
        items = [next(iterator) for _ in range(20)]
        os.kill(processes_of(loader)[0], signal.SIGKILL)
        items += [next(iterator) for _ in range(40)]
        state = loader.state_dict(include_datapipe=False)
        assert loader.stats().restarts == 1
        assert sum(worker.restarts for worker in loader.stats().workers) == 1
    with loader_of(make, 2, state) as loader:
        assert items + list(loader) == expected


def test_deaths_that_two_branches_wait_for_are_made_good_on_every_loop(caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")

    def make() -> Any:
        halves = [numbers(60).sharding_filter().map(slow) for _ in range(2)]
        return pinned(*halves)

    async def epoch(loader: DataLoader2[Any]) -> list[Any]:
        found = []
        async for item in loader:
            found.append(item)
            if len(found) == 10:
                for pid in processes_of(loader):
                    os.kill(pid, signal.SIGKILL)
        return found

    with loader_of(make, 2, on_worker_death="restart", worker_prefetch_cnt=1) as loader:
        for _ in range(2):
            assert asyncio.run(epoch(loader)) == [(number, number) for number in range(60)]


def die_at_30(number: int) -> int:
    if number == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_always_dies_at_the_same_item_is_given_up(caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")

    def make() -> Any:
        return numbers().sharding_filter().map(die_at_30)

    settings: dict[str, Any] = {"on_worker_death": "restart", "max_restarts": 2}
    with loader_of(make, 1, worker_prefetch_cnt=0, **settings) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(30)] == list(range(30))
        with pytest.raises(WorkerDied, match="SIGKILL"):
            next(iterator)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            next(iterator)


def test_without_the_policy_a_death_is_an_error():
    with loader_of(lambda: numbers(3000).sharding_filter().map(slow), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(processes_of(loader)[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(iterator)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_worker_death": "ignore"}, 'must be "raise", "restart" or None, got .ignore.'),
        ({"max_restarts": -1}, "max_restarts must be at least 0, got -1"),
    ],
)
def test_what_is_to_happen_at_a_death_is_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        MultiProcessingReadingService(2, **settings)


async def soon_or_later(number: int) -> int:
    await asyncio.sleep(0.003 if number % 7 == 0 else 0)
    return number


def test_a_worker_whose_calls_have_no_order_goes_on_with_the_rest_of_the_set():
    def make() -> Any:
        calls = numbers(120).sharding_filter().async_map(soon_or_later, ordered=False)
        return calls.filter(not_a_third)

    expected = [number for number in range(120) if number % 3]
    for step in (1, 30):
        with loader_of(make, 2) as loader:
            iterator = iter(loader)
            items = [next(iterator) for _ in range(step)]
            state = loader.state_dict(include_datapipe=False)
        with loader_of(make, 2, state) as loader:
            assert sorted(items + list(loader)) == expected


# What going on costs --------------------------------------------------------------------------


class Called:
    """A function that notes its calls in a file, whichever process calls it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __call__(self, number: Any) -> Any:
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")
        return number

    def count(self) -> int:
        return self.path.stat().st_size


def mark_every_frame(pipe: Any, worker_info: Any) -> Any:
    """How often marks are due depends on time; what they hold does not."""
    cursor_history._SHARE = 0
    return pipe


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "made_of", "window"),
    [
        (lambda pipe, called: pipe.map(called), 1, 0),
        (lambda pipe, called: pipe.map(called).batch(8), 8, 8),
        (lambda pipe, called: pipe.map(called).filter(not_a_third), 2, 0),
        (lambda pipe, called: pipe.map(called).flatmap(twice), 1, 0),
        (lambda pipe, called: pipe.map(called).shuffle(buffer_size=40), 1, 40),
        (lambda pipe, called: pipe.map(called).groupby(remainder, group_size=4), 4, 40),
        (lambda pipe, called: pipe.map(called).bucketbatch(4, batch_num=2, bucket_num=2), 4, 16),
    ],
    ids=["map", "batch", "filter", "flatmap", "shuffle", "groupby", "bucketbatch"],
)
def test_in_workers_only_a_window_of_what_came_before_is_made_again(
    shape, made_of, window, tmp_path
):
    called = Called(tmp_path / "calls")
    count, workers = 12000, 2

    def make() -> Any:
        return shape(numbers(count).sharding_filter(), called)

    settings: Any = {"worker_prefetch_cnt": 1, "worker_init_fn": mark_every_frame}
    with loader_of(make, workers, **settings) as loader:
        items = list(loader)
        assert called.count() == count
        iterator = iter(loader)
        for _ in range(len(items) * 9 // 10):
            next(iterator)
        state = loader.state_dict(include_datapipe=False)
        rest = list(iterator)
    before = called.count()
    with loader_of(make, workers, state, **settings) as loader:
        assert list(loader) == rest
    # Beside what is to come: what is held, and what has come since each worker's latest mark,
    # which stands before its frame of at most 1,024 items.
    assert called.count() - before <= count // 10 + workers * (window + 1024 * made_of)


class AtHome(it.AsyncMapper[Any]):
    """Calls for each item, in the loader's process."""

    def is_replicable(self) -> bool:
        return False


def test_a_state_is_right_between_items_that_came_together(monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)

    def graph() -> Any:
        return AtHome(it.IterableWrapper(range(40)).sharding_filter(), double_soon, concurrency=2)

    def service() -> MultiProcessingReadingService:
        return MultiProcessingReadingService(1, main_prefetch_cnt=0)

    expected = [2 * number for number in range(40)]
    with loader_from(graph(), service()) as loader:
        states = [loader.state_dict(include_datapipe=False) for _ in loader]
    for step in range(0, 40, 5):
        with loader_from(graph(), service(), states[step]) as resumed:
            assert list(resumed) == expected[step + 1 :]


def test_states_between_two_groups_of_items_read_the_workers_place_once(monkeypatch):
    asked = []
    cursor_at = FromWorkersPass.cursor_at

    def noted(begun, stand):
        asked.append(stand)
        return cursor_at(begun, stand)

    monkeypatch.setattr(FromWorkersPass, "cursor_at", noted)
    graph = it.IterableWrapper(range(1000)).sharding_filter()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        states = [loader.state_dict() for _ in range(5)]
        assert len(asked) <= 1
        assert states == states[:1] * 5
        assert list(iterator) == [*range(1, 1000)]
        loader.state_dict()
    assert len(asked) == len({id(stand) for stand in asked})


@pytest.mark.filterwarnings("ignore:nothing shards the graph:UserWarning")
def test_what_comes_once_from_each_worker_may_come_so_often_in_a_state(monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    sources = [it.IterableWrapper(range(3)).batch(1, across_workers=True) for _ in range(2)]

    def loader():
        service = MultiProcessingReadingService(num_workers=2)
        graph = it.SampleMultiplexer(dict(zip(sources, (1, 2), strict=True)), seed=1)
        return DataLoader2(graph, None, service, seed=1)

    with loader() as first:
        items = iter(first)
        for _ in range(10):
            next(items)
        state = first.state_dict(include_datapipe=False)
        rest = list(items)
    with loader() as second:
        second.load_state_dict(state)
        assert list(second) == rest
    assert len(rest) == 2
