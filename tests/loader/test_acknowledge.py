"""With ``acknowledge=True`` a state counts what was acknowledged, and not what was delivered."""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import SnapshotError
from tests.samples import double, double_soon, is_odd, twice
from tests.steps import SEED, loader_from

COUNT = 150
BETWEEN_WORKERS = SHARDING_PRIORITIES.MULTIPROCESSING


@pytest.fixture(autouse=True)
def _places_at_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cursors be noted at every item, so that quick graphs have places too."""
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    monkeypatch.setattr(cursor_history, "_OFTEN_SECONDS", 0.0)


def numbers(count: int = COUNT) -> Any:
    return it.IterableWrapper(range(count))


def sharded() -> Any:
    return numbers().shuffle().sharding_filter()


def joined(branches: Any) -> Any:
    first, second = branches
    return first.zip(second.map(str))


def as_it_is(item: Any) -> Any:
    return item


async def now_and_then_later(number: int) -> int:
    for _ in range(random.choice([0, 0, 0, 3, 7])):
        await asyncio.sleep(0)
    return number


class Opaque(IterDataPipe[Any]):
    """A user's pipe, of which nothing is known."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source


ORDERED: dict[str, Callable[[], Any]] = {
    "maps and batches": lambda: numbers().map(double).batch(3),
    "shuffle": lambda: numbers().shuffle(buffer_size=7).map(double),
    "filter over shuffle": lambda: numbers().shuffle(buffer_size=9).filter(is_odd).batch(2),
    "flatmap": lambda: numbers().flatmap(twice).shuffle(buffer_size=5),
    "prefetch": lambda: numbers().filter(is_odd).prefetch(4).flatmap(twice),
    "async map": lambda: numbers().shuffle(buffer_size=5).async_map(double_soon).batch(2),
    "thread map": lambda: numbers().shuffle().thread_map(double).map(str),
    "fork and zip": lambda: joined(numbers().shuffle(buffer_size=5).fork(2)),
    "cycle": lambda: numbers(40).shuffle().cycle(4).batch(3),
    "a user's pipe": lambda: Opaque(numbers().shuffle()).batch(2),
}
UNORDERED: dict[str, Callable[[], Any]] = {
    "async map": lambda: numbers().async_map(now_and_then_later, ordered=False, concurrency=8),
    "thread map": lambda: numbers().thread_map(as_it_is, ordered=False, concurrency=4),
    "prefetch": lambda: numbers().async_map(now_and_then_later, ordered=False).prefetch(5),
    "a shuffle": lambda: numbers().async_map(now_and_then_later, ordered=False).shuffle(),
}
IN_WORKERS: dict[str, tuple[Callable[[], Any], bool]] = {
    "maps": (lambda: sharded().map(double), True),
    "batches": (lambda: sharded().map(double).batch(2), True),
    "dispatched": (
        lambda: numbers().shuffle().sharding_round_robin_dispatch(BETWEEN_WORKERS).map(double),
        True,
    ),
    "as they come": (lambda: sharded().map(double), False),
    "results as they come": (
        lambda: numbers().sharding_filter().async_map(now_and_then_later, ordered=False),
        True,
    ),
}


class Consumer:
    """Takes and acknowledges random numbers of a loader's items, and knows which."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(repr(seed))
        self.acknowledged: list[Any] = []
        self._taken: deque[Any] = deque()
        self._most = 0

    def begin(self) -> int:
        """Begin a run; return how many items it takes before it is killed.

        It acknowledges twelve at most, so that the runs after it have some of the epoch too.
        """
        self._taken.clear()
        self._most = self.random.randint(0, 12)
        return self.random.choice([self.random.randint(1, 12), self.random.randint(40, 120)])

    def take(self, loader: DataLoader2[Any], item: Any) -> None:
        self._taken.append(item)
        if self._most and self.random.random() < 0.3:
            count = self.random.randint(1, min(self._most, len(self._taken)))
            self._most -= count
            self.ack(loader, count)
        assert loader.unacknowledged == len(self._taken)

    def ack(self, loader: DataLoader2[Any], count: int) -> None:
        loader.ack(count)
        self.acknowledged += [self._taken.popleft() for _ in range(count)]

    def ack_all(self, loader: DataLoader2[Any]) -> None:
        if self._taken:
            self.ack(loader, len(self._taken))


def acknowledged_along_a_line(make: Any, seed: object, service: Any = None, states: int = 3) -> Any:
    """Return what is acknowledged of an epoch by runs of which each resumes from the one before."""
    consumer, state = Consumer(seed), None
    for _ in range(states):
        with loader_from(make(), service, state, acknowledge=True) as loader:
            for item in islice(loader, consumer.begin()):
                consumer.take(loader, item)
            state = loader.state_dict(include_datapipe=False)
    consumer.begin()
    with loader_from(make(), service, state, acknowledge=True) as loader:
        for item in loader:
            consumer.take(loader, item)
        consumer.ack_all(loader)
        assert loader.state_dict()["position"]["items"] == 0
    return consumer.acknowledged


async def acknowledged_along_an_async_line(
    make: Any, seed: object, service: Any = None, states: int = 3
) -> Any:
    consumer, state = Consumer(seed), None
    for _ in range(states):
        async with loader_from(make(), service, state, acknowledge=True) as loader:
            items, count = aiter(loader), consumer.begin()
            async for item in items:
                consumer.take(loader, item)
                count -= 1
                if count <= 0:
                    break
            state = loader.state_dict(include_datapipe=False)
    consumer.begin()
    async with loader_from(make(), service, state, acknowledge=True) as loader:
        async for item in loader:
            consumer.take(loader, item)
        consumer.ack_all(loader)
    return consumer.acknowledged


def epoch_of(make: Any, service: Any = None) -> list[Any]:
    with loader_from(make(), service) as loader:
        return list(loader)


# Resuming -------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ORDERED)
async def test_runs_that_resume_acknowledge_an_epoch_in_its_order(name, seed):
    make = ORDERED[name]
    expected = await asyncio.to_thread(epoch_of, make)
    assert await asyncio.to_thread(acknowledged_along_a_line, make, seed) == expected
    assert await acknowledged_along_an_async_line(make, seed) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", UNORDERED)
async def test_runs_that_resume_acknowledge_each_item_once_where_there_is_no_order(name, seed):
    make, expected = UNORDERED[name], Counter(range(COUNT))
    of_a_thread = await asyncio.to_thread(acknowledged_along_a_line, make, seed)
    assert Counter(of_a_thread) == expected
    assert Counter(await acknowledged_along_an_async_line(make, seed)) == expected


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("name", IN_WORKERS)
async def test_runs_that_resume_in_workers_acknowledge_each_item_once(name):
    make, in_order = IN_WORKERS[name]
    service = MultiProcessingReadingService(2, in_order=in_order)
    expected = await asyncio.to_thread(epoch_of, make, service)
    for seed in range(2):
        found = await asyncio.to_thread(acknowledged_along_a_line, make, seed, service, 2)
        found_async = await acknowledged_along_an_async_line(make, seed, service, 2)
        if in_order and not name.startswith("results"):
            assert found == found_async == expected
        else:
            assert Counter(found) == Counter(found_async) == Counter(expected)


def by_chance(number: int) -> bool:
    return random.random() < 0.7


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pipe", ["filter", "async_map"])
def test_runs_that_resume_acknowledge_each_number_once_where_work_is_recorded(pipe, seed):
    def graph() -> Any:
        made = numbers().map(as_it_is)
        if pipe == "async_map":
            made = made.async_map(now_and_then_later, ordered=False, repeatable=False)
        return made.filter(by_chance, repeatable=False)

    consumer, state, left_out = Consumer(seed), None, {}
    for is_last in (False, False, False, True):
        most = consumer.begin()
        with loader_from(graph(), None, state, acknowledge=True) as loader:
            for item in islice(loader, COUNT if is_last else most):
                consumer.take(loader, item)
                assert loader.numbers == (item,)
            state = loader.state_dict(include_datapipe=False)
            left_out = loader.stats().left_out
            if is_last:
                consumer.ack_all(loader)
                assert loader.state_dict()["position"]["items"] == 0
    assert len(set(consumer.acknowledged)) == len(consumer.acknowledged)
    assert len(consumer.acknowledged) + left_out["filter"] == COUNT


def test_what_was_left_out_before_the_first_acknowledgement_is_not_looked_at_again():
    asked: list[int] = []

    def likes(number: int) -> bool:
        asked.append(number)
        return number >= 3

    def graph() -> Any:
        return numbers().filter(likes, repeatable=False)

    with loader_from(graph(), acknowledge=True) as loader:
        assert next(iter(loader)) == 3
        state = loader.state_dict(include_datapipe=False)
    asked.clear()
    with loader_from(graph(), None, state, acknowledge=True) as loader:
        assert next(iter(loader)) == 3
        assert asked[0] == 3
        assert loader.stats().left_out == {"filter": 3}


@pytest.mark.parametrize("in_order", [True, False])
def test_a_loader_of_a_data_set_resumes_after_what_was_acknowledged(in_order):
    def loader_of_data(state: Any = None) -> DataLoader2[Any]:
        loader = DataLoader2.from_dataset(
            range(COUNT), 4, True, num_workers=2, in_order=in_order, seed=SEED, acknowledge=True
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    with loader_of_data() as loader:
        batches = [batch.tolist() for batch in islice(loader, 9)]
        loader.ack(4)
        state = loader.state_dict()
    with loader_of_data(state) as loader:
        rest = [batch.tolist() for batch in loader]
    if in_order:
        assert rest[:5] == batches[4:]
    assert sorted(chain(*batches[:4], *rest)) == list(range(COUNT))


def test_nothing_is_left_out_where_nothing_was_acknowledged():
    make = ORDERED["filter over shuffle"]
    expected = epoch_of(make)
    with loader_from(make(), acknowledge=True) as loader:
        states = [loader.state_dict(include_datapipe=False)]
        for _ in islice(loader, 11):
            states.append(loader.state_dict(include_datapipe=False))  # noqa: PERF401
    for state in states[::5]:
        with loader_from(make(), state=state) as loader:
            assert list(loader) == expected


def test_a_loader_that_resumes_without_acknowledge_counts_what_it_yields():
    with loader_from(numbers(), acknowledge=True) as loader:
        assert list(islice(loader, 5)) == [0, 1, 2, 3, 4]
        loader.ack(2)
        state = loader.state_dict()
    with DataLoader2.from_state(state) as loader:
        assert list(islice(loader, 3)) == [2, 3, 4]
        assert loader.state_dict()["position"]["items"] == 5
    with DataLoader2.from_state(state, acknowledge=True) as loader:
        assert list(islice(loader, 3)) == [2, 3, 4]
        assert loader.state_dict()["position"]["items"] == 2


# Counts ---------------------------------------------------------------------------------


def test_more_than_was_delivered_is_refused_with_both_numbers():
    with DataLoader2(numbers(), acknowledge=True) as loader:
        with pytest.raises(ValueError, match=r"ack\(1\) asks .*: 0 were delivered"):
            loader.ack()
        items = iter(loader)
        assert [next(items), next(items), next(items)] == [0, 1, 2]
        loader.ack()
        with pytest.raises(ValueError, match=r"ack\(3\) asks .*: 2 were delivered"):
            loader.ack(3)
        assert loader.unacknowledged == 2


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ValueError, "count must be at least 1, got 0"),
        (-1, ValueError, "count must be at least 1, got -1"),
        (1.0, TypeError, "count must be an integer, got float"),
        (True, TypeError, "count must be an integer, got True"),
    ],
)
def test_a_count_that_is_no_whole_number_above_0_is_refused(count, error, message):
    with DataLoader2(numbers(), acknowledge=True) as loader:
        next(iter(loader))
        with pytest.raises(error, match=message):
            loader.ack(count)
        assert loader.unacknowledged == 1


def test_the_stats_say_how_many_items_wait_for_it():
    with DataLoader2(it.IterableWrapper(range(9)), acknowledge=True) as loader:
        list(loader)
        loader.ack(2)
        stats = loader.stats()
        loader.ack(7)
        later = loader.stats().since(stats)
    assert (stats.unacknowledged, later.unacknowledged) == (7, 0)
    assert ", 7 not acknowledged; the consumer waited" in repr(stats)
    assert ", 7 not acknowledged; the consumer waited" in repr(stats).splitlines()[0]
    found = [[each for each in of.as_metrics() if "acknow" in each.name] for of in (stats, later)]
    assert [str(each) for (each,) in found] == [
        "asyncloader_unacknowledged_items 7",
        "asyncloader_unacknowledged_items 0",
    ]


def test_the_stats_say_nothing_of_it_where_nobody_acknowledges():
    with DataLoader2(it.IterableWrapper(range(9))) as loader:
        list(loader)
        stats = loader.stats()
    assert stats.unacknowledged is None
    assert "acknow" not in repr(stats)
    assert "acknow" not in " ".join(map(str, stats.as_metrics()))


def test_ack_without_acknowledge_says_what_to_do():
    with DataLoader2(numbers()) as loader:
        next(iter(loader))
        with pytest.raises(RuntimeError, match=r"DataLoader2\(\.\.\., acknowledge=True\)"):
            loader.ack()
        assert loader.unacknowledged == 0


def test_a_limit_and_a_pause_count_what_is_delivered():
    with DataLoader2(numbers().prefetch(4), acknowledge=True) as loader:
        items = iter(loader)
        loader.limit(3)
        assert list(items) == [0, 1, 2]
        loader.ack(2)
        assert list(items) == []
        loader.resume()
        assert list(items) == [3, 4, 5]
        loader.pause()
        assert list(items) == []
        assert loader.unacknowledged == 4


async def test_another_thread_acknowledges_and_takes_states_meanwhile():
    make, taken, states = ORDERED["prefetch"], queue.SimpleQueue[Any](), dict[int, Any]()
    expected = await asyncio.to_thread(epoch_of, make)
    async with loader_from(make(), acknowledge=True) as loader:

        def acknowledge() -> None:
            for _ in iter(taken.get, None):
                loader.ack()

        def take_states() -> None:
            while (count := len(expected) - loader.unacknowledged) and not is_done.is_set():
                state = loader.state_dict(include_datapipe=False)
                states[state["position"]["items"] or -count] = state

        is_done = threading.Event()
        helpers = [threading.Thread(target=each) for each in (acknowledge, take_states)]
        for helper in helpers:
            helper.start()
        async for item in loader:
            taken.put(item)
        taken.put(None)
        await asyncio.to_thread(helpers[0].join)
        is_done.set()
        await asyncio.to_thread(helpers[1].join)
        assert loader.unacknowledged == 0
    for state in list(states.values())[::20]:
        if count := state["position"]["items"]:
            async with loader_from(make(), state=state) as loader:
                assert [item async for item in loader] == expected[count:]


# The end of an epoch --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["filter over shuffle", "prefetch", "async map"])
def test_items_are_acknowledged_after_the_end_too(name):
    make = ORDERED[name]
    with loader_from(make()) as loader:
        first, second = list(loader), list(loader)
    with loader_from(make(), acknowledge=True) as loader:
        assert list(loader) == first
        loader.ack(len(first) - 3)
        at_the_end = loader.state_dict(include_datapipe=False)
        loader.ack(2)
        later = loader.state_dict(include_datapipe=False)
        loader.ack()
        between = loader.state_dict(include_datapipe=False)
        assert list(loader) == second
        loader.shutdown()
        loader.ack(len(second) - 1)
        after_shutdown = loader.state_dict(include_datapipe=False)
    states = {3: at_the_end, 1: later}
    for count, state in states.items():
        with loader_from(make(), state=state) as loader:
            assert list(loader) == first[-count:]
            assert list(loader) == second
    with loader_from(make(), state=between) as loader:
        assert list(loader) == second
    with loader_from(make(), state=after_shutdown) as loader:
        assert list(loader) == second[-1:]


def test_the_next_epoch_waits_until_all_is_acknowledged():
    with loader_from(numbers(9).shuffle()) as loader:
        first, second = list(loader), list(loader)
    with loader_from(numbers(9).shuffle(), acknowledge=True) as loader:
        assert list(loader) == first
        loader.ack(7)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"while 2 items .*loader\.ack\(2\).*cycle\(\)"):
                iter(loader)
        loader.ack(2)
        assert list(loader) == second


async def test_an_iterator_stays_usable_where_the_next_epoch_is_refused():
    async with loader_from(numbers(9), acknowledge=True) as loader:
        items = aiter(loader)
        assert [await anext(items), await anext(items)] == [0, 1]
        with pytest.raises(RuntimeError, match="while 2 items"):
            aiter(loader)
        assert await anext(items) == 2
        loader.ack(3)
        assert [item async for item in loader] == list(range(9))


@pytest.mark.parametrize("name", ["shuffle", "prefetch", "flatmap"])
async def test_an_epoch_that_was_abandoned_resumes_after_what_was_acknowledged(name):
    make = ORDERED[name]
    expected = await asyncio.to_thread(epoch_of, make)
    async with loader_from(make(), acknowledge=True) as loader:
        items = aiter(loader)
        assert [await anext(items) for _ in range(140)] == expected[:140]
        loader.ack(5)
        await items.aclose()
        of_a_closed_one = loader.state_dict(include_datapipe=False)
        del items
        loader.ack(6)
        of_a_dropped_one = loader.state_dict(include_datapipe=False)
    for count, state in ((5, of_a_closed_one), (11, of_a_dropped_one)):
        async with loader_from(make(), state=state) as loader:
            assert [item async for item in loader] == expected[count:]


def fail_at_70(number: int) -> int:
    if number == 70:
        raise ZeroDivisionError("seventy")
    return number


@pytest.mark.parametrize(
    "pipe", [numbers().map(fail_at_70), numbers().map(fail_at_70).prefetch(4)], ids=["", "ahead"]
)
def test_an_epoch_that_ended_with_an_error_resumes_after_what_was_acknowledged(pipe):
    with loader_from(pipe, acknowledge=True) as loader:
        with pytest.raises(ZeroDivisionError):
            list(loader)
        assert loader.unacknowledged == 70
        loader.ack(50)
        state = loader.state_dict(include_datapipe=False)
        with pytest.raises(RuntimeError, match="while 20 items"):
            iter(loader)
    with loader_from(pipe, state=state) as loader:
        assert list(islice(loader, 20)) == list(range(50, 70))


# What it costs, and what it is not for --------------------------------------------------


def blocks_after(loader: DataLoader2[Any], items: Any, count: int) -> int:
    """Take and acknowledge items one by one; return how much memory is in use then."""
    for _ in islice(items, count):
        loader.ack()
    loader.state_dict(include_datapipe=False)
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize(
    "pipe",
    [numbers().shuffle().cycle(), numbers().shuffle().cycle().prefetch(2)],
    ids=["direct", "ahead"],
)
def test_memory_does_not_grow_while_items_are_acknowledged(pipe):
    with loader_from(pipe, acknowledge=True) as loader:
        items = iter(loader)
        used = [blocks_after(loader, items, 1500) for _ in range(3)]
        # What else this process keeps at some moment comes once, and a leak with every item.
        assert min(used[1] - used[0], used[2] - used[1]) < 1500


def test_memory_is_bounded_while_nothing_is_acknowledged():
    with loader_from(numbers().shuffle().cycle(), acknowledge=True) as loader:
        items, used = iter(loader), []
        for _ in range(3):
            for _ in islice(items, 2000):
                pass
            used.append(sys.getallocatedblocks())
        assert used[2] - used[1] < 1000


def test_a_feed_is_refused_by_name():
    with pytest.raises(ValueError, match=r"acknowledge=True does not go with Feed\(.*never come"):
        DataLoader2(Feed().map(double), acknowledge=True)


def test_a_graph_of_which_no_state_can_be_taken_is_acknowledged_all_the_same():
    shared = numbers(6)
    with DataLoader2(shared.zip(shared), acknowledge=True) as loader:
        assert len(list(loader)) == 6
        loader.ack(5)
        assert loader.unacknowledged == 1
        with pytest.raises(SnapshotError, match="fork"):
            loader.state_dict()
        loader.ack()
        assert len(list(loader)) == 6


def test_what_is_no_bool_is_refused():
    words = "acknowledge must be True or False, got 'x'"
    with pytest.raises(ValueError, match=words):
        DataLoader2(it.IterableWrapper([1]), acknowledge="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        DataLoader2.from_dataset([1], acknowledge="x")  # type: ignore[arg-type]
