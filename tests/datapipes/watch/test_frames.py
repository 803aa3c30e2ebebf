"""Whose code a thread runs is told from its frames; each function here looks at its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper as TorchWrapper

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.run import Epoch
from asyncloader.datapipes.watch.frames import HANDING, OUTSIDE, Owners
from asyncloader.graph.walk import breadth_first


class Looking:
    """Looks, from wherever it is called, which pipe of a graph that is for."""

    def __init__(self) -> None:
        self.pipes: list[Any] = []
        self.seen: list[str] = []

    def look(self) -> None:
        place = Owners(self.pipes).place(sys._getframe(), drain.__code__)
        self.seen.append("" if place < 0 else stage_name(self.pipes[place]))

    def __call__(self, item: Any) -> Any:
        self.look()
        return item


def drain(graph: Any) -> list[Any]:
    return list(graph)


def seen_by(looking: Looking, graph: Any) -> list[str]:
    looking.pipes = breadth_first(graph)
    Epoch(looking.pipes)
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
    assert Owners(pipes).place(generator.gi_frame, drain.__code__) == OUTSIDE
    del item
    assert next(generator, None) is None
    assert Item.gone == 1


def test_a_thread_in_none_of_the_pipes_hands_on_or_is_elsewhere():
    owners = Owners(breadth_first(IterableWrapper([1]).map(outer)))

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


def test_a_generator_is_no_pipes_where_there_are_none():
    def looked_at() -> Iterator[int]:
        yield Owners([]).place(sys._getframe(), drain.__code__)

    assert drain(looked_at()) == [HANDING]
