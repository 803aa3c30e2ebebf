"""Tests of asyncloader.waiting: a timer for waits that are mostly short."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader.waiting import WaitTimer
from tests.needs import LOOPS

on_every_loop = pytest.mark.parametrize("factory", LOOPS, ids=["asyncio", "uvloop"])


class CountingLoop:
    """The running loop, which counts the timers that are set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.timers = 0

    def time(self) -> float:
        return self._loop.time()

    def call_at(self, when: float, callback: Callable[[], Any]) -> None:
        self.timers += 1
        self._loop.call_at(when, callback)


def run(factory: Callable[[], asyncio.AbstractEventLoop], main: Any) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@on_every_loop
def test_long_waits_are_rung_for_once_each_by_a_timer_each(factory: Any) -> None:
    async def main() -> None:
        loop: Any = CountingLoop()
        overdue = WaitTimer(loop, 0.013)
        rung = asyncio.Event()
        for _ in range(20):
            begun = loop.time()
            overdue.begin(rung.set)
            await rung.wait()
            overdue.end()
            rung.clear()
            # To a tick of the clock, and what rounding makes of it.
            assert loop.time() - begun > 0.01
        assert loop.timers == 20

    run(factory, main)


@on_every_loop
def test_short_waits_share_a_timer(factory: Any) -> None:
    async def main() -> None:
        loop: Any = CountingLoop()
        overdue = WaitTimer(loop, 60.0)
        for _ in range(1000):
            overdue.begin(pytest.fail)
            await asyncio.sleep(0)
            overdue.end()
        assert loop.timers == 1

    run(factory, main)


class ScriptedLoop:
    """A loop whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, Callable[[], Any]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], Any]) -> None:
        self._timers.append((when, callback))

    def advance(self, now: float) -> None:
        self.now = now
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, callback in due:
            callback()


def test_a_wait_that_begins_while_the_timer_runs_has_its_whole_time() -> None:
    loop: Any = ScriptedLoop()
    overdue = WaitTimer(loop, 1.0)
    rung: list[float] = []
    overdue.begin(pytest.fail)
    loop.advance(0.6)
    overdue.end()
    overdue.begin(lambda: rung.append(loop.now))
    loop.advance(1.1)
    assert rung == []
    loop.advance(1.6)
    loop.advance(9.0)
    assert rung == [1.6]
