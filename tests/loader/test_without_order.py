"""States of graphs that hand out as results come, whatever reads them.

Of such a graph no order comes again by itself. So what a pipe of the user's, which knows no
place, or a later round had seen of it has to come first, in the order it had.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.running.run import tree_of
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import SnapshotError, WorkerDied
from asyncloader.graph import find_dps, traverse_dps
from tests.samples import is_odd
from tests.standing import standing
from tests.steps import loader_from

COUNT = 60
NEVER = 10**9


class Opaque(it.IterDataPipe[Any]):
    """A user's pipe, of which nothing is known."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


async def now_and_then_later(number: int) -> int:
    for _ in range(random.choice([0, 0, 0, 3, 7])):
        await asyncio.sleep(0)
    return number


def as_it_is(number: int) -> int:
    return number


def mixed(count: int = COUNT) -> Any:
    source = it.IterableWrapper(range(count)).sharding_filter()
    return source.async_map(now_and_then_later, ordered=False, concurrency=8)


def parts(number: int) -> list[int]:
    return [number, number]


def zipped(first: Any, second: Any) -> Any:
    return first.zip(second)


GRAPHS: dict[str, Any] = {
    "nothing": lambda: mixed(),
    "opaque": lambda: Opaque(mixed()),
    "opaque twice": lambda: Opaque(Opaque(mixed())),
    "threads": lambda: Opaque(
        it.IterableWrapper(range(COUNT)).thread_map(as_it_is, ordered=False, concurrency=4)
    ),
    "filter of opaque": lambda: Opaque(mixed()).filter(is_odd),
    "opaque of filter": lambda: Opaque(mixed().filter(is_odd)),
    "shuffle of opaque": lambda: Opaque(mixed()).shuffle(buffer_size=20),
    "opaque of shuffle": lambda: Opaque(mixed().shuffle(buffer_size=20)),
    "flatmap": lambda: mixed().flatmap(parts),
    "groupby of opaque": lambda: Opaque(mixed()).groupby(is_odd, group_size=3),
    "two": lambda: mixed().async_map(now_and_then_later, ordered=False),
    "two with opaque between": lambda: Opaque(mixed()).async_map(now_and_then_later, ordered=False),
    "two with opaque behind each": lambda: Opaque(
        Opaque(mixed()).async_map(now_and_then_later, ordered=False)
    ),
    "cycle": lambda: mixed(20).cycle(3),
    "cycle of opaque": lambda: Opaque(mixed(20)).cycle(3),
    "opaque of cycle": lambda: Opaque(mixed(20).cycle(3)),
    "concat": lambda: mixed(20).concat(mixed(20), mixed(20)),
    "concat of opaque": lambda: Opaque(mixed(20)).concat(Opaque(mixed(20)), mixed(20)),
    "cycle of concat": lambda: mixed(10).concat(Opaque(mixed(10))).cycle(3),
    "mux_longest": lambda: mixed(20).mux_longest(Opaque(mixed(40))),
    "fork": lambda: zipped(*mixed().fork(2)),
    "fork of opaque": lambda: zipped(*Opaque(mixed()).fork(2)),
    "opaque of a branch": lambda: zipped(*(Opaque(each) for each in mixed().fork(2))),
}


def flat(items: Any) -> list[int]:
    if isinstance(items, list | tuple):
        return [number for item in items for number in flat(item)]
    return [items]


def assert_nothing_is_lost(make: Any, luck: random.Random, new_service: Any = None) -> None:
    """Go on three times; what came in all has to be what an undisturbed loader hands out."""
    new_service = new_service or (lambda: None)
    with loader_from(make(), new_service()) as loader:
        expected = list(loader)
    items: list[Any] = []
    state = None
    for _ in range(3):
        with loader_from(make(), new_service(), state) as loader:
            iterator = iter(loader)
            items += [next(iterator) for _ in range(luck.randrange(len(expected) // 3))]
            state = loader.state_dict(include_datapipe=False)
    with loader_from(make(), new_service(), state) as loader:
        items += list(loader)
    assert len(items) == len(expected)
    assert Counter(flat(items)) == Counter(flat(expected))


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0, NEVER], ids=["places noted always", "places noted once"])
@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_is_lost_and_nothing_comes_twice(name, share, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", share)
    for seed in range(2):
        assert_nothing_is_lost(GRAPHS[name], random.Random(seed))


# What is remembered ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        lambda pipe: pipe,
        lambda pipe: pipe.filter(is_odd),
        lambda pipe: pipe.shuffle(buffer_size=10),
        lambda pipe: zipped(*pipe.fork(2)),
        lambda pipe: pipe.concat(mixed(10)),
        lambda pipe: pipe.mux_longest(mixed(10)),
        lambda pipe: it.SampleMultiplexer({pipe: 0.5, mixed(10): 0.5}, seed=1),
    ],
    ids=["nothing", "filter", "shuffle", "fork", "concat", "mux_longest", "mix"],
)
def test_what_was_handed_out_is_forgotten_in_time(shape, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    pipe = it.IterableWrapper(range(8000)).async_map(now_and_then_later, ordered=False)
    with DataLoader2(shape(pipe)) as loader:
        iterator = iter(loader)
        for _ in range(3000):
            next(iterator)
        running = find_dps(traverse_dps(loader._engine.lifecycle.adapted), it.AsyncMapper)[0]
        noted = sum(1 for _ in tree_of(running).yield_order_of(running)._journal.entries_from(0))
    assert noted < 2500, "of 3,000 items those are known that a state may have to go back to"


# Workers --------------------------------------------------------------------------------------


class Append(ReadingServiceInterface):
    """Puts a user's pipe behind what the workers hand out."""

    def initialize(self, datapipe: Any) -> Any:
        return Opaque(datapipe)


def workers(**settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(2, **settings)


@pytest.mark.parametrize(
    ("make", "in_order", "behind"),
    [
        (lambda: plain(), False, [Append()]),
        (lambda: Opaque(mixed()), True, []),
        (lambda: Opaque(mixed(20)).cycle(3), True, []),
    ],
    ids=["behind the workers", "in the workers", "again and again in the workers"],
)
def test_with_workers_nothing_is_lost_either(make, in_order, behind):
    with standing(2, in_order=in_order) as service:
        for seed in range(2):
            assert_nothing_is_lost(
                make, random.Random(seed), lambda: SequentialReadingService(service, *behind)
            )


def mark_every_frame(pipe: Any, worker_info: Any) -> Any:
    """How often marks are due depends on time; what they hold does not."""
    cursor_history._SHARE = 0
    return pipe


def marking(**settings: Any) -> Any:
    return standing(2, worker_init_fn=mark_every_frame, worker_prefetch_cnt=1, **settings)


# Not the global one: a worker whose functions draw from that makes no marks.
own_luck = random.Random()


async def sooner_or_later(number: int) -> int:
    for _ in range(own_luck.choice([0, 0, 0, 3, 7])):
        await asyncio.sleep(0)
    return number


def spread(pipe: Any) -> Any:
    return pipe.async_map(sooner_or_later, ordered=False, concurrency=8)


def kept(item: Any, device: Any) -> Any:
    return item


class InLoader(Opaque):
    """A user's pipe that stays with the loader."""

    def is_replicable(self) -> bool:
        return False


def in_workers(count: int = 300) -> Any:
    return spread(it.IterableWrapper(range(count)).sharding_filter())


BEHIND_WORKERS: dict[str, Any] = {
    "shuffle": lambda: in_workers().pin_memory(pin_memory_fn=kept).shuffle(buffer_size=120),
    "groupby": lambda: in_workers().pin_memory(pin_memory_fn=kept).groupby(is_odd, group_size=70),
    "opaque": lambda: InLoader(in_workers()),
    "dealt": lambda: spread(
        it.IterableWrapper(range(300)).sharding_round_robin_dispatch(
            SHARDING_PRIORITIES.MULTIPROCESSING
        )
    ),
}


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", BEHIND_WORKERS)
def test_what_the_loader_reads_again_comes_in_the_order_it_had_in_the_workers(name, in_order):
    with marking(in_order=in_order) as service:
        assert_nothing_is_lost(BEHIND_WORKERS[name], random.Random(1), lambda: service)


def dealt() -> Any:
    return mixed().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(as_it_is)


def test_no_state_is_taken_where_no_order_is_known_of_what_was_dealt():
    assert_nothing_is_lost(dealt, random.Random(0))
    with (
        loader_from(dealt(), workers()) as loader,
        pytest.raises(SnapshotError, match="ordered=True, or let it follow sharding_round_robin"),
    ):
        loader.state_dict()


def test_nobody_is_replaced_where_no_order_is_known_of_what_was_dealt():
    with (
        pytest.raises(ValueError, match=r'"restart" is not possible: async_map\('),
        loader_from(dealt(), workers(on_worker_death="restart")),
    ):
        pass


# What was begun in turn, and what was not ------------------------------------------------------


ORDERS = {
    "begun without workers": [(0, True), (2, False), (2, False), (2, False)],
    "begun in turn": [(2, True), (3, False), (3, True), (3, False)],
    "begun as items came": [(2, False), (2, True), (2, False), (2, True)],
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_epoch_is_gone_on_with_in_the_order_in_which_it_was_begun(name):
    def make() -> Any:
        source = it.IterableWrapper(range(200)).sharding_filter().map(as_it_is)
        return InLoader(source.pin_memory(pin_memory_fn=kept).shuffle(buffer_size=60))

    ways = iter([(0, True), *ORDERS[name]])

    def new_service() -> Any:
        count, in_order = next(ways)
        return MultiProcessingReadingService(count, worker_prefetch_cnt=1, in_order=in_order)

    assert_nothing_is_lost(make, random.Random(2), new_service)


# What services and functions put into the graph -------------------------------------------------


def spread_there(pipe: Any, *_: Any) -> Any:
    return spread(pipe)


def in_pairs(pipe: Any, *_: Any) -> Any:
    return pipe.batch(2)


def plain() -> Any:
    return it.IterableWrapper(range(COUNT)).sharding_filter().map(as_it_is)


class Change(ReadingServiceInterface):
    def __init__(self, change: Any) -> None:
        self.change = change

    def initialize(self, datapipe: Any) -> Any:
        return self.change(datapipe)


UNPLACED: dict[str, Any] = {
    "init": lambda: InProcessReadingService(init_fn=spread_there),
    "reset": lambda: InProcessReadingService(reset_fn=spread_there),
    "worker's init": lambda: workers(worker_init_fn=spread_there),
    "worker's reset": lambda: workers(worker_reset_fn=spread_there),
    "service": lambda: SequentialReadingService(Change(spread_there), workers()),
}


@pytest.mark.parametrize("name", UNPLACED)
def test_no_state_is_taken_where_what_has_no_order_has_no_place(name):
    with loader_from(plain(), UNPLACED[name]()) as loader:
        iterator = iter(loader)
        first = next(iterator)
        with pytest.raises(SnapshotError, match=r"async_map\(.*add it before the loader"):
            loader.state_dict()
        assert sorted([first, *iterator]) == list(range(COUNT))
        # Between epochs there is nothing to be known.
        assert loader.state_dict()


def test_nobody_is_replaced_where_what_has_no_order_has_no_place(caplog):
    caplog.set_level(logging.CRITICAL, "asyncloader")
    service = workers(worker_init_fn=spread_there, worker_prefetch_cnt=1, on_worker_death="restart")
    with loader_from(in_workers(3000), service) as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(loader.reading_service._pool.handles[0].process.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as death:
            list(iterator)
    assert "is not replaced: async_map(" in "".join(death.value.__notes__)


@pytest.mark.parametrize(
    "new_service",
    [
        lambda: SequentialReadingService(Change(in_pairs), workers(in_order=False)),
        lambda: SequentialReadingService(workers(in_order=False), Change(in_pairs)),
        lambda: SequentialReadingService(workers(), Change(lambda pipe: pipe.shuffle())),
    ],
    ids=["before the workers", "behind the workers", "shuffled behind the workers"],
)
def test_what_services_add_to_what_has_no_order_loses_nothing(new_service):
    make = plain if new_service().reading_services[0].worker_count() == 0 else in_workers
    assert_nothing_is_lost(make, random.Random(3), new_service)


BEHIND = {
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=4),
    "groupby": lambda pipe: pipe.groupby(is_odd, group_size=2),
    "sharding_filter": lambda pipe: pipe.sharding_filter(),
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_an_epoch_without_an_end_remembers_no_order_from_where_it_began(behind, monkeypatch):
    # A place is noted as often as can be.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    state = None
    for _ in range(2):
        mapped = it.IterableWrapper(range(NEVER)).thread_map(int, concurrency=2, ordered=False)
        with DataLoader2(behind(mapped)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            items, sizes = iter(loader), []
            for _ in range(2):
                for _ in range(2_000):
                    next(items)
                gc.collect()
                sizes.append(len(gc.get_objects()))
            state = loader.state_dict(include_datapipe=False)
        assert sizes[1] - sizes[0] < 1_200


async def test_no_order_is_remembered_where_no_state_can_be_taken():
    pipe = Opaque(spread(it.IterableWrapper(range(NEVER))).batch(2, max_wait=0.1))
    async with DataLoader2(pipe) as loader:
        batches, sizes = aiter(loader), []
        for _ in range(2):
            for _ in range(2_000):
                await anext(batches)
            gc.collect()
            sizes.append(len(gc.get_objects()))
        with pytest.raises(SnapshotError, match="depends on time"):
            loader.state_dict()
    assert sizes[1] - sizes[0] < 1_000


# What cannot be divided -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "pipe"),
    [
        (lambda: spread(it.IterableWrapper(range(9))).sharding_filter(), "async_map"),
        (lambda: it.IterableWrapper(range(9)).batch(2, max_wait=1).sharding_filter(), "batch"),
    ],
    ids=["results as they come", "batches by the clock"],
)
def test_what_comes_in_no_certain_order_is_not_divided(make, pipe):
    for count in (0, 1):
        with loader_from(make(), MultiProcessingReadingService(count)) as loader:
            assert sorted(flat(list(loader))) == list(range(9))
    with (
        pytest.raises(
            ValueError, match=rf"each of the workers .* what {pipe}\(.* no certain order"
        ),
        loader_from(make(), workers()),
    ):
        pass
