"""A thread that looks at other threads.

This file is about ``Sampler``: now and then it looks where the threads are that iterate
pipes. They pay nothing for it but the moment of the look.

    every 0.1 s or so:  look ─ look      (nothing while all of them rest)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from random import Random
from types import CodeType
from typing import Any, Protocol

from asyncloader.datapipes.watch.frames import Owners
from asyncloader.datapipes.watch.threads import can_be_looked_at, present_frames
from asyncloader.runtime import at_exit, start_thread
from asyncloader.waiting import Bell

_REST_SECONDS = 0.1
_LOOKS = 2
_BETWEEN_LOOKS = 0.0004
#: Threads that take turns at the GIL would do nothing else if it were much less than this.
_EAGER_SECONDS = 0.0002


class Looked(Protocol):
    """A thread to look at, which iterates ``pipes`` from within the function ``inside``."""

    inside: CodeType
    thread: int

    @property
    def pipes(self) -> list[Any]:
        """The pipes, in an order of which the places speak."""
        ...

    def is_resting(self) -> bool:
        """Whether the thread waits, so that there is nothing to see."""
        ...

    def note(self, places: Sequence[int]) -> None:
        """Take where the thread was seen a few times in a row."""
        ...


class Sampler:
    """Looks at threads, in a thread of its own that is there while there are any."""

    def __init__(self) -> None:
        # Whoever collects garbage in here may end what is looked at.
        self._lock = threading.RLock()
        self._looked: list[Looked] = []
        self._news = Bell()
        self._thread: threading.Thread | None = None
        # How often threads have to let go of the GIL, and how often in the midst of a look.
        self._usual_interval = sys.getswitchinterval()
        self._eager_interval: float | None = None
        # Drawing from the global generator would change what the user's pipes draw.
        self._times = Random()
        #: Whether it waits until one of those that it looks at goes on.
        self.is_asleep = False

    def watch(self, looked: Looked) -> None:
        """Look at a thread from now on."""
        with self._lock:
            self._looked = [*self._looked, looked]
            if self._thread is None:
                self._news = Bell()
                thread = threading.Thread(
                    target=self._run, args=(self._news,), name="asyncloader sampler", daemon=True
                )
                start_thread(thread)
                self._thread = thread
        self.wake()

    def wake(self) -> None:
        """Look again at those that rested."""
        self._news.ring()

    def forget(self, looked: Looked) -> None:
        """Look at a thread no more; the sampler's own ends with the last of them."""
        with self._lock:
            before, self._looked = self._looked, [x for x in self._looked if x is not looked]
            if self._looked or not before:
                return
            thread, self._thread = self._thread, None
            self._news.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def close(self) -> None:
        """Look at nothing more."""
        for looked in self._looked:
            self.forget(looked)

    def start_anew(self) -> None:
        """Forget the threads of the parent, in a forked child."""
        if sys.getswitchinterval() == self._eager_interval:
            _set_switch_interval(self._usual_interval)
        self.__init__()  # type: ignore[misc]  # nothing of it is good any more

    def _run(self, news: Bell) -> None:
        while self._is_mine(news):
            # At random, so that it keeps no step with what is looked at.
            news.heard(self._times.uniform(0.0, 2 * _REST_SECONDS))
            if self._is_mine(news) and can_be_looked_at():
                self._look_at_all()
            self._sleep(news)

    def _is_mine(self, news: Bell) -> bool:
        """Whether there is something to look at, for the thread that has this bell."""
        return bool(self._looked) and self._news is news

    def _sleep(self, news: Bell) -> None:
        """Wait while all of them rest."""
        # Announced before the last look, so that nobody goes on unseen in between.
        self.is_asleep = True
        if self._is_mine(news) and all(each.is_resting() for each in self._looked):
            news.heard()
        self.is_asleep = False

    def _look_at_all(self) -> None:
        working = [each for each in self._looked if not each.is_resting()]
        looked = [(each, owners) for each in working if (owners := _owners_of(each)) is not None]
        places: list[list[int]] = [[] for _ in looked]
        pause = threading.Event()
        with self._eagerly():
            for _ in range(_LOOKS if looked else 0):
                pause.wait(self._times.uniform(0.0, 2 * _BETWEEN_LOOKS))
                with present_frames() as frames:
                    for (each, owners), at in zip(looked, places, strict=True):
                        if not each.is_resting():
                            at.append(owners.place(frames.get(each.thread), each.inside))
        for (each, _), at in zip(looked, places, strict=True):
            each.note(at)

    @contextlib.contextmanager
    def _eagerly(self) -> Iterator[None]:
        """Have threads let go of the GIL at once, for this millisecond.

        Otherwise it comes to the sampler only where a thread lets go by itself, to send or
        to wait, and that is all it would ever see.
        """
        self._usual_interval = usual = sys.getswitchinterval()
        _set_switch_interval(min(usual, _EAGER_SECONDS))
        # As it reads, which is not quite as it was written.
        self._eager_interval = eager = sys.getswitchinterval()
        try:
            yield
        finally:
            self._eager_interval = None
            if sys.getswitchinterval() == eager:
                _set_switch_interval(usual)


def _set_switch_interval(seconds: float) -> None:
    # The interpreter keeps whole microseconds and drops what is beyond them: what it says of 200
    # of them is a little less, and would be set as 199.
    sys.setswitchinterval((round(seconds * 1e6) + 0.5) / 1e6)


def _owners_of(looked: Looked) -> Owners | None:
    """Return which code is whose, unless the graph changes in the middle of this look."""
    try:
        return Owners(looked.pipes)
    except Exception:  # noqa: BLE001 - the pipes are the user's, and in use; there are other looks
        return None


#: The one of this process.
SAMPLER = Sampler()
at_exit(SAMPLER.close)

if sys.platform != "win32":
    os.register_at_fork(after_in_child=SAMPLER.start_anew)
