"""Tests of asyncloader.waiting: how long somebody is waited for, and how one is woken."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncloader import waiting
from asyncloader.waiting import Bell, GroupWaiter, Patience

SOON = 10.0


@dataclass
class Timer:
    when: float
    callback: Callable[[], Any]

    def cancel(self) -> None:
        self.callback = bool


class ScriptedLoop:
    """A loop whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Timer:
        timer = Timer(self.now + delay, callback)
        self._timers.append(timer)
        return timer

    def advance(self, now: float) -> None:
        """Go on at a later time, as a loop does: it calls what is due once."""
        self.now = now
        due = [timer for timer in self._timers if timer.when <= now]
        self._timers = [timer for timer in self._timers if timer.when > now]
        for timer in due:
            timer.callback()


def test_a_loop_that_goes_on_all_the_time_waits_for_as_long_as_it_is_told():
    loop: Any = ScriptedLoop()
    called: list[float] = []
    Patience(loop, 1.0, lambda: called.append(loop.now))
    for hundredths in range(201):
        loop.advance(hundredths / 100)
    assert len(called) == 1
    assert 1.0 <= called[0] < 1.1


def test_of_the_time_in_which_a_loop_stood_still_a_fifth_of_the_patience_is_gone():
    loop: Any = ScriptedLoop()
    called: list[float] = []
    Patience(loop, 1.0, lambda: called.append(loop.now))
    # The program was stopped for an hour.
    for now in (0.1, 3600.0, 3600.2, 3600.4, 3600.6):
        loop.advance(now)
        assert called == []
    loop.advance(3600.9)
    assert called == [3600.9]


def test_nothing_is_called_once_it_was_cancelled():
    loop: Any = ScriptedLoop()
    patience = Patience(loop, 1.0, lambda: 1 // 0)
    loop.advance(0.3)
    patience.cancel()
    patience.cancel()
    for now in (1.0, 2.0, 3.0):
        loop.advance(now)


def test_a_bell_rings_until_one_has_heard_it():
    bell = Bell()
    assert not bell.heard(0.0)
    bell.ring()
    bell.ring()
    assert bell.heard()
    assert not bell.heard(0.0)
    bell.ring()
    bell.heard(0)
    assert not bell.heard(0.0)


def test_a_bell_may_be_rung_wherever_a_thread_is_interrupted_in_the_midst_of_ringing_it():
    lines = _lines_of_a_ring(Bell(), lambda: None)
    assert len(lines) >= 3
    for interrupted in range(len(lines)):
        bell = Bell()
        # A ring that finds it rung has more lines.
        at = itertools.count()

        def ring_again(bell: Bell = bell, at: Any = at, interrupted: int = interrupted) -> None:
            if next(at) == interrupted:
                bell.ring()

        _lines_of_a_ring(bell, ring_again)
        assert bell.heard(SOON)
        assert not bell.heard(0.0)


def _lines_of_a_ring(bell: Bell, at_each: Callable[[], None]) -> list[int]:
    """Ring a bell and call a function before each line of that, as a collector of garbage may."""
    lines: list[int] = []
    ring_files = {waiting.__file__, contextlib.__file__}

    def trace(frame: Any, event: str, _: Any) -> Any:
        # Other code may run in between, a collector of garbage say.
        if frame.f_code.co_filename not in ring_files:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            at_each()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bell.ring()
    finally:
        sys.settrace(before)
    return lines


class Arrivals:
    """What came, and how much of it each wait has found."""

    def __init__(self, seconds: float) -> None:
        self.waiter = GroupWaiter(asyncio.get_running_loop(), seconds)
        self.come = 0
        self.found: list[int] = []
        self.looks: asyncio.Queue[int] = asyncio.Queue()

    def arrive(self) -> None:
        self.come += 1
        self.waiter.wake_soon()

    def take(self) -> bool:
        self.looks.put_nowait(self.come)
        if self.come:
            self.found.append(self.come)
            self.come = 0
            return True
        return False

    async def wait_while(self, *steps: Callable[[], None]) -> None:
        """Wait, and let these happen meanwhile, one in each turn of the loop."""
        waiting = asyncio.create_task(self.waiter.until(self.take))
        await asyncio.sleep(0)
        for step in steps:
            step()
            await asyncio.sleep(0)
        await waiting


async def test_where_much_comes_quickly_several_are_waited_for_but_never_for_long():
    arrivals = Arrivals(seconds=1.0)
    await arrivals.wait_while(arrivals.arrive)
    await arrivals.wait_while(*[arrivals.arrive] * 3)
    assert arrivals.found == [1, 3]


async def test_who_waits_for_several_is_woken_before_that_where_no_more_can_come():
    arrivals = Arrivals(seconds=100.0)
    await arrivals.wait_while(arrivals.arrive)
    await arrivals.wait_while(arrivals.arrive, arrivals.arrive, arrivals.waiter.wake)
    assert arrivals.found == [1, 2]


async def test_what_comes_alone_is_not_waited_with_again():
    arrivals = Arrivals(seconds=1.0)
    await arrivals.wait_while(arrivals.arrive)
    while not arrivals.looks.empty():
        arrivals.looks.get_nowait()
    waiting = asyncio.create_task(arrivals.waiter.until(arrivals.take))
    # Nothing is there at first, and nothing comes in time.
    assert [await arrivals.looks.get() for _ in range(2)] == [0, 0]
    arrivals.arrive()
    await waiting
    # From now on each is taken at once.
    await arrivals.wait_while(arrivals.arrive, arrivals.arrive)
    assert arrivals.found == [1, 1, 1]


async def test_what_does_not_come_one_by_one_is_never_waited_for_together():
    arrivals = Arrivals(seconds=100.0)
    for _ in range(3):
        arrivals.come = 1
        await arrivals.wait_while()
    # Groups, as of workers, come by `wake`; then one comes by itself.
    await arrivals.wait_while(arrivals.arrive)
    assert arrivals.found == [1] * 4
