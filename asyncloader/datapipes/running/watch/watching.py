"""Where the time of threads goes that iterate pipes, and what pipes have yielded.

This file is about ``Watching``, the threads of one graph in this process. Each is a
``Watched``: it notes itself when it waits, and a ``Sampler`` looks now and then where it
works. What came of that for one pipe is a ``Tally``.

    every 0.1 s or so:  look ─ look      (nothing while all threads wait)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from time import perf_counter, process_time
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.traits import stands_in, times_with
from asyncloader.datapipes.running.watch.frames import (
    OUTSIDE,
    CodeOwners,
    attribute,
    can_be_looked_at,
    present_frames,
)
from asyncloader.runtime import at_exit, running_loop, start_thread
from asyncloader.system import in_forked_child
from asyncloader.waiting import Bell, call_soon

#: Finds the pipes of a graph, the last one first. Most epochs are so short that it is never called.
FindPipes = Callable[[], list[Any]]


class Tree(Protocol):
    """What runs a graph, and knows the latest pass of each pipe."""

    watching: Watching

    def latest_pass(self, pipe: Any) -> Any: ...


class HasLoop(Protocol):
    """Where a graph runs."""

    @property
    def present_loop(self) -> asyncio.AbstractEventLoop | None: ...


def _no_pipes() -> list[Any]:
    """The pipes of no epoch."""
    return []


class Watching:
    """The threads that iterate the pipes of one graph in this process.

    The time of the epoch is that of ``main``: the thread of a worker, or a loader's consumer.
    """

    def __init__(self, main: Watched) -> None:
        # A signal handler may ask for stats while this thread holds the lock.
        self._lock = threading.RLock()
        self._tree: Tree | None = None
        self._find: FindPipes = _no_pipes
        self._pipes: list[Any] | None = None
        self._threads = [main]
        #: The seconds of threads that have ended, by place.
        self._ended: Counter[int] = Counter()
        #: Where the graph runs at the moment.
        self.places: weakref.WeakSet[HasLoop] = weakref.WeakSet()
        self.main = main
        main.watching = self

    def begin(self, tree: Tree, find: FindPipes) -> None:
        """Begin an epoch of the pipes that ``find`` returns; before, nothing is watched."""
        with self._lock:
            self._threads, self._ended = [self.main], Counter()
            self._tree, self._find, self._pipes = tree, find, None
        tree.watching = self

    @property
    def pipes(self) -> list[Any]:
        """All pipes of the graph, the last one first; a place is an index into them."""
        if self._pipes is None:
            self._pipes = self._find()
        return self._pipes

    def new(self, pipe: Any, inside: CodeType, loop: asyncio.AbstractEventLoop) -> Watched:
        """Return a thread that will iterate a pipe, watched after it has run for a while."""
        watched = Watched(inside, pipe)
        watched.watching = self
        if self._tree is not None:
            with self._lock:
                self._threads.append(watched)
            watched.begin_later(loop)
        return watched

    def end(self, watched: Watched) -> None:
        """Stop watching a thread, and keep only its seconds."""
        watched.end()
        # An endless epoch may start any number of threads: they must not pile up here.
        with self._lock:
            if watched in self._threads:
                self._threads.remove(watched)
                self._ended.update(watched.seconds())

    def seconds(self) -> Counter[int]:
        """Return how many seconds the threads spent in the pipes, by place."""
        # A consumer that is in its first item for long has not come by.
        self.main.begin_if_due()
        with self._lock:
            found = self._ended.copy()
            for thread in self._threads:
                found.update(thread.seconds())
        return found

    def tallies(self, yielded: Mapping[int, int]) -> tuple[Tally, ...]:
        """Return the tally of every pipe, the last one first.

        ``yielded`` has the numbers of items that the caller knows, by the pipes' ids.
        """
        pipes = self.pipes
        seconds = _with_books(pipes, self.seconds())
        names = {id(pipe): _name_of(pipe) for pipe in pipes}
        tallies = []
        for place, pipe in enumerate(pipes):
            # A stand-in for pipes that run elsewhere matters only where a thread waits for it.
            if not seconds[place] and stands_in(pipe):
                continue
            source = names.get(id(_source_of(pipe)))
            running = None if self._tree is None else self._tree.latest_pass(pipe)
            taken, made, follows, errors = NO_COUNTS if running is None else running.counts()
            held, room = (0, 0) if running is None else running.fullness()
            made = yielded.get(id(pipe), made)
            counts = names[id(pipe)], source, taken, made, follows, errors
            is_busy = running is not None and running.holds_calls
            tallies.append(Tally(*counts, seconds[place], held, room, is_busy))
        return tuple(tallies)

    def owners(self) -> CodeOwners:
        """Return which code belongs to which pipe, with the threads that work at the moment."""
        return CodeOwners(self.pipes, self.made_elsewhere())

    def threads(self) -> list[Watched]:
        """Return the threads that iterate pipes at the moment, ``main`` among them."""
        return list(self._threads)

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Return the loops on which the graph runs at the moment."""
        loops = dict.fromkeys(place.present_loop for place in list(self.places))
        return [loop for loop in loops if loop is not None and not loop.is_closed()]

    def made_elsewhere(self) -> set[int]:
        """Return the ids of pipes that threads of their own iterate at the moment."""
        others = [each for each in list(self._threads) if each is not self.main]
        return {id(each.pipe) for each in others if not each.resting_since}


class Watched:
    """A thread that iterates a pipe of a graph from within the function ``inside``.

    When it begins to wait for something other than a pipe it sets ``resting_since`` to the time,
    and then calls ``resume``. Without a pipe it iterates the last one of the graph.
    """

    #: The graph that it works for.
    watching: Watching

    #: Whether it was away so long that it has to say when it is back: call ``resume`` then.
    is_parked = False

    #: When ``begin_if_due`` begins to watch it, if not by ``begin_later``.
    begins_at = math.inf

    def __init__(self, inside: CodeType, pipe: Any = None) -> None:
        self.inside = inside
        self.pipe = pipe
        self.thread = threading.get_ident()
        self.is_over = False
        self.restart()

    def restart(self) -> None:
        """Count again from zero."""
        #: For how long the thread was seen in which pipe, in units of a look, by place.
        self.looks: Counter[int] = Counter()
        self._rested = 0.0
        self.resting_since = 0.0
        self._begun = self._ended = self.working_since = perf_counter()

    def begin(self) -> None:
        """Watch the thread from now on, unless it has ended already."""
        if not self.is_over:
            SAMPLER.watch(self)

    def begin_if_due(self) -> None:
        """Watch the thread if it has run for a while without that; from any thread."""
        if perf_counter() >= self.begins_at:
            self.begins_at = math.inf
            self.begin()

    def begin_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the thread after it has run for a while; ``loop`` has the clock."""
        begin = partial(_begin_weakly, weakref.ref(self))
        if running_loop() is loop:
            loop.call_later(SAMPLER.begin_seconds, begin)
        else:
            call_soon(loop, loop.call_later, SAMPLER.begin_seconds, begin)

    def resume(self) -> None:
        """Note that the thread works again."""
        if self.resting_since:
            self.working_since = perf_counter()
            self._rested += self.working_since - self.resting_since
            self.resting_since = 0.0
        if SAMPLER.is_asleep:
            SAMPLER.wake()

    def end(self) -> None:
        """Stop watching the thread."""
        if not self.is_over:
            self._ended = perf_counter()
            self.is_over = True
            SAMPLER.forget(self)

    def place(self, owners: CodeOwners, frames: Mapping[int, FrameType]) -> int:
        """Return the place of the pipe that it is in, given the innermost frames of all threads."""
        return owners.place(frames.get(self.thread), self.inside, self.pipe)

    def note(self, places: Sequence[int], weight: int) -> None:
        """Count where the thread was seen a few times in a row, for so many looks each."""
        for place in places:
            self.looks[place] += weight

    def times(self) -> tuple[float, float]:
        """Return for how many seconds the thread has worked, and for how many it has waited."""
        now, since = self._ended if self.is_over else perf_counter(), self.resting_since
        waiting = self._rested + (max(0.0, now - since) if since else 0.0)
        return max(0.0, now - self._begun - waiting), waiting

    def seconds(self) -> dict[int, float]:
        """Return how long it worked in each pipe, by place; HANDING and IMPORTING too."""
        looks = {place: count for place, count in dict(self.looks).items() if place != OUTSIDE}
        if not looks:
            return {}
        each = self.times()[0] / sum(looks.values())
        return {place: count * each for place, count in looks.items()}


def _begin_weakly(watched: weakref.ref[Watched]) -> None:
    thread = watched()
    if thread is not None:
        thread.begin()


class WatchedWait(Watched):
    """A consumer that only waits for the items of a graph, in whichever thread.

    Its waits are its work: it rests until ``resume`` and from the next ``resting_since`` on.
    """

    def __init__(self) -> None:
        super().__init__(WatchedWait.place.__code__)
        self.resting_since = self._begun

    def place(self, owners: CodeOwners, frames: Mapping[int, FrameType]) -> int:
        return owners.awaited(0)


#: What was seen idle so often in a row may stay so for hours.
_IDLE_LOOKS = 5


class WatchedCalls(Watched):
    """A thread of the user's, which iterates pipes only while it is in one function.

    It does not say when it leaves that function, so the share of its time that goes into
    the function is sampled as well.
    """

    _idle = 0

    def resume(self) -> None:
        self.thread = threading.get_ident()
        self._idle, self.is_parked = 0, False
        super().resume()

    def times(self) -> tuple[float, float]:
        there, away = super().times()
        looks = sum(self.looks.values())
        working = there * (looks - self.looks[OUTSIDE]) / max(1, looks)
        return working, there + away - working

    def note(self, places: Sequence[int], weight: int) -> None:
        super().note(places, weight)
        self._idle = self._idle + 1 if all(place == OUTSIDE for place in places) else 0
        if self._idle == _IDLE_LOOKS:
            self.is_parked = True
            self.resting_since = perf_counter()


#: A process that computes less than this share of the time only waits.
_IDLE_SHARE = 0.01

#: The sampler rests at most 1 << _CALMEST times as long then.
_CALMEST = 4

_LOOKS = 2
_BETWEEN_LOOKS = 0.0004

#: A thread asks for the GIL after so long a wait for its release. Where it is released more
#: often than that, by calls that give it up, it is taken back before the waiting thread is awake,
#: and each release takes long, as it has to wake one. Threads that take turns at the GIL would do
#: nothing else if it were much less than this.
_EAGER_SECONDS = 0.00005

#: What a look may cost the others, as the time that it comes late, in each rest of usual length.
_LATE_SECONDS = 0.005


class Sampler:
    """Looks at threads, in a thread of its own that is there while there are any.

    While the process only waits, it looks less and less often, and less often too where it gets
    the GIL late.
    """

    #: How long it rests between looks, on average.
    rest_seconds = 0.1

    #: A thread is watched after it has run for so long: one or two looks at it would tell little.
    begin_seconds = 0.2

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
        # When it looked, how long the process had computed then, and how often in a row that
        # was next to nothing.
        self._looked_at = self._computed = 0.0
        self._idle = 0
        #: By how much the last look came late.
        self._late = 0.0
        #: Whether it sleeps until one of the threads works again.
        self.is_asleep = False

    def watch(self, looked: Watched) -> None:
        """Look at this thread from now on."""
        with self._lock:
            self._looked = [*self._looked, looked]
            self._idle = 0
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
            weight = self._weight()
            # A random time: a fixed one could keep step with the work it looks at.
            rest = self._times.uniform(0.0, 2 * self.rest_seconds * weight)
            due = perf_counter() + rest
            news.heard(rest)
            if self._is_mine(news) and can_be_looked_at():
                self._look_at_all(weight)
            self._late = perf_counter() - due
            self._sleep(news)

    def _is_mine(self, news: Bell) -> bool:
        """Whether the sampler's thread that has this bell still has something to look at."""
        return bool(self._looked) and self._news is news

    def _weight(self) -> int:
        """How many times as long as usual it rests, and so how many looks one stands for."""
        calm = 1 << min(_CALMEST, self._idle // _IDLE_LOOKS)
        return max(calm, min(1 << _CALMEST, math.ceil(self._late / _LATE_SECONDS)))

    def _sleep(self, news: Bell) -> None:
        """Wait while all threads wait."""
        # Said before the last check, so that no thread wakes up unseen in between.
        self.is_asleep = True
        if self._is_mine(news) and all(each.resting_since for each in self._looked):
            news.heard()
            self._idle = 0
        self.is_asleep = False

    def _look_at_all(self, weight: int) -> None:
        is_one_at_work = any(not each.resting_since for each in self._looked)
        present = self._looked if is_one_at_work else []
        looked = [(each, owners) for each in present if (owners := _owners_of(each)) is not None]
        places: list[list[int]] = [[] for _ in looked]
        pause = threading.Event()
        with self._eagerly():
            for _ in range(_LOOKS if looked else 0):
                pause.wait(self._times.uniform(0.0, 2 * _BETWEEN_LOOKS))
                with present_frames() as frames:
                    for (each, owners), at in zip(looked, places, strict=True):
                        # Who works is known only now: before, this thread had to wait for the
                        # GIL until another one began to rest.
                        if not each.resting_since:
                            owners.made_elsewhere = each.watching.made_elsewhere()
                            at.append(each.place(owners, frames))
        for (each, _), at in zip(looked, places, strict=True):
            if at:
                each.note(at, weight)
        self._note_idleness()

    def _note_idleness(self) -> None:
        now, computed = perf_counter(), process_time()
        is_idle = computed - self._computed < _IDLE_SHARE * (now - self._looked_at)
        self._idle = self._idle + 1 if is_idle else 0
        self._looked_at, self._computed = now, computed

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


def _owners_of(watched: Watched) -> CodeOwners | None:
    """Return which code belongs to which pipe, or None if the graph changes meanwhile."""
    try:
        return watched.watching.owners()
    except Exception:  # noqa: BLE001 - the user's pipes are in use; the next look may succeed
        return None


#: The one of this process.
SAMPLER = Sampler()
at_exit(SAMPLER.close)


in_forked_child(SAMPLER.forget_parent)

#: What watches the threads of a graph that no loader runs: nothing.
NOT_WATCHED = Watching(Watched(Sampler.watch.__code__))


def _source_of(pipe: Any) -> Any:
    """Return the pipe that another reads, past those that only keep books."""
    source = attribute(pipe, "source")
    while times_with(source):
        source = attribute(source, "source")
    return source


def _with_books(pipes: Sequence[Any], seconds: Counter[int]) -> Counter[int]:
    """Return the seconds in which those of pipes that only keep books are of others."""
    places = {id(pipe): place for place, pipe in enumerate(pipes) if not times_with(pipe)}
    readers = {id(_source_of(pipes[place])): place for place in places.values()}
    for place, pipe in enumerate(pipes):
        if whose := times_with(pipe):
            beside = _source_of(pipe)
            of = (places if whose == "source" else readers).get(id(beside))
            kept = seconds.pop(place, 0)
            if of is not None:
                seconds[of] += kept
    return seconds


#: The number of items that nobody counts.
UNCOUNTED = -1


class Tally(NamedTuple):
    """Items, errors and time of one pipe in one process, in the present pass."""

    #: The pipe's number in its loader's graph, or its name where it has none of its own.
    pipe: int | str
    #: That of its source, if it has one.
    source: int | str | None
    #: How many items it took of its source, and how many it yielded, or UNCOUNTED.
    taken: int
    yielded: int
    #: Whether it yields an item for each that it takes.
    follows_source: bool
    #: How many items its function failed on, where that is tolerated.
    errors: int
    #: How many seconds threads spent in it, in its function or waiting for it.
    seconds: float
    #: How many items it holds or has under way, and how many it may; 0 where it has no bound.
    held: int = 0
    room: int = 0
    #: Whether those are calls under way, so that it is busy when it is full.
    holds_calls: bool = False


#: Of a pipe that was not run, or knows nothing of this.
NO_COUNTS = (UNCOUNTED, UNCOUNTED, False, 0)


def _name_of(pipe: Any) -> int | str:
    number = number_of(pipe)
    return repr(pipe) if number is None or stands_in(pipe) else number
