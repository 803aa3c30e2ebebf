"""Which pipe a thread is in, and how its frames are looked at safely."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper as TorchWrapper

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch import frames, watching
from asyncloader.datapipes.running.watch.frames import (
    ELSEWHERE,
    HANDING,
    IMPORTING,
    OUTSIDE,
    CodeOwners,
    can_be_looked_at,
    present_frames,
)
from asyncloader.datapipes.running.watch.watching import Sampler, Watched, Watching
from asyncloader.graph.walk import breadth_first


class Looking:
    """Looks, from wherever it is called, which pipe of a graph that is for."""

    def __init__(self) -> None:
        self.pipes: list[Any] = []
        self.seen: list[str] = []

    def look(self) -> None:
        place = CodeOwners(self.pipes).place(sys._getframe(), drain.__code__)
        self.seen.append("" if place < 0 else stage_name(self.pipes[place]))

    def __call__(self, item: Any) -> Any:
        self.look()
        return item


def drain(graph: Any) -> list[Any]:
    return list(graph)


def seen_by(looking: Looking, graph: Any) -> list[str]:
    looking.pipes = breadth_first(graph)
    RunTree(looking.pipes)
    drain(graph)
    return looking.seen


def outer(item: Any) -> Any:
    return item


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_a_function_of_one_of_several_maps_is_that_maps(looking):
    def inner(item: Any) -> Any:
        return looking(item)

    graph = IterableWrapper([1]).map(outer).map(inner).map(outer)
    assert seen_by(looking, graph) == ["map(inner)"]


def test_branches_of_the_same_kind_are_told_apart(looking):
    def left(item: Any) -> Any:
        return looking(item)

    def right(item: Any) -> Any:
        return looking(item)

    graph = IterableWrapper([1]).map(left).mux(IterableWrapper([2]).map(right))
    assert seen_by(looking, graph) == ["map(left)", "map(right)"]


def test_a_users_iterable_is_the_sources(looking):
    def numbers() -> Iterator[int]:
        looking.look()
        yield 1

    graph = IterableWrapper(numbers(), deepcopy=False).map(outer).batch(1)
    assert seen_by(looking, graph) == [stage_name(breadth_first(graph)[-1])]


def test_passes_of_the_same_kind_are_told_apart(looking):
    def numbers() -> Iterator[int]:
        looking.look()
        yield 1

    graph = IterableWrapper(numbers(), deepcopy=False).batch(1).map(outer).batch(1)
    assert seen_by(looking, graph) == [stage_name(breadth_first(graph)[-1])]


def test_a_generator_that_a_pipes_function_returns_is_that_pipes(looking):
    def parts(item: Any) -> Iterator[Any]:
        looking.look()
        yield item

    assert seen_by(looking, IterableWrapper([1]).flatmap(parts)) == ["flatmap(parts)"]


def test_a_users_own_pipe_and_its_source_are_told_apart(looking):
    def inner(item: Any) -> Any:
        return looking(item)

    graph = Own(IterableWrapper([1]).map(inner), looking.look)
    inside, own = seen_by(looking, graph)
    assert inside == "map(inner)"
    assert own.startswith("Own(")


def test_a_pass_is_its_pipes(looking):
    def even(item: Any) -> bool:
        looking.look()
        return True

    graph = IterableWrapper([1]).filter(even).shuffle().filter(bool)
    assert seen_by(looking, graph) == ["filter(even)"]


def test_what_is_looked_up_is_the_map_pipes(looking):
    def inner(item: Any) -> Any:
        return looking(item)

    graph = SequenceWrapper([1]).map(inner).to_iter_datapipe()
    assert seen_by(looking, graph) == ["map(inner)"]


def test_one_of_torchs_pipes_is_told_apart_too(looking):
    graph = Own(TorchWrapper([1]).map(looking))
    (name,) = seen_by(looking, graph)
    assert name == "MapperIterDataPipe(Looking)"


class Own(IterDataPipe[Any]):
    """A pipe as its user writes it."""

    def __init__(self, source: Any, called: Callable[[], None] = bool) -> None:
        self.source = source
        self.called = called

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.called()
            yield item
            del item


def test_looking_keeps_no_item_alive(looking):
    """On Pythons whose frames have a picture of their locals, the picture is emptied."""

    class Item:
        gone = 0

        def __del__(self) -> None:
            Item.gone += 1

    graph = Own(Own(IterableWrapper([1]).map(lambda _: Item())))
    pipes = breadth_first(graph)
    generator = iter(graph)
    item = next(generator)
    # Two of the same class: the frame's own pipe has to be looked up.
    assert CodeOwners(pipes).place(generator.gi_frame, drain.__code__) == OUTSIDE
    del item
    assert next(generator, None) is None
    assert Item.gone == 1


class OwnAsync(IterDataPipe[Any]):
    """An async pipe as its user writes it."""

    def __init__(self, source: Any) -> None:
        self.source = source

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self.source:
            yield item


def test_who_waits_for_a_users_async_pipe_waits_for_its_source_while_the_thread_of_that_works():
    source = IterableWrapper([1])
    pipes = [OwnAsync(source), source]
    assert CodeOwners(pipes, {id(source)}).awaited(0) == ELSEWHERE
    assert CodeOwners(pipes).awaited(0) == 0


def test_a_thread_in_none_of_the_pipes_hands_on_or_is_elsewhere():
    owners = CodeOwners(breadth_first(IterableWrapper([1]).map(outer)))

    def driver() -> int:
        return owners.place(sys._getframe(), driver.__code__)

    def beside() -> int:
        return owners.place(sys._getframe(), driver.__code__)

    def calls() -> int:
        return plain()

    def plain() -> int:
        return owners.place(sys._getframe(), calls.__code__)

    assert driver() == HANDING
    assert calls() == HANDING
    assert beside() == OUTSIDE


def test_a_thread_that_imports_a_module_for_a_pipe_is_importing(tmp_path, monkeypatch):
    (tmp_path / "looked_at.py").write_text("import sys\nsys.look_now()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def importing(item: Any) -> Any:
        look()
        importlib.import_module("looked_at")
        return item

    def look() -> None:
        places.append(CodeOwners(pipes).place(sys._getframe(), drain.__code__))

    places: list[int] = []
    monkeypatch.setattr(sys, "look_now", look, raising=False)
    graph = IterableWrapper([1]).map(importing)
    pipes = breadth_first(graph)
    RunTree(pipes)
    drain(graph)
    assert places == [pipes.index(graph), IMPORTING]


def test_a_generator_is_no_pipes_where_there_are_none():
    def looked_at() -> Iterator[int]:
        yield CodeOwners([]).place(sys._getframe(), drain.__code__)

    assert drain(looked_at()) == [HANDING]


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


class Reading(Watched):
    """A thread that reads a graph again and again until it has been looked at so many times."""

    def __init__(self) -> None:
        super().__init__(threading.Thread.run.__code__)
        graph = IterableWrapper(range(50)).map(str).batch(4)
        Watching(self).begin(RunTree(), lambda: [graph])
        self.seen = threading.Event()
        self._places: list[int] = []
        self._thread = threading.Thread(target=self._read, args=(graph,))
        self._thread.start()
        self.thread = self._thread.ident or 0

    def _read(self, graph: IterableWrapper) -> None:
        while not self.seen.is_set():
            list(graph)

    def note(self, places: Sequence[int], weight: int) -> None:
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
    monkeypatch.setattr(watching.Sampler, "rest_seconds", 0.002)
    looks, reading = Sampler(), Reading()
    looks.watch(reading)
    try:
        assert reading.seen.wait(SOON)
    finally:
        looks.close()
        reading.join()
    assert collected_in[Reading._read.__qualname__] > LOOKS
    assert CodeOwners.place.__qualname__ not in collected_in


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
    monkeypatch.setattr(frames.sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not can_be_looked_at()
