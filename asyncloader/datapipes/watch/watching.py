"""Where the time of threads goes that iterate pipes, and what pipes have yielded.

This file is about ``Watching``, the threads of one graph in this process. Each is a
``Watched``: it notes itself when it waits, and a ``Sampler`` looks now and then where it
works. What came of that for one pipe is a ``Tally``.

    every 0.1 s or so:  look ─ look      (nothing while all threads wait)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter
from types import CodeType
from typing import Any, NamedTuple

from asyncloader.datapipes.cursors import number_of
from asyncloader.datapipes.watch.frames import (
    OUTSIDE,
    CodeOwners,
    attribute,
    can_be_looked_at,
    latest_pass,
    present_frames,
)
from asyncloader.runtime import at_exit, start_thread
from asyncloader.waiting import Bell

#: A thread is watched after it has run for so long: most epochs of few items are shorter.
BEGIN_SECONDS = 0.05


class Watching:
    """The threads that iterate the pipes of one graph in this process."""

    def __init__(self) -> None:
        # A signal handler may ask for stats while this thread holds the lock.
        self._lock = threading.RLock()
        self._threads: list[Watched] = []
        #: The seconds of threads that have ended, by the pipes' ids.
        self._ended: dict[int, float] = {}
        self._find: FindPipes = list
        self._pipes: list[Any] | None = None

    @property
    def pipes(self) -> list[Any]:
        """All pipes of the graph, the last one first."""
        if self._pipes is None:
            self._pipes = self._find()
        return self._pipes

    def begin(self, find: FindPipes) -> None:
        """Start again with the pipes that ``find`` returns; before, nothing is watched."""
        with self._lock:
            self._threads, self._ended = [], {}
            self._find, self._pipes = find, None

    def own(self, watched: Watched) -> None:
        """Add a thread of this graph, which somebody else begins to watch."""
        with self._lock:
            self._threads.append(watched)

    def add(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Add a thread of this graph, and watch it after it has run for a while.

        To be called on the loop.
        """
        if self._find is not list:
            self.own(watched)
            loop.call_later(BEGIN_SECONDS, _begin_weakly, weakref.ref(watched))

    def new(self, end: Any, inside: CodeType, loop: asyncio.AbstractEventLoop) -> Watched:
        """Return a thread that will iterate ``end`` and what that reads; as for ``add``."""
        watched = Watched(lambda: [end, *(x for x in self.pipes if x is not end)], inside)
        self.add(watched, loop)
        return watched

    def end(self, watched: Watched) -> None:
        """Stop watching a thread, and keep only its seconds."""
        watched.end()
        # An endless epoch may start any number of threads: they must not pile up here.
        with self._lock:
            if watched in self._threads:
                self._threads.remove(watched)
                _add_seconds(watched, self._ended)

    def seconds(self) -> dict[int, float]:
        """Return how many seconds the threads spent in the pipes, by the pipes' ids."""
        with self._lock:
            found = dict(self._ended)
            for thread in self._threads:
                _add_seconds(thread, found)
        return found


def _add_seconds(thread: Watched, into: dict[int, float]) -> None:
    for place, seconds in thread.seconds().items():
        if place >= 0:
            key = id(thread.pipes[place])
            into[key] = into.get(key, 0.0) + seconds


def _begin_weakly(watched: weakref.ref[Watched]) -> None:
    thread = watched()
    if thread is not None:
        thread.begin()


#: A caller that was seen elsewhere so often in a row may stay away for hours.
_IDLE_LOOKS = 5

#: Finds the pipes of a graph. Most epochs are so short that it is never called.
FindPipes = Callable[[], list[Any]]


class Watched:
    """A thread that iterates pipes.

    The pipes that are found begin with the one that is iterated, from within the function
    ``inside``.
    """

    def __init__(self, find: FindPipes, inside: CodeType) -> None:
        self.inside = inside
        self.thread = threading.get_ident()
        self.is_over = False
        self._pipes: list[Any] | None = None
        self.restart(find)

    @property
    def pipes(self) -> list[Any]:
        """The pipes; a place is an index into them."""
        if self._pipes is None:
            self._pipes = self._find()
        return self._pipes

    def restart(self, find: FindPipes) -> None:
        """Count again from zero, for these pipes."""
        self._find, self._pipes = find, None
        #: How often the thread was seen in which pipe, by the pipe's place in ``pipes``.
        self.looks: Counter[int] = Counter()
        self._rested = 0.0
        self._resting_since = 0.0
        self._begun = self._ended = perf_counter()

    def begin(self) -> None:
        """Watch the thread from now on, unless it has ended already."""
        if not self.is_over:
            SAMPLER.watch(self)

    def rest(self) -> None:
        """Note that the thread begins to wait."""
        self._resting_since = perf_counter()

    def resume(self) -> None:
        """Note that the thread works again."""
        self._rested += perf_counter() - self._resting_since
        self._resting_since = 0.0
        if SAMPLER.is_asleep:
            SAMPLER.wake()

    def end(self) -> None:
        """Stop watching the thread."""
        if not self.is_over:
            self._ended = perf_counter()
            self.is_over = True
            SAMPLER.forget(self)

    def is_resting(self) -> bool:
        """Whether the thread waits, so that there is nothing to see."""
        return self._resting_since > 0

    def note(self, places: Sequence[int]) -> None:
        """Count where the thread was seen a few times in a row."""
        self.looks.update(places)

    def elapsed(self) -> float:
        """Return for how many seconds it was watched."""
        return self._now() - self._begun

    def waiting(self) -> float:
        """Return how many of those seconds the thread waited."""
        since = self._resting_since
        return self._rested + (max(0.0, self._now() - since) if since else 0.0)

    def working(self) -> float:
        """Return how many of those seconds it worked."""
        return max(0.0, self.elapsed() - self.waiting())

    def seconds(self) -> dict[int, float]:
        """Return how long it worked in each pipe, by place; HANDING is time between pipes."""
        looks = {place: count for place, count in dict(self.looks).items() if place != OUTSIDE}
        each = self.working() / max(1, sum(looks.values()))
        return {place: count * each for place, count in looks.items()}

    def _now(self) -> float:
        return self._ended if self.is_over else perf_counter()


class WatchedCalls(Watched):
    """A thread of the user's, which iterates pipes only while it is in one function.

    It does not say when it leaves that function, so the share of its time that goes into
    the function is sampled as well.
    """

    #: Whether it was away so long that the next call has to say that it is back.
    is_parked = False
    _idle = 0

    def resume(self) -> None:
        self.thread = threading.get_ident()
        self._idle, self.is_parked = 0, False
        super().resume()

    def waiting(self) -> float:
        return self.elapsed() - self.working()

    def working(self) -> float:
        looks = sum(self.looks.values())
        active = max(0.0, self.elapsed() - super().waiting())
        return active * (looks - self.looks[OUTSIDE]) / max(1, looks)

    def note(self, places: Sequence[int]) -> None:
        super().note(places)
        self._idle = self._idle + 1 if all(place == OUTSIDE for place in places) else 0
        if self._idle == _IDLE_LOOKS:
            self.is_parked = True
            self.rest()


_REST_SECONDS = 0.1
_LOOKS = 2
_BETWEEN_LOOKS = 0.0004

#: Threads that take turns at the GIL would do nothing else if it were much less than this.
_EAGER_SECONDS = 0.0002


class Sampler:
    """Looks at threads, in a thread of its own that is there while there are any."""

    def __init__(self) -> None:
        # Garbage that is collected in here may end a watched thread.
        self._lock = threading.RLock()
        self._looked: list[Watched] = []
        self._news = Bell()
        self._thread: threading.Thread | None = None
        # The interpreter's switch interval, usually and during a look.
        self._usual_interval = sys.getswitchinterval()
        self._eager_interval: float | None = None
        # A generator of its own: the global one is the user's.
        self._times = Random()
        #: Whether it sleeps until one of the threads works again.
        self.is_asleep = False

    def watch(self, looked: Watched) -> None:
        """Look at this thread from now on."""
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
        """Look again: a thread that waited works."""
        self._news.ring()

    def forget(self, looked: Watched) -> None:
        """Look at this thread no more; the sampler's own thread ends with the last one."""
        with self._lock:
            before, self._looked = self._looked, [x for x in self._looked if x is not looked]
            if self._looked or not before:
                return
            thread, self._thread = self._thread, None
            self._news.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def close(self) -> None:
        """Forget all threads."""
        for looked in self._looked:
            self.forget(looked)

    def forget_parent(self) -> None:
        """Forget the threads of the parent, in a forked child."""
        if sys.getswitchinterval() == self._eager_interval:
            _set_switch_interval(self._usual_interval)
        self.__init__()  # type: ignore[misc]  # a fresh start

    def _run(self, news: Bell) -> None:
        while self._is_mine(news):
            # A random time: a fixed one could keep step with the work it looks at.
            news.heard(self._times.uniform(0.0, 2 * _REST_SECONDS))
            if self._is_mine(news) and can_be_looked_at():
                self._look_at_all()
            self._sleep(news)

    def _is_mine(self, news: Bell) -> bool:
        """Whether the sampler's thread that has this bell still has something to look at."""
        return bool(self._looked) and self._news is news

    def _sleep(self, news: Bell) -> None:
        """Wait while all threads wait."""
        # Said before the last check, so that no thread wakes up unseen in between.
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
        """Let the interpreter switch threads at once, for this millisecond.

        Otherwise the sampler would get the GIL only where a thread releases it by itself, to
        send or to wait, and would see nothing else.
        """
        self._usual_interval = usual = sys.getswitchinterval()
        _set_switch_interval(min(usual, _EAGER_SECONDS))
        # What is read is not exactly what was set.
        self._eager_interval = eager = sys.getswitchinterval()
        try:
            yield
        finally:
            self._eager_interval = None
            if sys.getswitchinterval() == eager:
                _set_switch_interval(usual)


def _set_switch_interval(seconds: float) -> None:
    # The interpreter rounds down to whole microseconds. 200 of them read as a little less than
    # 0.0002, which would be set as 199.
    sys.setswitchinterval((round(seconds * 1e6) + 0.5) / 1e6)


def _owners_of(looked: Watched) -> CodeOwners | None:
    """Return which code belongs to which pipe, or None if the graph changes meanwhile."""
    try:
        return CodeOwners(looked.pipes)
    except Exception:  # noqa: BLE001 - the user's pipes are in use; the next look may succeed
        return None


#: The one of this process.
SAMPLER = Sampler()
at_exit(SAMPLER.close)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=SAMPLER.forget_parent)

#: The number of items of a pipe that does not count them.
UNCOUNTED = -1


class Tally(NamedTuple):
    """Items, errors and time of one pipe in one process, in the present pass."""

    #: The pipe's number in its loader's graph, or its name where it has none of its own.
    pipe: int | str
    #: How many items it yielded, or UNCOUNTED.
    items: int
    #: How many items its function failed on, where that is tolerated.
    errors: int
    #: How many seconds threads spent in it, in its function or waiting for it.
    seconds: float
    #: How many items it holds or has under way, and how many it may; 0 where it has no bound.
    held: int = 0
    room: int = 0
    #: Whether those are calls under way, so that it is busy when it is full.
    holds_calls: bool = False


def tallies_of(watching: Watching, yielded: Mapping[int, int]) -> tuple[Tally, ...]:
    """Return the tally of every pipe of a graph.

    ``yielded`` has the numbers of items that the caller knows, by the pipes' ids.
    """
    pipes, seconds = watching.pipes, watching.seconds()
    items = _counts(pipes, yielded)
    return tuple(
        _tally(pipe, items[id(pipe)], seconds.get(id(pipe), 0.0))
        for pipe in pipes
        # A stand-in for pipes that run elsewhere matters only where a thread waits for it.
        if id(pipe) in seconds or not getattr(pipe, "is_stand_in", False)
    )


def _tally(pipe: Any, items: int, seconds: float) -> Tally:
    number = number_of(pipe)
    running = latest_pass(pipe)
    holds_calls = getattr(running, "holds_calls", False)
    fullness = getattr(running, "fullness", _no_bound)
    held, room = fullness()
    is_stand_in = getattr(pipe, "is_stand_in", False)
    name = repr(pipe) if number is None or is_stand_in else number
    return Tally(name, items, getattr(running, "errors", 0), seconds, held, room, holds_calls)


def _no_bound() -> tuple[int, int]:
    return 0, 0


def _counts(pipes: Sequence[Any], yielded: Mapping[int, int]) -> dict[int, int]:
    """Return how many items the pipes yielded, as far as their passes count them."""
    counts = {id(pipe): yielded.get(id(pipe), _counted(pipe, "yielded")) for pipe in pipes}
    for pipe in pipes:
        # A pipe that counts what it takes tells how many items its source yielded.
        source = id(attribute(pipe, "source"))
        if counts.get(source, 0) == UNCOUNTED:
            taken = _counted(pipe, "taken")
            is_as_many = taken == UNCOUNTED and _follows_source(pipe)
            counts[source] = counts[id(pipe)] if is_as_many else taken
    for pipe in reversed(pipes):
        if counts[id(pipe)] == UNCOUNTED and _follows_source(pipe):
            counts[id(pipe)] = counts.get(id(pipe.source), UNCOUNTED)
    return counts


def _follows_source(pipe: Any) -> bool:
    """Whether a pipe has yielded as many items as its source."""
    return bool(getattr(latest_pass(pipe), "follows_source", False))


def _counted(pipe: Any, field: str) -> int:
    count: int = getattr(latest_pass(pipe), field, UNCOUNTED)
    return count
