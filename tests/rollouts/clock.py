"""A loop whose time is scripted: it jumps to the next timer when nothing is left to do.

This file is about ``ScriptedLoop``. A run of hours takes as long as its work, and a loop that waits
for nothing at all is known at once: it would wait for ever.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from asyncloader.waiting import Bell

#: No run lasts so many seconds of its own time: something only waits, with a timer that repeats.
LONGEST = 50_000.0

#: So many real seconds a thread may work, on a busy machine.
_MOST_WORK = 60.0

#: A thread that only looks at others; it is never waited for.
_LOOKS_ON = "asyncloader sampler"


class Hang(BaseException):
    """Nothing is left to wait for, or nothing has come of waiting."""


class Killed(BaseException):
    """The program ends here, in the middle of whatever it does."""


class Rests:
    """Which threads of the loader wait for others.

    A thread counts as working from the moment when it is woken, and not only once it runs: so there
    is no moment at which nobody seems to work although somebody was told to.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._resting: set[Bell] = set()
        # Threads of others that were there before.
        self._others: set[threading.Thread] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Know of all waits that begin in here."""
        heard, ring = Bell.heard, Bell.ring
        self._others = set(threading.enumerate())

        def rest(bell: Bell, timeout: float | None = None) -> bool:
            self._begin(bell)
            try:
                return heard(bell, timeout)
            finally:
                self._end(bell)

        def wake(bell: Bell) -> None:
            self._end(bell)
            ring(bell)

        with mock.patch.multiple(Bell, heard=rest, ring=wake):
            yield

    def wait_for_all(self) -> None:
        """Wait until every thread of the loader waits, or has ended."""
        with self._changed:
            for _ in range(int(_MOST_WORK * 1000)):
                working = self._threads()
                if len(working) <= len(self._resting):
                    return
                # The end of a thread is not told, so it is looked for.
                self._changed.wait(0.001)
        raise Hang(f"a thread waits without a bell:\n{_stacks(working)}")

    def _threads(self) -> list[threading.Thread]:
        return list(filter(self._counts, threading.enumerate()))

    def _counts(self, thread: threading.Thread) -> bool:
        is_ours = thread.name.startswith("asyncloader") and thread.name != _LOOKS_ON
        return is_ours and thread not in self._others

    def _begin(self, bell: Bell) -> None:
        with self._changed:
            # Unless it rings already.
            if bell._silence.locked() and self._counts(threading.current_thread()):
                self._resting.add(bell)
                self._changed.notify_all()

    def _end(self, bell: Bell) -> None:
        with self._changed:
            self._resting.discard(bell)


def _stacks(threads: list[threading.Thread]) -> str:
    frames = sys._current_frames()
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident])[-4:])}"
        for thread in threads
        if thread.ident in frames
    )


class _ScriptedSelector(selectors.DefaultSelector):
    """Never waits: where it would, the time is put forward instead.

    It lets threads finish their work first, so that a seed gives the same run each time.
    """

    def __init__(self, threads: Rests) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        #: What happens at which turn.
        self.script: dict[int, Callable[[], object]] = {}
        self._threads = threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        self._threads.wait_for_all()
        if self.turns in self.script:
            self.script.pop(self.turns)()
            return []
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise Hang("the loop has nothing to wait for")
        self.now += max(timeout, 0.0)
        if self.now > LONGEST:
            raise Hang(f"nothing has come of {LONGEST:.0f} seconds")
        return []


class ScriptedLoop(asyncio.SelectorEventLoop):
    """A loop of this thread whose time is a number.

    As a context it ends with all of its tasks, also those of a program that was killed.
    """

    def __init__(self) -> None:
        threads = Rests()
        self._selector_of_time = _ScriptedSelector(threads)
        super().__init__(self._selector_of_time)
        self._watched = threads.watched()

    def time(self) -> float:
        return self._selector_of_time.now

    def at_turn(self, turn: int, action: Callable[[], object]) -> None:
        """Do something between two turns; what it raises comes out of the loop."""
        self._selector_of_time.script[turn] = action

    @property
    def turns(self) -> int:
        """How many turns there were."""
        return self._selector_of_time.turns

    def __enter__(self) -> ScriptedLoop:
        self._watched.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._selector_of_time.script.clear()
        try:
            while tasks := asyncio.all_tasks(self):
                for task in tasks:
                    task.cancel()
                self._finish(asyncio.wait(tasks))
            self._finish(self.shutdown_asyncgens())
        finally:
            self._watched.__exit__(None, None, None)
            self.close()

    def _finish(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.create_task(work)
        while not task.done():
            # A program that was killed may have left the loop about to stop.
            with suppress(RuntimeError):
                self.run_until_complete(task)


def kill() -> None:
    """Kill a program, as an action of ``at_turn``."""
    raise Killed
