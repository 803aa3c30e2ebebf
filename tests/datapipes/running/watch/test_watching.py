"""Where the time of threads goes, and the thread that looks at them."""

from __future__ import annotations

import asyncio
import gc
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running import run_place as home
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch import watching
from asyncloader.datapipes.running.watch.frames import OUTSIDE, CodeOwners
from asyncloader.datapipes.running.watch.watching import Sampler, Watched, WatchedWait, Watching
from asyncloader.errors import ResourceExhausted


async def same(item: Any) -> Any:
    return item


def watched_now() -> int:
    gc.collect()
    return sum(isinstance(each, Watched) for each in gc.get_objects())


async def test_an_epoch_without_an_end_keeps_nothing_of_threads_that_ended_in_it():
    # Each round reads the wrapper in a thread of its own.
    pipe = IterableWrapper(range(2)).async_map(same).cycle()
    async with DataLoader2(pipe) as loader:
        items = aiter(loader)
        assert [await anext(items) for _ in range(4)] == [0, 1] * 2
        before = watched_now()
        assert [await anext(items) for _ in range(100)] == [0, 1] * 50
        assert watched_now() < before + 10


async def test_what_a_thread_came_to_is_kept_when_it_has_ended():
    pipes = [IterableWrapper([1]), IterableWrapper([2])]
    watches = Watching(WatchedWait())
    watches.begin(RunTree(), lambda: pipes)
    loop = asyncio.get_running_loop()
    threads = [watches.new(pipe, watched_now.__code__, loop) for pipe in pipes]
    for thread in threads:
        thread.note([0, 1], 1)
        thread.end()
    seconds = watches.seconds()
    assert seconds.keys() == {0, 1}
    for thread in threads:
        watches.end(thread)
    assert watches.seconds() == pytest.approx(seconds)
    watches.begin(RunTree(), lambda: pipes)
    assert watches.seconds() == {}


class Unreadable(IterDataPipe[Any]):
    """Fails before it is a generator."""

    edges = ()

    def __iter__(self) -> Any:
        raise OSError("there is no such file")


def looked_at() -> list[Watched]:
    """The threads that are looked at, or will be."""
    found = [each for each in gc.get_objects() if isinstance(each, Watched)]
    return [each for each in found if not each.is_over]


def test_a_thread_whose_epoch_could_not_begin_is_not_looked_at_for_ever():
    before = looked_at()
    with DataLoader2(Unreadable()) as loader:
        # The error, which a program may keep, keeps all that was under way.
        with pytest.raises(OSError, match="no such file") as failure:
            list(loader)
        assert set(looked_at()) <= set(before)
    assert failure.value.__traceback__ is not None


async def test_a_thread_that_could_not_be_started_is_not_looked_at_for_ever(monkeypatch):
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    before = looked_at()
    monkeypatch.setattr(home, "thread_at", lambda *given: Refused())
    async with DataLoader2(IterableWrapper([1])) as loader:
        with pytest.raises(ResourceExhausted, match="can't start new thread") as failure:
            await anext(aiter(loader))
        assert set(looked_at()) <= set(before)
    assert failure.value.__traceback__ is not None


SOON = 10.0


class Seen(Watched):
    """This thread, whose pipes are what ``find`` returns."""

    def __init__(self, find: Callable[[], list[Any]]) -> None:
        super().__init__(CodeOwners.place.__code__)
        self.noted = threading.Event()
        self.places: list[int] = []
        self.weights: queue.SimpleQueue[int] = queue.SimpleQueue()
        Watching(self).begin(RunTree(), find)

    def note(self, places: Sequence[int], weight: int) -> None:
        self.places += places
        self.weights.put(weight)
        self.noted.set()


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(watching.Sampler, "rest_seconds", 0.005)


def test_a_graph_that_changes_in_the_middle_of_a_look_is_looked_at_the_next_time(often):
    failures = [RuntimeError("dictionary changed size during iteration")]

    def find() -> list[Any]:
        if failures:
            raise failures.pop()
        return [IterableWrapper([1])]

    looks = Sampler()
    changing, other = Seen(find), Seen(list)
    looks.watch(changing)
    looks.watch(other)
    try:
        assert changing.noted.wait(SOON)
        assert other.noted.wait(SOON)
    finally:
        looks.close()
    assert not failures
    assert set(changing.places) == {OUTSIDE}


def test_while_the_process_only_waits_it_looks_less_and_less_often(often, monkeypatch):
    looks, seen = Sampler(), Seen(list)
    # On a busy machine looks come late, which is another reason.
    monkeypatch.setattr(watching, "_LATE_SECONDS", 1000.0)
    monkeypatch.setattr(watching, "process_time", lambda: 0.0)
    looks.watch(seen)
    try:
        weights = [seen.weights.get(timeout=SOON)]
        while weights[-1] < 16:
            weights.append(seen.weights.get(timeout=SOON))
        assert weights == sorted(weights)
        assert set(weights) == {1, 2, 4, 8, 16}
        monkeypatch.setattr(watching, "process_time", time.perf_counter)
        while seen.weights.get(timeout=SOON) > 1:
            pass
    finally:
        looks.close()


class Slow(Seen):
    """One at which a look takes long, as where the GIL is hard to get."""

    seconds = 0.05

    def note(self, places: Sequence[int], weight: int) -> None:
        super().note(places, weight)
        time.sleep(self.seconds)


def test_where_a_look_takes_long_there_are_fewer_and_each_counts_for_more(often):
    looks, seen = Sampler(), Slow(list)
    looks.watch(seen)
    try:
        assert seen.weights.get(timeout=SOON) == 1
        assert seen.weights.get(timeout=SOON) >= 5
        seen.seconds = 0.0
        while seen.weights.get(timeout=SOON) > 4:
            pass
    finally:
        looks.close()


@pytest.fixture(params=[0.005, 0.0002, 0.00005])
def interval(request):
    """How often the user has threads let go of the GIL, as the interpreter says it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_looks_end_with_the_last_that_is_looked_at_and_leave_the_switch_interval(often, interval):
    threads = set(threading.enumerate())
    looks = Sampler()
    seen = Seen(list)
    looks.watch(seen)
    (thread,) = set(threading.enumerate()) - threads
    assert seen.noted.wait(SOON)
    looks.forget(seen)
    thread.join(SOON)
    assert not thread.is_alive()
    assert sys.getswitchinterval() == interval


def test_a_forked_child_has_the_switch_interval_that_was_there_before_the_look(interval):
    looks = Sampler()
    with looks._eagerly():
        assert sys.getswitchinterval() <= 0.0002
        looks.forget_parent()
        assert sys.getswitchinterval() == interval
    assert sys.getswitchinterval() == interval
