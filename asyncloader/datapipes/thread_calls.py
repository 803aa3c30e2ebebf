"""Functions called in several threads.

This file is about thread_map, for functions that release the GIL, and threadpool_map, which is
torchdata's name for it. One thread begins the jobs, several run them, and the consumer takes them:

    a reader ──begin──▶ jobs ──▶ threads ──▶ results ──jobs──▶ a consumer
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from queue import SimpleQueue
from time import perf_counter
from types import CoroutineType
from typing import Any, Literal, TypeVar

from asyncloader.arguments import checked_auto, checked_count, checked_function, function_name
from asyncloader.datapipes.ahead import (
    AheadPass,
    Concurrency,
    calls_in_order,
    nothing_ahead,
    state_ahead,
)
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import blame, is_async, unawaited, watched_plain
from asyncloader.datapipes.columns import changing
from asyncloader.datapipes.patterns import closing_items
from asyncloader.datapipes.recording import on_numbered
from asyncloader.datapipes.running.cursor_forms import Fields
from asyncloader.datapipes.running.cursors import Cursor
from asyncloader.datapipes.running.naming import brief_name
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import (
    Home,
    Makers,
    ended_threads,
    present_waiter,
    some_home,
)
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import (
    SKIPPED,
    OnError,
    RecordedTolerance,
    Tolerance,
    checked_keeping,
    failure_of,
)
from asyncloader.machine import usable_cores
from asyncloader.runtime import start_thread
from asyncloader.tuning import Bounds
from asyncloader.waiting import Stopped, ThreadWaiter

T = TypeVar("T")


class Job:
    """One call: its item, then its result or error."""

    __slots__ = ("error", "item", "position", "result")

    def __init__(self, position: int, item: Any) -> None:
        self.position = position
        self.item = item
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, call: Callable[[Any], Any]) -> None:
        """Make the call."""
        try:
            self.result = call(self.item)
        except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self.error = error
        self.item = None

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class Crew:
    """Up to ``count`` threads, and up to ``room`` jobs that have begun and were not taken yet.

    Each thread calls ``initializer(*initargs)`` first. One in which that fails raises the error for
    every job it gets. The consumer creates the crew.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        count: int,
        room: int,
        ordered: bool,
        chosen: Concurrency | None = None,
        thread_name_prefix: str = "asyncloader thread_map",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._call = call
        self._chosen = chosen
        #: How many threads there may be, and how many were told to end.
        self._count = count
        self._ended = 0
        self.room = room
        self._name = thread_name_prefix
        self._initializer = initializer
        self._initargs = initargs
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._consumer = present_waiter()
        self._reader = ThreadWaiter()
        self._results = calls_in_order(ordered)
        # Guards the results and their numbers: all the threads change them.
        self._lock = threading.Lock()
        self._begun = 0
        self._taken = 0
        self._last = 0
        self._has_ended = False
        self._is_paused = False
        self._is_wanted = False
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Return how many jobs have begun and were not taken yet."""
        return self._begun - self._taken

    # The reader's side ----------------------------------------------------------------

    def attend(self) -> None:
        """Make this thread the reader, which begins the jobs."""
        self._reader = present_waiter()

    def begin(self, position: int, item: Any) -> bool:
        """Hand a job to the threads; return whether there is room for another."""
        if self._is_closed:
            # The thread came too late to be waited for.
            raise Stopped
        # If no thread could be started, nobody may wait for a job.
        if len(self._threads) - self._ended < self._count:
            self._threads.append(self._start_thread(len(self._threads)))
        job = Job(position, item)
        with self._lock:
            self._begun += 1
            self._last = position
            self._results.begun(position, job)
            has_room = self._has_room(self.room)
        self._jobs.put(job)
        return has_room

    def wait_for_room(self) -> None:
        """Wait until there is room for several jobs."""
        self._reader.until(self._may_go_on)

    def end(self) -> None:
        """Say that no more jobs will be begun."""
        self._has_ended = True
        self._consumer.wake()

    def set_paused(self, is_paused: bool) -> None:
        """Stop beginning jobs ahead of the consumer, or do so again; from any thread."""
        self._is_paused = is_paused
        self._reader.wake()

    def _may_go_on(self) -> bool:
        with self._lock:
            return self._has_room(self.room // 2 + 1)

    def _has_room(self, room: int) -> bool:
        """Whether another job may begin, where there may be ``room``; the caller has the lock."""
        held = self._begun - self._taken
        if self._is_paused:
            return self._is_wanted and not held
        return held < room

    # The consumer's side --------------------------------------------------------------

    def jobs(self) -> Iterator[Job]:
        """Yield the finished jobs, until the last that was begun."""
        chosen = self._chosen
        while True:
            if chosen is not None:
                chosen.begin_wait()
            job = self._next() or self._awaited()
            if job is None:
                return
            if chosen is not None and chosen.took(1):
                self._use(chosen.number)
            yield job
            # Do not keep a result while the next one is made.
            del job

    def close(self) -> None:
        """Let the threads end after their current jobs; call it after the reader has ended."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        ended_threads(self._threads)

    def _use(self, count: int) -> None:
        """Have so many threads from now on."""
        with self._lock:
            self._count, self.room = count, HELD_PER_THREAD * count
            # The reader starts those that are missing.
            for _ in range(len(self._threads) - self._ended - count):
                self._ended += 1
                self._jobs.put(None)

    def _next(self) -> Job | None:
        """Return the next finished job; None if there is none, which is then wanted."""
        with self._lock:
            if not self._results.is_ready():
                self._is_wanted = True
                return None
            job: Job = self._results.take()
            self._taken += 1
            # Not for each: to wake the reader takes as long as a short call.
            may_go_on = self._has_room(self.room // 2 + 1)
        if may_go_on:
            self._reader.wake()
        return job

    def _awaited(self) -> Job | None:
        """Wait for the next job; None if there will be none."""
        if self._is_paused:
            self._reader.wake()
        self._consumer.until(self._is_ready_or_over)
        self._is_wanted = False
        return self._next()

    def _is_ready_or_over(self) -> bool:
        # Check the end first: the reader may begin one more job before it ends.
        has_ended = self._has_ended
        with self._lock:
            return self._results.is_ready() or (has_ended and self._begun == self._taken)

    # The threads ----------------------------------------------------------------------

    def _start_thread(self, number: int) -> threading.Thread:
        run = contextvars.copy_context().run
        name = f"{self._name} {number}"
        thread = threading.Thread(target=run, args=(self._work, number), name=name, daemon=True)
        start_thread(thread)
        return thread

    def _work(self, number: int) -> None:
        call, chosen = self._prepared(), self._chosen
        while (job := self._jobs.get()) is not None:
            begun = perf_counter()
            job.run(call)
            if chosen is not None:
                chosen.worked(number, perf_counter() - begun)
            with self._lock:
                self._results.finished(job.position, job)
                is_awaited = self._is_wanted and self._results.is_ready()
            del job
            if is_awaited:
                self._consumer.wake()

    def _prepared(self) -> Callable[[Any], Any]:
        try:
            if self._initializer is not None:
                self._initializer(*self._initargs)
        except BaseException as error:  # noqa: BLE001 - user code ran; the jobs raise it
            failure = error
        else:
            return self._call

        def fail(item: Any) -> Any:
            raise failure

        return fail


#: For each thread, so many jobs may have begun and not been taken. The reader waits until half of
#: them are: while it wakes up, there is still one for each thread.
HELD_PER_THREAD = 3


@functional_datapipe("thread_map")
class ThreadMapper(IterDataPipe[T]):
    """Yield ``fn(item)`` for each item, with the calls spread over threads.

    For functions that release the GIL (decoders, codecs, file reads). There are
    ``concurrency`` threads, by default one for each core; with ``"auto"`` as many as give
    the most results a second, or as few as the consumer needs. Results come in the source's
    order, or with ``ordered=False`` as they are ready.

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    With ``repeatable=False`` the function may give another result the next time: what became
    of each item is recorded from here on, so that a state resumes exactly.

    ``keep_results=True`` goes with it: a state has the results that are not settled, as plain
    data, so that the function is not called again for them. The pipe stays with the loader then.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).thread_map(str))
    ['0', '1', '2']
    """

    reads_ahead = True

    #: Whether each result is that of one item.
    calls_for_each = True

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        concurrency: int | Literal["auto"] | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> None:
        if is_async(checked_function("fn", fn)):
            raise TypeError(
                f"{self.functional_name} needs a plain function, got the async"
                f" {function_name(fn)}; use async_map"
            )
        if concurrency is not None:
            checked_auto("concurrency", concurrency, at_least=1)
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.concurrency = concurrency
        self.ordered = ordered
        self.on_error = on_error
        self.max_errors = max_errors
        self.repeatable = repeatable
        self.keep_results = checked_keeping(keep_results, repeatable)
        self._apply = changing(fn, input_col, output_col)
        self.tolerance = Tolerance(on_error, max_errors)

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    def in_section(self) -> ThreadMapper[T]:
        self._apply = on_numbered(self._apply, self)
        self.tolerance = RecordedTolerance.of(self.tolerance)
        return self

    @property
    def State(self) -> type[Fields] | None:  # type: ignore[override]
        return state_ahead(self)

    def has_no_order(self) -> bool:
        return not self.ordered

    def new_pass(self, edge: Edge[Any]) -> ThreadMapPass[T]:
        return ThreadMapPass(edge)

    def new_crew(self, call: Callable[[Any], Any]) -> Crew:
        """Return the crew of one pass."""
        cores, chosen = os.cpu_count() or 1, None
        count = self.concurrency or cores
        if isinstance(count, str):
            chosen = Concurrency(self, usable_cores(), Bounds(1, max(32, 4 * cores)))
            count = chosen.number
        return Crew(
            call,
            count=count,
            room=HELD_PER_THREAD * count,
            ordered=self.ordered,
            chosen=chosen,
            thread_name_prefix=f"asyncloader {brief_name(self)}",
        )

    def call(self, item: Any) -> Any:
        """Return the function's result for an item, or its Failure if errors are tolerated."""
        try:
            result = self._apply(item)
        except BaseException as error:
            if self.tolerance.is_strict:
                blame(error, self)
                raise
            return failure_of(error, item, self)
        if result.__class__ is CoroutineType:
            raise unawaited(self, result)
        return result


class ThreadMapPass(AheadPass[T]):
    """One pass over a ThreadMapper, whose source is read in a thread of its own."""

    #: It also holds results that were not taken yet, so full does not mean busy.
    holds_calls = False

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        # The reader notes what it has read while the consumer asks for cursors.
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        with watched_plain(self.pipe.call, self.pipe) as call:
            crew = self.pipe.new_crew(call)
            self.calls, self.room, self.pause_ahead = crew, crew.room, crew.set_paused
            try:
                watching = self.edge.tree.watching
                with closing(crew), some_home(watching) as home, Makers(home) as makers:
                    reading = makers.start(self._read, crew, home)
                    yield from self._results(crew)
                    makers.outcome(reading)
            finally:
                self.calls, self.pause_ahead = (), nothing_ahead

    def _results(self, crew: Crew) -> Iterator[T]:
        for job in crew.jobs():
            with self._lock:
                result = self.finish(job.outcome())
            # Do not keep the yielded item alive while the next one is made.
            del job
            if result is not SKIPPED:
                yield result
            del result

    def cursor(self) -> Cursor:
        with self._lock:
            return super().cursor()

    def needs(self) -> int:
        with self._lock:
            return super().needs()

    def _read(self, crew: Crew, home: Home) -> None:
        crew.attend()
        watched = home.watching.new(self.source.pipe, _READ, home.loop)
        try:
            items = self.source.begin()
            with closing_items(items):
                for item in items:
                    with self._lock:
                        position = self.begin()
                    has_room = crew.begin(position, item)
                    del item
                    if not has_room:
                        watched.resting_since = perf_counter()
                        crew.wait_for_room()
                        watched.resume()
        finally:
            home.watching.end(watched)
            # The consumer waits until this, also if the source cannot begin.
            crew.end()


# Frames below this one are the work of the source's pipes.
_READ = ThreadMapPass._read.__code__


#: What ``threadpool_map`` takes of a ThreadPoolExecutor's options.
_OPTIONS = ("thread_name_prefix", "initializer", "initargs")


@functional_datapipe("threadpool_map")
class ThreadPoolMapper(ThreadMapper[T]):
    """Yield ``fn(item)`` for each item: torchdata's name for ``thread_map``.

    Up to ``scheduled_tasks`` calls are begun and not yet taken, by ``max_workers``
    threads, by default as many as a ``ThreadPoolExecutor`` would have. Of its options
    there are ``thread_name_prefix``, ``initializer`` and ``initargs``. ``on_error`` and
    ``max_errors`` are those of ``thread_map``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).threadpool_map(str, max_workers=2))
    ['0', '1', '2']
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None:
        self.scheduled_tasks = checked_count("scheduled_tasks", scheduled_tasks, at_least=1)
        if max_workers is not None:
            checked_count("max_workers", max_workers, at_least=1)
        self.max_workers = max_workers
        self.threadpool_kwargs = threadpool_kwargs
        if unknown := threadpool_kwargs.keys() - set(_OPTIONS):
            raise TypeError(
                f"threadpool_map takes {', '.join(_OPTIONS)} of a ThreadPoolExecutor's options,"
                f" got {', '.join(sorted(unknown))}"
            )
        super().__init__(
            source_datapipe, fn, input_col, output_col, on_error=on_error, max_errors=max_errors
        )

    def new_crew(self, call: Callable[[Any], Any]) -> Crew:
        return Crew(
            call,
            count=self.max_workers or min(32, (os.cpu_count() or 1) + 4),
            room=self.scheduled_tasks,
            ordered=self.ordered,
            **self.threadpool_kwargs,
        )
