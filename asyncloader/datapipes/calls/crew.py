"""Threads that call a function, many at once.

This file is about ``Crew``: jobs are begun in one thread, run by several, and taken in
another.

    a reader ──begin──▶ jobs ──▶ threads ──▶ results ──jobs──▶ a consumer
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from asyncloader.datapipes.calls.arrivals import calls_in_order
from asyncloader.datapipes.running.home import ended_threads, present_waiter
from asyncloader.runtime import start_thread
from asyncloader.waiting import Stopped, ThreadWaiter


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


@dataclass(frozen=True)
class ThreadSettings:
    """What the threads are called, and what each calls before its first job."""

    thread_name_prefix: str = "asyncloader thread_map"
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()

    def initialize(self) -> None:
        """Make a thread ready."""
        if self.initializer is not None:
            self.initializer(*self.initargs)


class Crew:
    """Up to ``count`` threads, and up to ``room`` jobs that were begun and not yet taken.

    A thread in which its initializer fails has that error for every job it gets. To be
    made by the consumer.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        settings: ThreadSettings,
        *,
        count: int,
        room: int,
        ordered: bool,
        turns: deque[int],
    ) -> None:
        self._call = call
        self._count = count
        self.room = room
        self._settings = settings
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._consumer = present_waiter()
        self._reader = ThreadWaiter()
        self._done: deque[Job] = deque()
        self._results = calls_in_order(ordered, turns)
        # The reader adds to the results what the consumer takes from them.
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
        """Return how many jobs were begun and not yet taken."""
        return self._begun - self._taken

    # The reader's side ----------------------------------------------------------------

    def attend(self) -> None:
        """Be what the present thread waits for, which begins the jobs."""
        self._reader = present_waiter()

    def begin(self, position: int, item: Any) -> None:
        """Hand a job to the threads, and wait until there is room for another."""
        if self._is_closed:
            # Who could not be waited for comes late.
            raise Stopped
        # Where no thread can be started no job may be waited for.
        if len(self._threads) < self._count:
            self._threads.append(self._start_thread(len(self._threads)))
        job = Job(position, item)
        with self._lock:
            self._begun += 1
            self._last = position
            self._results.begun(position, job)
        self._jobs.put(job)
        del item, job
        self._reader.until(self._has_room)

    def end(self) -> None:
        """Say that no more jobs will be begun."""
        self._has_ended = True
        self._consumer.wake()

    def set_paused(self, is_paused: bool) -> None:
        """Let no job begin ahead of what is waited for, or do so again; from any thread."""
        self._is_paused = is_paused
        self._reader.wake()

    def _has_room(self) -> bool:
        with self._lock:
            held = self._begun - self._taken
            is_needed = self._results.wants(self._last + 1)
            if self._is_paused:
                return self._is_wanted and (not held or is_needed)
            return held < self.room or is_needed

    # The consumer's side --------------------------------------------------------------

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs when they are done, until the last one that was begun."""
        while True:
            self._is_wanted = True
            if self._is_paused:
                self._reader.wake()
            self._consumer.until(self._is_ready_or_over)
            self._is_wanted = False
            if not self._is_ready():
                return
            yield self._next()

    def close(self) -> None:
        """Let the threads end after the jobs in progress; to be called after the reader's end."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        ended_threads(self._threads)

    def _is_ready_or_over(self) -> bool:
        # Before it is looked whether all were taken: the reader begins, and then it ends.
        has_ended = self._has_ended
        return self._is_ready() or (has_ended and self._begun == self._taken)

    def _is_ready(self) -> bool:
        with self._lock:
            while self._done:
                job = self._done.popleft()
                self._results.finished(job.position, job)
            return self._results.is_ready()

    def _next(self) -> Job:
        with self._lock:
            job: Job = self._results.take()[1]
            self._taken += 1
        self._reader.wake()
        return job

    # The threads ----------------------------------------------------------------------

    def _start_thread(self, number: int) -> threading.Thread:
        run = contextvars.copy_context().run
        name = f"{self._settings.thread_name_prefix} {number}"
        thread = threading.Thread(target=run, args=(self._work,), name=name, daemon=True)
        start_thread(thread)
        return thread

    def _work(self) -> None:
        call = self._prepared()
        while (job := self._jobs.get()) is not None:
            job.run(call)
            self._done.append(job)
            del job
            self._consumer.wake()

    def _prepared(self) -> Callable[[Any], Any]:
        try:
            self._settings.initialize()
        except BaseException as error:  # noqa: BLE001 - user code ran; the jobs raise it
            failure = error
        else:
            return self._call

        def fail(item: Any) -> Any:
            raise failure

        return fail
