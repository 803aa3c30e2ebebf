"""Frames of threads that go on are looked at while nothing can happen to them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from types import FrameType

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.watch import sampler, threads
from asyncloader.datapipes.watch.frames import Owners
from asyncloader.datapipes.watch.sampler import Sampler
from asyncloader.datapipes.watch.threads import can_be_looked_at, present_frames

SOON = 10.0
LOOKS = 20


@pytest.fixture
def collected_in():
    """Where garbage is collected, by name, while that is done as often as it can be."""
    names: dict[str, int] = {}

    def note(phase: str, _: object) -> None:
        frame: FrameType | None = sys._getframe()
        while phase == "start" and frame is not None:
            name = frame.f_code.co_qualname
            names[name] = names.get(name, 0) + 1
            frame = frame.f_back

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    yield names
    gc.set_threshold(*before)
    gc.callbacks.remove(note)


class Reading:
    """A thread that reads a graph again and again until it has been looked at so many times."""

    inside = threading.Thread.run.__code__

    def __init__(self) -> None:
        graph = IterableWrapper(range(50)).map(str).batch(4)
        self.pipes = [graph]
        self.seen = threading.Event()
        self._places: list[int] = []
        self._thread = threading.Thread(target=self._read, args=(graph,))
        self._thread.start()
        self.thread = self._thread.ident or 0

    def _read(self, graph: IterableWrapper) -> None:
        while not self.seen.is_set():
            list(graph)

    def is_resting(self) -> bool:
        return False

    def note(self, places: list[int]) -> None:
        self._places += places
        if len(self._places) >= LOOKS:
            self.seen.set()

    def join(self) -> None:
        self.seen.set()
        self._thread.join()


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="garbage is collected between two instructions only"
)
def test_no_garbage_is_collected_in_the_midst_of_a_look(collected_in, monkeypatch):
    monkeypatch.setattr(sampler, "_REST_SECONDS", 0.002)
    looks, reading = Sampler(), Reading()
    looks.watch(reading)
    try:
        assert reading.seen.wait(SOON)
    finally:
        looks.close()
        reading.join()
    assert collected_in[Reading._read.__qualname__] > LOOKS
    assert Owners.place.__qualname__ not in collected_in


@pytest.mark.parametrize("collects", [True, False])
def test_after_a_look_garbage_is_collected_as_before(collects):
    (gc.enable if collects else gc.disable)()
    try:
        with present_frames() as frames:
            assert threading.get_ident() in frames
            assert not gc.isenabled() or sys.version_info >= (3, 12)
        assert gc.isenabled() == collects
        with pytest.raises(KeyError), present_frames() as frames:
            raise KeyError
        assert gc.isenabled() == collects
        assert not frames
    finally:
        gc.enable()


@pytest.mark.parametrize("collects", [True, False])
def test_a_child_that_is_forked_in_the_midst_of_a_look_collects_garbage_as_before(collects):
    (gc.enable if collects else gc.disable)()
    try:
        with present_frames():
            child = os.fork()
            if not child:
                os._exit(int(gc.isenabled() != collects))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        gc.enable()


def test_what_a_thread_let_go_of_during_a_look_is_not_kept():
    class Item:
        pass

    begun, go_on = threading.Event(), threading.Event()
    items: list[weakref.ref[Item]] = []

    def hold() -> None:
        item = Item()
        items.append(weakref.ref(item))
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    with present_frames():
        go_on.set()
        thread.join()
        assert items[0]() is not None
    assert items[0]() is None


def test_threads_that_run_beside_each_other_are_not_looked_at(monkeypatch):
    assert can_be_looked_at()
    monkeypatch.setattr(threads.sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not can_be_looked_at()
