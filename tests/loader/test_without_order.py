"""States of graphs that hand out as results come.

Of such a graph no order comes again by itself. So it is recorded what becomes of each item, and
what cannot say it is refused by name.
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
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import LoaderError, SnapshotError, WorkerDied
from asyncloader.graph import find_dps, traverse_dps
from asyncloader.services.from_workers import FromWorkers
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


def parts_of(batch: list[int]) -> list[int]:
    return batch


def second_of(pair: tuple[int, int]) -> int:
    return pair[1]


def mixed_after(source: Any) -> Any:
    return source.async_map(now_and_then_later, ordered=False, concurrency=8)


def zipped(first: Any, second: Any) -> Any:
    return first.zip(second)


GRAPHS: dict[str, Any] = {
    "nothing": lambda: mixed(),
    "threads": lambda: it.IterableWrapper(range(COUNT)).thread_map(
        as_it_is, ordered=False, concurrency=4
    ),
    "filter": lambda: mixed().filter(is_odd),
    "shuffle": lambda: mixed().shuffle(buffer_size=20),
    "shuffle of filter": lambda: mixed().filter(is_odd).shuffle(buffer_size=20),
    "flatmap": lambda: mixed().flatmap(parts),
    "shuffle of flatmap": lambda: mixed().flatmap(parts).shuffle(buffer_size=7),
    "batches of flatmap": lambda: mixed().flatmap(parts).batch(3),
    "groupby": lambda: mixed().groupby(is_odd, group_size=3),
    "prefetch": lambda: mixed().prefetch(5).map(as_it_is),
    "enumerate": lambda: mixed().map(as_it_is).enumerate().map(second_of),
    "two": lambda: mixed().async_map(now_and_then_later, ordered=False),
    "two with a filter between": lambda: (
        mixed().filter(is_odd).async_map(now_and_then_later, ordered=False)
    ),
    "above": lambda: mixed_after(it.IterableWrapper(range(20)).cycle(3)),
    "a fork above": lambda: mixed_after(zipped(*it.IterableWrapper(range(20)).fork(2))).map(sum),
}

#: What reads in a way in which nobody knows what became of which item.
UNRECORDED: dict[str, tuple[Any, str]] = {
    "opaque": (lambda: Opaque(mixed()), "Opaque"),
    "filter of opaque": (lambda: Opaque(mixed()).filter(is_odd), "Opaque"),
    "flatmap of batches": (lambda: mixed().batch(2).flatmap(parts_of), "flatmap"),
    "cycle": (lambda: mixed().cycle(3), "cycle"),
    "concat": (lambda: mixed().concat(mixed()), "concat"),
    "mux_longest": (lambda: mixed().mux_longest(mixed()), "mux_longest"),
    "fork": (lambda: zipped(*mixed().fork(2)), "fork"),
    "dealt": (lambda: dealt(), "sharding_round_robin_dispatch"),
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


@pytest.mark.parametrize("name", UNRECORDED)
def test_such_a_graph_runs_and_its_state_is_refused_by_name(name):
    make, culprit = UNRECORDED[name]
    with loader_from(make()) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SnapshotError, match=rf"^{culprit}\(.* follows async_map\("):
            loader.state_dict()
        assert list(iterator)


# Workers --------------------------------------------------------------------------------------


class Append(ReadingServiceInterface):
    """Puts a user's pipe behind what the workers hand out."""

    def initialize(self, datapipe: Any) -> Any:
        return Opaque(datapipe)


def workers(**settings: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(2, **settings)


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "in_order"),
    [
        (lambda: plain(), False),
        (lambda: plain().batch(3), False),
        (lambda: mixed().flatmap(parts), True),
        (lambda: mixed().batch(2), False),
    ],
    ids=["as workers have them", "batches", "in the workers", "both"],
)
def test_with_workers_nothing_is_lost_either(make, in_order):
    with standing(2, in_order=in_order) as service:
        for seed in range(2):
            assert_nothing_is_lost(make, random.Random(seed), lambda: service)


def test_a_pipe_that_a_service_puts_behind_the_workers_is_named_when_a_state_is_taken():
    service = SequentialReadingService(workers(in_order=False), Append())
    with loader_from(plain(), service) as loader:
        iterator = iter(loader)
        first = next(iterator)
        with pytest.raises(SnapshotError, match=r"Opaque.* was added by a reading service"):
            loader.state_dict()
        assert sorted([first, *iterator]) == list(range(COUNT))


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
    "batch": lambda: in_workers().batch(3, across_workers=True),
    "flatmap": lambda: in_workers().pin_memory(pin_memory_fn=kept).flatmap(parts).batch(4),
    "dealt": lambda: spread(
        it.IterableWrapper(range(300)).sharding_round_robin_dispatch(
            SHARDING_PRIORITIES.MULTIPROCESSING
        )
    ),
}


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", BEHIND_WORKERS)
def test_what_the_loader_holds_of_the_workers_items_is_not_lost(name, in_order):
    with marking(in_order=in_order) as service:
        assert_nothing_is_lost(BEHIND_WORKERS[name], random.Random(1), lambda: service)


@pytest.mark.parametrize("behind", [lambda pipe: pipe, lambda pipe: pipe.shuffle(buffer_size=5)])
def test_numbers_of_what_was_taken_as_it_was_ready_are_forgotten(behind):
    pipe = it.IterableWrapper(range(3000)).sharding_filter().batch(3)
    pipe = behind(pipe.pin_memory(pin_memory_fn=kept))
    service = workers(in_order=False, worker_prefetch_cnt=1)
    with loader_from(pipe, service) as loader:
        items = iter(loader)
        for _ in range(980):
            next(items)
        (outlet,) = find_dps(traverse_dps(loader._engine.lifecycle.adapted), FromWorkers)
        # Of frames that were not opened, and of one that is open.
        for inbox in outlet._begun._inboxes:
            assert len(inbox.record._arrived) <= len(inbox.frames) + 1


def drawn(number: int) -> tuple[int, float]:
    return number, random.random()


@pytest.mark.parametrize("end", [lambda pipe: pipe, lambda pipe: pipe.prefetch(3)])
def test_as_items_are_ready_workers_draw_what_they_would_have_drawn(end):
    def make() -> Any:
        return end(it.IterableWrapper(range(300)).sharding_filter().map(drawn))

    with marking(in_order=False) as service:
        with loader_from(make(), service) as loader:
            expected = sorted(loader)
        items, state = [], None
        for count in (40, 70, 300):
            with loader_from(make(), service, state) as loader:
                items += [item for _, item in zip(range(count), loader, strict=False)]
                state = loader.state_dict(include_datapipe=False)
        assert sorted(items) == expected


class Twice(InLoader):
    """Reads its source twice."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.source
        yield from self.source


def test_what_workers_send_only_once_is_named_where_it_is_read_twice():
    for settings in ({}, {"on_worker_death": "restart"}):
        with (
            loader_from(Twice(in_workers(30)), workers(**settings)) as loader,
            pytest.raises(LoaderError, match="reads the workers' items twice in one epoch"),
        ):
            list(loader)


def dealt() -> Any:
    return mixed().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(as_it_is)


def test_no_state_is_taken_where_no_order_is_known_of_what_was_dealt():
    with (
        loader_from(dealt(), workers()) as loader,
        pytest.raises(
            SnapshotError, match=r"Put sharding_round_robin_dispatch\(.* before async_map"
        ),
    ):
        loader.state_dict()


def test_nobody_is_replaced_where_no_order_is_known_of_what_was_dealt():
    with (
        pytest.raises(ValueError, match=r'"restart" is not possible: async_map\('),
        loader_from(dealt(), workers(on_worker_death="restart")),
    ):
        pass


# What was begun in turn, and what was not ------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("counts", [(2, 2, 2, 2, 2), (0, 0, 2, 1, 3), (3, 1, 0, 2, 0)], ids=str)
def test_any_number_of_workers_goes_on_where_the_section_is_behind_the_division(counts):
    numbers = iter([0, *counts])

    def new_service() -> Any:
        # The order of the workers does not matter here.
        count = next(numbers)
        return MultiProcessingReadingService(count, worker_prefetch_cnt=1, in_order=count != 3)

    assert_nothing_is_lost(lambda: mixed(200).flatmap(parts), random.Random(2), new_service)


def test_items_taken_as_they_are_ready_may_come_from_other_numbers_of_workers():
    numbers = iter([0, 2, 3, 1, 2])

    def new_service() -> Any:
        count = next(numbers)
        return MultiProcessingReadingService(count, worker_prefetch_cnt=1, in_order=count == 0)

    def make() -> Any:
        source = it.IterableWrapper(range(200)).sharding_filter().map(as_it_is)
        return source.pin_memory(pin_memory_fn=kept).shuffle(buffer_size=60)

    assert_nothing_is_lost(make, random.Random(2), new_service)


@pytest.mark.parametrize("in_order", [True, False])
def test_what_was_begun_in_turn_is_not_gone_on_with_as_it_is_ready_nor_the_reverse(in_order):
    with loader_from(plain(), workers(in_order=in_order)) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    with (
        DataLoader2(plain(), None, workers(in_order=not in_order)) as loader,
        pytest.raises(SnapshotError, match=f"make it with in_order={in_order} for the rest"),
    ):
        loader.load_state_dict(state)


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


def test_what_services_add_before_the_workers_loses_nothing():
    assert_nothing_is_lost(
        plain,
        random.Random(3),
        lambda: SequentialReadingService(Change(in_pairs), workers(in_order=False)),
    )


@pytest.mark.parametrize(
    "new_service",
    [
        lambda: SequentialReadingService(workers(in_order=False), Change(in_pairs)),
        lambda: SequentialReadingService(workers(), Change(lambda pipe: pipe.shuffle())),
        lambda: workers(worker_init_fn=in_pairs),
    ],
    ids=["behind the workers", "shuffled behind the workers", "in the workers"],
)
def test_what_services_add_behind_what_has_no_order_runs_without_a_state(new_service):
    with loader_from(in_workers(30), new_service()) as loader:
        iterator = iter(loader)
        first = next(iterator)
        with pytest.raises(SnapshotError, match=r"add it .*before the loader is made"):
            loader.state_dict()
        assert sorted(flat([first, *iterator])) == list(range(30))


BEHIND = {
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=4),
    "groupby": lambda pipe: pipe.groupby(is_odd, group_size=2),
    "flatmap": lambda pipe: pipe.flatmap(parts),
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
