"""The threads of one graph, as many as there come to be."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.running import home
from asyncloader.datapipes.watch.watched import Watched
from asyncloader.datapipes.watch.watching import Watching
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


def test_what_a_thread_came_to_is_kept_when_it_has_ended():
    pipes = [IterableWrapper([1]), IterableWrapper([2])]
    threads = [Watched(lambda: pipes, watched_now.__code__) for _ in range(2)]
    watches = Watching()
    watches.begin(lambda: pipes)
    for thread in threads:
        watches.own(thread)
        thread.note([0, 1])
        thread.end()
    seconds = watches.seconds()
    assert seconds.keys() == {id(pipe) for pipe in pipes}
    for thread in threads:
        watches.end(thread)
    assert watches.seconds() == pytest.approx(seconds)
    watches.begin(lambda: pipes)
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
