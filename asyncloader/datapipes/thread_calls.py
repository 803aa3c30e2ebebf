"""Functions called in several threads.

This file is about thread_map, for functions that release the GIL, and threadpool_map, which is
torchdata's name for it. One thread begins the jobs, several run them, and the consumer takes them:

    a reader ──hold──▶ jobs ──▶ threads ──▶ results ──take──▶ a consumer
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from operator import itemgetter
from queue import SimpleQueue
from time import perf_counter
from types import CoroutineType, FrameType
from typing import Any, Literal, TypeVar

from asyncloader.arguments import checked_auto, checked_count, checked_function, function_name
from asyncloader.datapipes.ahead import (
    AheadPass,
    CallsAhead,
    Concurrency,
    calls_in_order,
)
from asyncloader.datapipes.attempts import Attempts, ErrorTypes
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import (
    NotCalled,
    blame,
    is_async,
    is_async_generator,
    itself,
    unawaited,
    watched_plain,
)
from asyncloader.datapipes.columns import change
from asyncloader.datapipes.resources import ThreadResource, opened_in_thread, with_last
from asyncloader.datapipes.running.conveyor import RunningBeside
from asyncloader.datapipes.running.cursors import Cursor
from asyncloader.datapipes.running.naming import brief_name, stage_name
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import Makers, ended_threads, function_in, some_home
from asyncloader.datapipes.running.watch.frames import present_frames
from asyncloader.datapipes.running.watch.under_way import (
    UnderWay,
    frames_of_thread,
    local_of,
    of_frames,
)
from asyncloader.datapipes.tolerance import SKIPPED, OnError, failure_of
from asyncloader.errors import ResourceExhausted
from asyncloader.machine import usable_cores
from asyncloader.runtime import start_thread
from asyncloader.tuning import AUTO, Bounds
from asyncloader.waiting import Stopped, ThreadWaiter, do_nothing

T = TypeVar("T")

logger = logging.getLogger("asyncloader")

Call = Callable[[Any], Any]

#: Waits in a thread for so many seconds, unless the thread is to end.
Wait = Callable[[float], object]


class Job:
    """One call: its item, then its result or error."""

    __slots__ = ("_done", "begun", "error", "is_done", "item", "position", "result")

    def __init__(self, position: int, item: Any, done: Callable[[Job], object]) -> None:
        self.position = position
        self.item = item
        #: When the call began, by ``perf_counter``; 0.0 before.
        self.begun = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self._done = done

    def run(self, call: Call) -> None:
        """Make the call."""
        self.begun = perf_counter()
        try:
            self.result = call(self.item)
        except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self.error = error
        self.item = None
        self.is_done = True
        self._done(self)

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class JobThread:
    """A thread that runs the jobs of a queue, until it gets None."""

    def __init__(
        self, name: str, jobs: SimpleQueue[Any], work: Callable[[JobThread], None]
    ) -> None:
        self.jobs = jobs
        self.waiter = ThreadWaiter()
        #: Whether its present call has taken too long, so that nobody waits for it.
        self.is_given_up = False
        #: Whether what its calls use was opened, or why it could not be.
        self.is_ready = False
        self.failure: BaseException | None = None
        self.has_ended = False
        run = contextvars.copy_context().run
        self.thread = threading.Thread(target=run, args=(work, self), name=name, daemon=True)
        start_thread(self.thread)

    def run_jobs(self, call: Call) -> None:
        """Run all jobs, in this thread."""
        while (job := self.jobs.get()) is not None:
            job.run(call)
            del job

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, in this thread; raise Stopped when it is to end."""
        self.waiter.until(_never, seconds)

    def end(self) -> None:
        """Tell it to end after its present call."""
        self.jobs.put(None)
        self.waiter.stop()


def _never() -> bool:
    return False


#: For each thread, so many jobs may have begun and not been taken. The reader waits until half of
#: them are: while it wakes up, there is still one for each thread.
HELD_PER_THREAD = 3

#: Who waits for so long is named.
LONG_SECONDS = 60.0

#: So many calls that were given up may go on at a time.
MOST_GIVEN_UP = 64


class JobThreads:
    """Threads that run the jobs of one pass.

    ``opened()`` gives the function that a thread calls, with what its calls use; a thread in which
    that fails, fails every job that it gets. ``applied(call, wait)`` returns what is done with each
    item. Where calls have a timeout, each thread has them made by another, its caller.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Call]],
        applied: Callable[[Call, Wait], Call],
        attempts: Attempts,
        name: str,
    ) -> None:
        self._opened = opened
        self._applied = applied
        self._attempts = attempts
        self._name = name
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._threads: list[JobThread] = []
        self._callers: list[JobThread] = []
        # How many threads were told to end.
        self._ended = 0
        self._is_closed = False
        self._lock = threading.Lock()
        # Called at the end of each thread.
        self._on_end: Callable[[], object] = do_nothing
        #: The first error of closing what calls used.
        self.error: BaseException | None = None

    def __len__(self) -> int:
        """Return how many threads run jobs."""
        return len(self._threads) - self._ended

    def under_way(self, what: str) -> list[UnderWay]:
        """Return ``what`` the threads do that do not wait for a job, the oldest job first."""
        with present_frames() as present:
            found = [self._work_of(each, present, what) for each in list(self._threads)]
        return [work for _, work in sorted(filter(None, found), key=itemgetter(0))]

    def _work_of(
        self, thread: JobThread, present: Mapping[int, FrameType], what: str
    ) -> tuple[int, UnderWay] | None:
        """Return the position of a thread's job, and what it is; None if it waits for one."""
        frames = frames_of_thread(present.get(thread.thread.ident or 0))
        if not frames or frames[-1].f_code is _RUN_JOBS:
            return None
        job: Job | None = next((local_of(each, "self") for each in frames if _runs_job(each)), None)
        for each in frames:
            # Who waits here is another thread's caller.
            if each.f_code is _TIMED_CALL and (caller := local_of(each, "caller")) is not None:
                frames += frames_of_thread(present.get(caller.thread.ident or 0))
        position, since = (-1, None) if job is None else (job.position, job.begun)
        work = of_frames(
            frames,
            what,
            where=f"thread {thread.thread.name!r}",
            item=None if job is None else position,
            since=since,
        )
        return position, work

    def start(self) -> None:
        """Start one more thread."""
        self._start(self._threads, self._jobs, self._work)

    def put(self, job: Any) -> None:
        """Have a job run: ``job.run(call)`` is called in one of the threads."""
        self._jobs.put(job)

    def end(self, count: int) -> None:
        """Let so many threads end, once they have run what was put before."""
        for _ in range(count):
            self._ended += 1
            self._jobs.put(None)

    def finish(self, consumer: Makers) -> None:
        """Wait until all have ended, however long it takes to close what their calls used."""
        self._on_end = consumer.wake
        threads = self._told_to_end()
        while not consumer.until(lambda: all(each.has_ended for each in threads), LONG_SECONDS):
            late = next((each.thread for each in threads if not each.has_ended), None)
            if late is not None:
                logger.warning(
                    "all calls of %s have been made, and thread %r has not closed what it used for"
                    " them in %d s: it is inside %s",
                    *(self._attempts.name, late.name, LONG_SECONDS, function_in(late)),
                )
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Let the threads end after their present calls, and wait for them, for a bounded time."""
        ended_threads(each.thread for each in self._told_to_end())
        if given_up := self._given_up():
            warnings.warn(
                f"calls of {self._attempts.name} that took longer than"
                f" timeout={self._attempts.timeout:g} s and have not returned at the end of the"
                f" pass: {given_up}. Each of them still holds a thread; give what the function"
                " waits for a timeout of its own",
                ResourceWarning,
                stacklevel=3,
            )

    def start_caller(self, on_ready: Callable[[], object]) -> JobThread:
        """Start a thread that makes the calls of one of the others; NotCalled if that cannot be.

        ``on_ready`` is called once it can make calls, or cannot.
        """
        if (given_up := self._given_up()) >= MOST_GIVEN_UP:
            raise NotCalled(
                ResourceExhausted(
                    f"{given_up} calls of {self._attempts.name} that took longer than"
                    f" timeout={self._attempts.timeout:g} s have not returned, and each of them"
                    " holds a thread, which nobody can stop; give what the function waits for a"
                    " timeout of its own"
                )
            )
        work = functools.partial(self._work_with, applied=itself, on_ready=on_ready)
        try:
            return self._start(self._callers, SimpleQueue(), work)
        except ResourceExhausted as error:
            raise NotCalled(error) from error

    def _told_to_end(self) -> list[JobThread]:
        """Tell all threads to end; return those that are worth waiting for."""
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(Exception):
            while True:
                self._jobs.get_nowait()
        threads = [*self._threads, *self._callers]
        for each in threads:
            each.end()
        return [each for each in threads if not each.is_given_up]

    def _given_up(self) -> int:
        """Return how many threads are in calls that took too long."""
        with self._lock:
            # The same list: another thread may be about to add to it.
            self._callers[:] = [each for each in self._callers if each.thread.is_alive()]
            return sum(each.is_given_up for each in self._callers)

    def _start(
        self,
        among: list[JobThread],
        jobs: SimpleQueue[Any],
        work: Callable[[JobThread], None],
    ) -> JobThread:
        with self._lock:
            if self._is_closed:
                # It came too late to be waited for.
                raise Stopped
            thread = JobThread(f"{self._name} {len(among)}", jobs, work)
            among.append(thread)
            return thread

    def _work(self, thread: JobThread) -> None:
        if self._attempts.timeout is None:
            self._work_with(thread, lambda call: self._applied(call, thread.wait))
            return
        with closing(TimedCalls(self, thread, self._attempts)) as calls:
            thread.run_jobs(self._applied(calls, thread.wait))
        self._end_of(thread)

    def _work_with(
        self,
        thread: JobThread,
        applied: Callable[[Call], Call],
        on_ready: Callable[[], object] = do_nothing,
    ) -> None:
        try:
            with contextlib.ExitStack() as stack:
                call = self._call_in(stack, thread, applied)
                thread.is_ready = True
                on_ready()
                thread.run_jobs(call)
        except BaseException as error:  # noqa: BLE001 - user code ran; the consumer raises it
            self.error = self.error or error
        self._end_of(thread)

    def _call_in(
        self, stack: contextlib.ExitStack, thread: JobThread, applied: Callable[[Call], Call]
    ) -> Call:
        try:
            return applied(stack.enter_context(self._opened()))
        except BaseException as error:  # noqa: BLE001 - user code ran; the jobs raise it
            thread.failure = error
            return functools.partial(_fail, error)

    def _end_of(self, thread: JobThread) -> None:
        thread.has_ended = True
        self._on_end()


def _fail(error: BaseException, item: Any) -> Any:
    raise error


class TimedCalls:
    """Has a thread's calls made in another, and gives up those that take too long.

    Nobody can end a call of another thread. So one that was given up goes on, its result is
    dropped, and the next calls have a new thread.
    """

    def __init__(self, threads: JobThreads, thread: JobThread, attempts: Attempts) -> None:
        self._threads = threads
        self._thread = thread
        self._attempts = attempts
        self._caller: JobThread | None = None

    def __call__(self, item: Any) -> Any:
        """Return what the function returns, or raise its error, a TimeoutError or NotCalled."""
        waiter, caller = self._thread.waiter, self._ready()
        job = Job(0, item, lambda _: waiter.wake())
        caller.jobs.put(job)
        if waiter.until(lambda: job.is_done, self._attempts.timeout):
            return job.outcome()
        caller.is_given_up = True
        self.close()
        raise self._attempts.too_long()

    def _ready(self) -> JobThread:
        """Return the thread that makes the calls, once what they use is open."""
        waiter = self._thread.waiter
        caller = self._caller or self._threads.start_caller(waiter.wake)
        self._caller = caller
        # However long it takes to open that: it is no part of the call.
        waiter.until(lambda: caller.is_ready)
        if caller.failure is not None:
            raise NotCalled(caller.failure)
        return caller

    def close(self) -> None:
        """Let the caller end, now or when its call returns."""
        if self._caller is not None:
            self._caller.jobs.put(None)
            self._caller = None


#: A thread that is in the first of these, and in nothing that it has called, waits for a job.
_RUN_JOBS = JobThread.run_jobs.__code__
_RUN_JOB = Job.run.__code__
_TIMED_CALL = TimedCalls.__call__.__code__


def _runs_job(frame: FrameType) -> bool:
    return frame.f_code is _RUN_JOB


class Crew(RunningBeside):
    """The jobs of one pass that have begun and were not taken yet; at most ``room``.

    Up to ``count`` threads run them.
    """

    def __init__(
        self,
        running: AheadPass[Any],
        makers: Makers,
        threads: JobThreads,
        *,
        count: int,
        room: int,
        chosen: Concurrency | None = None,
    ) -> None:
        super().__init__(running.source, makers)
        self.room = room
        self._running = running
        self._threads = threads
        self._count = count
        self._chosen = chosen
        self._results = calls_in_order(running.pipe.ordered)
        # Guards the results: all the threads change them.
        self._lock = threading.Lock()
        # The first is of the reader, the second of the consumer.
        self._begun = 0
        self._taken = 0

    def __len__(self) -> int:
        """Return how many jobs have begun and were not taken yet."""
        return self._begun - self._taken

    # The reader's side ----------------------------------------------------------------

    def hold(self, item: Any) -> None:
        # If no thread could be started, nobody may wait for a job.
        if len(self._threads) < self._count:
            self._threads.start()
        job = Job(self._running.begin(), item, self._finished)
        with self._lock:
            self._begun += 1
            self._results.begun(job)
        self._threads.put(job)

    def has_room(self) -> bool:
        return len(self) < self.room

    def may_go_on(self) -> bool:
        # Not for each job: to wake the reader takes as long as a short call.
        return self.may_read() and len(self) <= self.room // 2

    # The consumer's side --------------------------------------------------------------

    def is_empty(self) -> bool:
        return not len(self)

    def has_something(self) -> bool:
        with self._lock:
            return self._results.is_ready()

    def jobs(self) -> Iterator[Job]:
        """Yield the finished jobs, until the last that was begun."""
        chosen = self._chosen
        while True:
            if chosen is not None:
                chosen.begin_wait()
            job = self._next()
            if job is None:
                if not self.has_next():
                    return
                continue
            if chosen is not None and chosen.took(1):
                self._use(chosen.number)
            yield job
            # Do not keep a result while the next one is made.
            del job

    def _next(self) -> Job | None:
        """Return the next finished job; None if there is none."""
        with self._lock:
            if not self._results.is_ready():
                return None
            job: Job = self._results.take()
        self._taken += 1
        if len(self) <= self.room // 2:
            self.wake_reader()
        return job

    def _use(self, count: int) -> None:
        """Have so many threads from now on; the reader starts those that are missing."""
        self._count, self.room = count, HELD_PER_THREAD * count
        self._threads.end(len(self._threads) - count)

    # The threads ----------------------------------------------------------------------

    def _finished(self, job: Job) -> None:
        with self._lock:
            self._results.finished(job)
            is_ready = self._results.is_ready()
        if is_ready:
            self.wake_consumer()


@functional_datapipe("thread_map")
class ThreadMapper(CallsAhead[T]):
    """Yield ``fn(item)`` for each item, with the calls spread over threads.

    For functions that release the GIL (decoders, codecs, file reads). There are
    ``concurrency`` threads, by default one for each core; with ``"auto"`` as many as give
    the most results a second, or as few as the consumer needs. Results come in the source's
    order, or with ``ordered=False`` as they are ready.

    A call may take ``timeout`` seconds, and fails with a ``TimeoutError`` (an ``OSError``). One
    that fails with an error of ``retry_on`` is made again up to ``retries`` times, ``backoff``
    seconds later and then twice as much each time (at random up to a half less, 30 s at most).
    A thread cannot be stopped: a call that took too long goes on until it returns, in a thread
    of its own, and what it returns is dropped.

    ``resource`` opens what calls use, such as a connection or a decoder: a function or class
    that gives a context manager. Each thread enters its own, so that it need not be safe for
    several, and leaves it when the pass ends, in the same way whatever ended it. What it gives
    is passed to ``fn`` as its last argument. One that cannot be opened ends the pass: that is no
    failure of an item, so it is not tried again.

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
    >>> import contextlib
    >>> @contextlib.contextmanager
    ... def open_table():
    ...     yield {0: "zero", 1: "one"}
    >>> def look_up(number, table):
    ...     return table[number]
    >>> numbers = IterableWrapper(range(3))
    >>> list(numbers.thread_map(look_up, resource=open_table, on_error="skip"))
    ['zero', 'one']
    """

    reads_ahead = True

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        concurrency: int | Literal["auto"] | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: ThreadResource | None = None,
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
        if is_async_generator(fn):
            raise TypeError(
                f"{self.functional_name} needs a function that returns a result, got the async"
                f" generator {function_name(fn)}; use flatmap for several results of one item"
            )
        if concurrency is not None:
            checked_auto("concurrency", concurrency, at_least=1)
        super().__init__(datapipe, fn, input_col, output_col, resource, concurrency, ordered)
        self.set_attempts(timeout, retries, retry_on, backoff)
        self.set_outcomes(on_error, max_errors, repeatable, keep_results)

    def new_pass(self, edge: Edge[Any]) -> ThreadMapPass[T]:
        return ThreadMapPass(edge)

    def counts(self, chosen: Concurrency | None) -> tuple[int, int]:
        """Return how many threads there are, and how many jobs may have begun."""
        count = self.concurrency or os.cpu_count() or 1
        count = count if chosen is None else chosen.number
        return count, HELD_PER_THREAD * count

    def choice(self) -> Concurrency | None:
        """Return what finds how many threads there are, if nobody says so."""
        if self.concurrency != AUTO:
            return None
        most = max(32, 4 * (os.cpu_count() or 1))
        return Concurrency(self, usable_cores(), Bounds(1, most))

    def threads(self, fn: Callable[..., Any], chosen: Concurrency | None = None) -> JobThreads:
        """Return the threads of one pass, in which ``fn`` is called as the pipe's function."""
        opened = functools.partial(self._opened, fn)
        applied = functools.partial(self._applied, chosen)
        return JobThreads(opened, applied, self._attempts, self.thread_name())

    def thread_name(self) -> str:
        """Return how the names of the threads begin."""
        return f"asyncloader {brief_name(self)}"

    @contextlib.contextmanager
    def _opened(self, fn: Callable[..., Any]) -> Iterator[Call]:
        with contextlib.ExitStack() as stack:
            self.prepare_thread()
            if self.resource is not None:
                shared = stack.enter_context(opened_in_thread(self.resource, self))
                fn = functools.partial(with_last, fn, shared)
            if self.input_col is not None:
                fn = functools.partial(change, fn, self._columns)
            yield fn

    def prepare_thread(self) -> None:
        """Do what each thread does first."""

    def _applied(self, chosen: Concurrency | None, call: Call, wait: Wait) -> Call:
        apply = self._wrap(self._attempts.of_plain(call, wait))
        tried = functools.partial(self._tried, apply)
        return tried if chosen is None else functools.partial(chosen.timed, tried)

    def _tried(self, apply: Call, item: Any) -> Any:
        """Return the function's result for an item, or its Failure if errors are tolerated."""
        unmade: BaseException | None = None
        try:
            result = apply(item)
        except NotCalled as instead:
            unmade = instead.error
        except BaseException as error:
            if self.tolerance.is_strict:
                blame(error, self)
                raise
            return failure_of(error, item, self)
        if unmade is not None:
            raise unmade
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
        self._threads: JobThreads | None = None

    def under_way(self) -> Iterable[UnderWay]:
        threads = self._threads
        return () if threads is None else threads.under_way(stage_name(self.pipe))

    def __iter__(self) -> Iterator[T]:
        pipe: ThreadMapper[Any] = self.pipe
        chosen = pipe.choice()
        count, room = pipe.counts(chosen)
        with (
            watched_plain(pipe.fn, pipe) as fn,
            closing(pipe.threads(fn, chosen)) as threads,
            some_home(self.edge.tree.watching) as home,
            Makers(home) as makers,
        ):
            crew = Crew(self, makers, threads, count=count, room=room, chosen=chosen)
            self.calls, self.room, self._threads = crew, room, threads
            try:
                with crew.running(home):
                    yield from self._results(crew)
                    threads.finish(makers)
            finally:
                self.calls, self._threads = (), None

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

    def counts(self, chosen: Concurrency | None) -> tuple[int, int]:
        return self.max_workers or min(32, (os.cpu_count() or 1) + 4), self.scheduled_tasks

    def thread_name(self) -> str:
        return str(self.threadpool_kwargs.get("thread_name_prefix", "asyncloader thread_map"))

    def prepare_thread(self) -> None:
        initializer = self.threadpool_kwargs.get("initializer")
        if initializer is not None:
            initializer(*self.threadpool_kwargs.get("initargs", ()))
