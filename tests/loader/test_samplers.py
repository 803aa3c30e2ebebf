"""Loaders of samplers: one order in all workers and after resuming, and the program's own draws."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from asyncloader import DataLoader2, MultiThreadingReadingService
from asyncloader.datapipes.iter import Prefetcher
from tests.processes.scripts import run_script
from tests.standing import standing

COUNT = 60
SIZE = 4


class Sampler:
    def __len__(self) -> int:
        return COUNT


class FromGlobals(Sampler):
    """Draws each key when it is asked for, from all three generators of the process."""

    def __iter__(self) -> Iterator[int]:
        left = list(range(COUNT))
        while left:
            drawn = numpy.random.randint(COUNT) + int(torch.randint(COUNT, ()))
            yield left.pop((random.randrange(COUNT) + drawn) % len(left))


class FromItsOwn(Sampler):
    """Draws from generators of its own, and shuffles what it holds in place."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.others = {"numpy": numpy.random.default_rng(0)}
        self.keys = list(range(COUNT))

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.keys)
        return iter(self.others["numpy"].permutation(self.keys).tolist())


class ByEpoch(Sampler):
    """Its order depends on nothing but the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(COUNT), COUNT))


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "global": lambda: {"sampler": FromGlobals(), "batch_size": SIZE},
    "own": lambda: {"sampler": FromItsOwn(), "batch_size": SIZE},
    "epoch": lambda: {"sampler": ByEpoch(), "batch_size": SIZE},
    "batches": lambda: {
        "batch_sampler": BatchSampler(FromItsOwn(), SIZE, drop_last=False)  # type: ignore[arg-type]
    },
    "torch": lambda: {"sampler": RandomSampler(range(COUNT)), "batch_size": SIZE},
}


def loader_of(name: str, state: Any = None, **settings: Any) -> DataLoader2[Any]:
    loader = DataLoader2.from_dataset(range(COUNT), **SETTINGS[name](), seed=7, **settings)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def epochs_of(loader: DataLoader2[Any], count: int) -> list[list[Any]]:
    with loader:
        return [[batch.tolist() for batch in loader] for _ in range(count)]


async def async_epochs_of(loader: DataLoader2[Any], count: int) -> list[list[Any]]:
    async with loader:
        return [[batch.tolist() async for batch in loader] for _ in range(count)]


def states_of(loader: DataLoader2[Any]) -> list[tuple[int, int, Any]]:
    """Return states of three epochs, each with the epoch and the number of batches before it."""
    with loader:
        return [
            (epoch, step, loader.state_dict(include_datapipe=False))
            for epoch in range(3)
            for step, _ in enumerate(loader, 1)
            if step % 4 == epoch
        ]


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_a_samplers_epochs_differ_and_resume_at_any_step_in_both_forms(name: str) -> None:
    epochs = epochs_of(loader_of(name), 4)
    assert all(sorted(chain.from_iterable(epoch)) == list(range(COUNT)) for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == len(epochs)
    assert asyncio.run(async_epochs_of(loader_of(name), 4)) == epochs
    for epoch, step, state in states_of(loader_of(name)):
        rest = [epochs[epoch][step:], epochs[epoch + 1]]
        assert epochs_of(loader_of(name, state), 2) == rest
        assert asyncio.run(async_epochs_of(loader_of(name, state), 2)) == rest


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("name", SETTINGS)
def test_workers_have_one_order_and_resume_in_later_epochs(name: str) -> None:
    epochs = epochs_of(loader_of(name), 4)
    graph = loader_of(name).datapipe
    for workers in (1, 3):
        with standing(workers) as service:

            def loader(state: Any = None) -> DataLoader2[Any]:
                made = DataLoader2(graph, reading_service=service)
                made.seed(7)
                if state is not None:
                    made.load_state_dict(state)
                return made

            for epoch, step, state in states_of(loader()):
                rest = [epochs[epoch][step:], epochs[epoch + 1]]
                assert epochs_of(loader(state), 2) == rest
                assert epochs_of(loader_of(name, state), 2) == rest


class Deadly:
    """Numbers, in whose second epoch one worker dies."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark
        self.looked_up = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> int:
        self.looked_up += 1
        if self.looked_up == COUNT * 3 // 4:
            with contextlib.suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return number


@pytest.mark.parametrize("name", ["global", "own"])
def test_a_worker_that_is_replaced_in_the_second_epoch_has_the_order_of_the_others(
    name: str, tmp_path: Path
) -> None:
    data = Deadly(tmp_path / "mark")
    settings = {"num_workers": 2, "on_worker_death": "restart", "prefetch_factor": 1}
    with DataLoader2.from_dataset(data, **SETTINGS[name](), seed=7, **settings) as loader:
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        assert loader.stats().restarts == 1
    assert epochs == epochs_of(loader_of(name), 2)


# The program's own generators -----------------------------------------------------------


def drawn(count: int) -> list[tuple[float, float, float]]:
    return [(random.random(), numpy.random.random(), float(torch.rand(()))) for _ in range(count)]


@pytest.fixture
def untouched() -> Iterator[list[Any]]:
    """A list for what the program draws; at the end it has to be what it draws alone."""

    def seed() -> None:
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)

    own: list[Any] = []
    seed()
    yield own
    seed()
    assert own == drawn(len(own))


MANY = 6000


class ManyFromGlobals:
    """Takes a while for its keys, drawing all the time."""

    def __len__(self) -> int:
        return MANY

    def __iter__(self) -> Iterator[int]:
        left = list(range(MANY))
        while left:
            drawn = numpy.random.randint(MANY) + int(torch.randint(MANY, ()))
            yield left.pop((random.randrange(MANY) + drawn) % len(left))


def many() -> DataLoader2[Any]:
    return DataLoader2.from_dataset(range(MANY), 20, sampler=ManyFromGlobals(), seed=7)


@pytest.fixture(scope="module")
def order_of_many() -> list[Any]:
    return epochs_of(many(), 1)[0]


async def test_loaders_side_by_side_and_the_program_draw_as_if_each_were_alone(
    order_of_many: list[Any], untouched: list[Any]
) -> None:
    async def epoch() -> list[Any]:
        found = []
        async with many() as loader:
            async for batch in loader:
                found.append(batch.tolist())
                untouched.extend(drawn(3))
                await asyncio.sleep(0)
        return found

    assert await asyncio.gather(epoch(), epoch()) == [order_of_many] * 2


def ahead(pipe: Any) -> Any:
    return Prefetcher(pipe, 2)


def by_threads_of_one_branch(pipe: Any) -> Any:
    """Whichever branch is in need draws for both, here the one that threads read ahead."""
    one, other = pipe.fork(2)
    return other.threadpool_map(itself, max_workers=2).zip(one).map(itemgetter(1))


def by_threads(pipe: Any) -> Any:
    return pipe.thread_map(itself, concurrency=2)


def itself(item: Any) -> Any:
    return item


READ = [ahead, by_threads, by_threads_of_one_branch]


@pytest.mark.parametrize("read", READ)
def test_a_sampler_above_a_thread_draws_where_the_items_are_taken(
    read: Any, order_of_many: list[Any], untouched: list[Any]
) -> None:
    found = []
    with DataLoader2(read(many().datapipe)) as loader:
        loader.seed(7)
        for batch in loader:
            found.append(batch.tolist())
            untouched.extend(drawn(3))
    assert found == order_of_many


def in_threads(workers: int, **settings: Any) -> DataLoader2[Any]:
    service = MultiThreadingReadingService(workers, **settings)
    return DataLoader2(many().datapipe, None, service, seed=7)


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_threads_draw_where_the_items_are_taken(
    workers: int, order_of_many: list[Any], untouched: list[Any]
) -> None:
    found = []
    with in_threads(workers) as loader:
        for batch in loader:
            found.append(batch.tolist())
            untouched.extend(drawn(3))
    assert found == order_of_many


async def test_so_they_do_for_several_loaders_on_a_loop(
    order_of_many: list[Any], untouched: list[Any]
) -> None:
    async def epoch() -> list[Any]:
        found = []
        async with in_threads(2) as loader:
            async for batch in loader:
                found.append(batch.tolist())
                untouched.extend(drawn(3))
        return found

    assert await asyncio.gather(epoch(), epoch()) == [order_of_many] * 2


def test_worker_threads_draw_a_later_epoch_and_a_resumed_one_there_too(
    untouched: list[Any],
) -> None:
    with many() as loader:
        _, second = epochs_of(loader, 2)
    with in_threads(2) as loader:
        for _ in loader:
            untouched.extend(drawn(1))
        items, found = iter(loader), []
        for _ in range(100):
            found.append(next(items).tolist())
            untouched.extend(drawn(1))
        state = loader.state_dict()
    with in_threads(2) as resumed:
        resumed.load_state_dict(state)
        for batch in resumed:
            found.append(batch.tolist())
            untouched.extend(drawn(1))
    assert found == second


@pytest.mark.parametrize("count", [1, 5, 64, 570])
def test_worker_threads_end_while_their_sampler_waits_for_whoever_takes_the_items(
    count: int,
) -> None:
    sampler = Wrapped(RandomSampler(range(2000)))
    graph = DataLoader2.from_dataset(range(2000), 1, sampler=sampler).datapipe
    with DataLoader2(graph, None, MultiThreadingReadingService(2)) as loader:
        for _ in range(2):
            items = iter(loader)
            for _ in range(count):
                next(items)
        assert len(list(loader)) == 2000


async def test_a_loader_closes_while_its_sampler_waits_for_whoever_takes_the_items() -> None:
    sampler = Wrapped(RandomSampler(range(2000)))
    async with DataLoader2.from_dataset(range(2000), 1, sampler=sampler) as loader:
        # The next keys are needed while nobody takes items.
        batches = aiter(loader)
        for _ in range(1000):
            await anext(batches)


@pytest.mark.parametrize("read", READ)
def test_a_for_that_breaks_off_does_not_wait_for_its_sampler(read: Any) -> None:
    sampler = Wrapped(RandomSampler(range(2000)))
    graph = read(DataLoader2.from_dataset(range(2000), 1, sampler=sampler).datapipe)
    for count in (1, 64, 570):
        with DataLoader2(graph) as loader:
            begun = iter(loader)
            for _ in range(count):
                next(begun)


def test_a_branch_that_ends_while_it_draws_for_another_loses_nothing() -> None:
    for count in (1, 62, 64):
        sampler = Wrapped(RandomSampler(range(200)))
        pipe = DataLoader2.from_dataset(range(200), 1, sampler=sampler).datapipe
        one, other = pipe.fork(2)
        with DataLoader2(one.threadpool_map(itself).header(count).concat(other)) as loader:
            assert sorted(map(int, list(loader)[count:])) == list(range(200))


class Wrapped:
    """A user's sampler around another."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


def test_an_error_of_a_sampler_is_raised_where_the_items_are_taken() -> None:
    async def read() -> None:
        async with DataLoader2.from_dataset(range(9), sampler=Broken()) as loader:
            [batch async for batch in loader]

    with pytest.raises(LookupError, match="the sampler's own"):
        asyncio.run(read())


class Broken(Sampler):
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise LookupError("the sampler's own")


# Libraries that nobody has imported -----------------------------------------------------

IN_A_FRESH_INTERPRETER = """
    import sys

    from asyncloader import DataLoader2

    class Late:
        '''Imports what it draws from when it is asked for keys.'''

        def __init__(self, module):
            self.module = module

        def __len__(self):
            return 60

        def __iter__(self):
            if self.module == "numpy":
                import numpy

                return iter(numpy.random.permutation(60).tolist())
            import torch

            return iter(torch.randperm(60).tolist())

    def epochs(module, workers):
        settings = dict(batch_size=4, collate_fn=list, seed=5, num_workers=workers)
        with DataLoader2.from_dataset(range(60), sampler=Late(module), **settings) as loader:
            return [list(loader) for _ in range(2)]

    # The workers import it first.
    print([epochs(sys.argv[1], workers) for workers in (2, 0)])
"""


class Drawing(Sampler):
    def __init__(self, module: str) -> None:
        self.module = module

    def __iter__(self) -> Iterator[int]:
        drawn: Any = torch.randperm(COUNT)
        return iter((numpy.random.permutation(COUNT) if self.module == "numpy" else drawn).tolist())


# That of numpy runs with the other tests, and so with the lowest numpy, which is another kind.
@pytest.mark.soak
@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_a_sampler_that_imports_what_it_draws_from_has_the_loaders_order(
    module: str, tmp_path: Path
) -> None:
    run = run_script(tmp_path, IN_A_FRESH_INTERPRETER, module)
    settings: dict[str, Any] = {"batch_size": 4, "collate_fn": list, "seed": 5}
    with DataLoader2.from_dataset(range(COUNT), sampler=Drawing(module), **settings) as loader:
        expected = [list(loader) for _ in range(2)]
    assert run.stderr == ""
    assert ast.literal_eval(run.stdout) == [expected] * 2
