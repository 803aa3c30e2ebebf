"""A thread that looks at others, whatever it finds there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.watch import sampler
from asyncloader.datapipes.watch.frames import OUTSIDE, Owners
from asyncloader.datapipes.watch.sampler import Sampler

SOON = 10.0


class Seen:
    """This thread, whose pipes are what ``find`` returns."""

    inside: CodeType = Owners.place.__code__

    def __init__(self, find: Callable[[], list[Any]]) -> None:
        self.thread = threading.get_ident()
        self.noted = threading.Event()
        self.places: list[int] = []
        self._find = find

    @property
    def pipes(self) -> list[Any]:
        return self._find()

    def is_resting(self) -> bool:
        return False

    def note(self, places: Sequence[int]) -> None:
        self.places += places
        self.noted.set()


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(sampler, "_REST_SECONDS", 0.005)


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


@pytest.fixture(params=[0.005, 0.0002, 0.0001])
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
        looks.start_anew()
        assert sys.getswitchinterval() == interval
    assert sys.getswitchinterval() == interval
