"""Stopwatches: each stage's own time, and the same items as without them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.tools import stopwatches as stopwatches_file
from asyncloader.tools.stopwatches import Stopwatch, timed
from tests import samples
from tests.collecting import drain


class Clock:
    """A time that goes on only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Any:
        def work(item: Any) -> Any:
            self.now += seconds
            return item

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatches_file, "time", clock)
    return clock


def own_times(pipe: Any) -> dict[str, tuple[int, float]]:
    """Return items and seconds of each stage, by name, of one epoch."""
    graph, stages = timed(pipe)
    list(graph)
    return {stage.name: (stage.items, stage.seconds) for stage in stages}


def test_a_stage_is_not_charged_for_its_source(clock: Clock) -> None:
    slow, fast = clock.takes(5.0), clock.takes(1.0)
    slow.__qualname__, fast.__qualname__ = "slow", "fast"
    pipe = IterableWrapper(range(8)).map(slow).batch(4).map(fast)
    assert own_times(pipe) == {
        "IterableWrapper()": (8, 0.0),
        "map(slow)": (8, 40.0),
        "batch(4)": (2, 0.0),
        "map(fast)": (2, 2.0),
    }


def test_look_ups_are_timed_too(clock: Clock) -> None:
    pipe = SequenceWrapper(range(4)).map(clock.takes(2.0)).to_iter_datapipe()
    assert own_times(pipe)["map(work)"] == (4, 8.0)


def test_branches_are_timed_as_their_splitter(clock: Clock) -> None:
    left, right = IterableWrapper(range(3)).map(clock.takes(1.0)).fork(2)
    times = own_times(left.zip(right))
    assert times["map(work)"] == (3, 3.0)
    assert times["fork(2)"] == (6, 0.0)


def test_who_runs_ahead_is_charged_for_what_its_reader_waits(clock: Clock) -> None:
    stage = Stopwatch("async_map")
    stage.asks()  # before anybody asked it
    clock.now = 1.0
    stage.asked()
    clock.now = 3.0  # it has nothing, since its source is slow
    stage.got(True)
    clock.now = 4.0  # its own call is under way
    stage.asks()
    clock.now = 6.0  # and still is
    stage.answered(True)
    clock.now = 9.0
    assert (stage.items, stage.seconds) == (1, 3.0)


def test_a_stage_that_has_not_answered_is_charged_up_to_now(clock: Clock) -> None:
    stage = Stopwatch("map")
    stage.asked()
    clock.now = 7.0
    assert (stage.items, stage.seconds) == (0, 7.0)


def test_an_error_stops_the_stopwatch(clock: Clock) -> None:
    graph, stages = timed(IterableWrapper(["1", "x"]).map(int))
    with pytest.raises(ValueError, match="invalid literal"):
        list(graph)
    clock.now = 100.0
    assert [(stage.items, stage.seconds) for stage in stages] == [(2, 0.0), (1, 0.0)]


@pytest.mark.filterwarnings("ignore:pin_memory")
@pytest.mark.parametrize("pipe_class", samples.ITER_PIPES | samples.MAP_PIPES)
def test_every_pipe_yields_the_same_under_a_stopwatch(pipe_class: type) -> None:
    plain, watched = samples.graph_with(pipe_class), timed(samples.graph_with(pipe_class))[0]
    found = []
    for graph in (plain, watched):
        loader = DataLoader2(graph)
        loader.seed(7)
        found.append(list(map(repr, drain(loader))))
    assert found[0] == found[1]


async def test_it_runs_on_a_loop_as_well() -> None:
    async def soon(number: int) -> int:
        await asyncio.sleep(0)
        return number

    graph, stages = timed(IterableWrapper(range(9)).async_map(soon).map(str).prefetch(2))
    async with DataLoader2(graph) as loader:
        assert [item async for item in loader] == list(map(str, range(9)))
    assert [stage.items for stage in stages] == [9, 9, 9, 9]
