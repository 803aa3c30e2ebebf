"""Tests of asyncloader.waiting: how long somebody is waited for, and how one is woken."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncloader import waiting
from asyncloader.waiting import Bell, Patience

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
    bell.hush()
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
