"""Functions called in several threads.

This file is about thread_map, for functions that compute without holding the GIL,
and threadpool_map, as torchdata called it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.datapipes.calls.ahead_pass import NOTHING_AHEAD, AheadPass
from asyncloader.datapipes.calls.crew import Crew, ThreadSettings
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.going_on.handing_out import BEFORE, first_cursor, form_ahead
from asyncloader.datapipes.naming import brief_name, function_name
from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.columns import ColumnFunction
from asyncloader.datapipes.pipe.debugging import watched_plain
from asyncloader.datapipes.pipe.function import blame, is_async, unawaited
from asyncloader.datapipes.pipe.run import Run, RunTree
from asyncloader.datapipes.pipe.tolerance import SKIPPED, OnError, Tolerance, failure_of
from asyncloader.datapipes.running.makers import Makers, some_home

T = TypeVar("T")

#: Results that wait for an earlier one may be as many as this for each thread.
HELD_PER_THREAD = 2


@functional_datapipe("thread_map")
class ThreadMapper(IterDataPipe[T]):
    """Yield ``fn(item)`` for each item, with the calls spread over threads.

    For functions that release the GIL (decoders, codecs, file reads). There are
    ``concurrency`` threads, by default one for each core. Results come in the
    source's order, or with ``ordered=False`` as they are ready.

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).thread_map(str))
    ['0', '1', '2']
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        if is_async(checked_function("fn", fn)):
            raise TypeError(
                f"{self.functional_name} needs a plain function, got the async"
                f" {function_name(fn)}; use async_map"
            )
        if concurrency is not None:
            checked_count("concurrency", concurrency, at_least=1)
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.concurrency = concurrency
        self.ordered = ordered
        self.on_error = on_error
        self.max_errors = max_errors
        self._apply = ColumnFunction.of(fn, input_col, output_col)
        self.tolerance = Tolerance(on_error, max_errors)

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    def first_cursor(self, tree: RunTree) -> Cursor:
        return first_cursor(tree.course_of(self))

    def cursor_form(self) -> Form:
        return form_ahead(self)

    def has_no_order(self) -> bool:
        return not self.ordered

    def new_pass(self, run: Run[Any]) -> ThreadMapPass[T]:
        return ThreadMapPass(run)

    def new_crew(self, call: Callable[[Any], Any], turns: deque[int]) -> Crew:
        """Return the threads of one pass, which call this; some items have known turns."""
        count = self.concurrency or os.cpu_count() or 1
        return Crew(
            call,
            ThreadSettings(f"asyncloader {brief_name(self)}"),
            count=count,
            room=HELD_PER_THREAD * count,
            ordered=self.ordered,
            turns=turns,
        )

    def call(self, item: Any) -> Any:
        """Return the function's result for an item, or its Failure where that is tolerated."""
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

    #: What it holds are also results that nobody has taken yet.
    holds_calls = False

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        # The reader notes what it has read while the consumer looks where the pass stands.
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        with watched_plain(self.pipe.call, self.pipe) as call:
            crew = self.pipe.new_crew(call, self.positions.turns())
            self.calls, self.room, self.ahead = crew, crew.room, crew
            try:
                with closing(crew), some_home() as home, Makers(home) as makers:
                    reading = makers.start(self._read, crew)
                    yield from self._results(crew)
                    makers.outcome(reading)
            finally:
                self.calls, self.ahead = (), NOTHING_AHEAD

    def _results(self, crew: Crew) -> Iterator[T]:
        for job in crew.jobs():
            with self._lock:
                result = self.finish(job.position, job.outcome())
            # What is handed out is not kept alive here while the next is made.
            del job
            if result is not SKIPPED:
                yield result
            del result

    def cursor(self) -> Cursor:
        with self._lock:
            return super().cursor()

    def put_above(self, into: Cursors) -> None:
        with self._lock:
            super().put_above(into)

    def _read(self, crew: Crew) -> None:
        crew.attend()
        try:
            items = self.source.begin()
            with closing_items(items):
                for item in items:
                    with self._lock:
                        position = self.begin()
                    if position != BEFORE:
                        crew.begin(position, item)
                    del item
        finally:
            # The consumer waits for more until then, also where the source cannot be begun.
            crew.end()


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
        if unknown := threadpool_kwargs.keys() - ThreadSettings.__dataclass_fields__.keys():
            raise TypeError(
                f"threadpool_map takes {', '.join(ThreadSettings.__dataclass_fields__)} of a"
                f" ThreadPoolExecutor's options, got {', '.join(sorted(unknown))}"
            )
        self._threads = ThreadSettings(**threadpool_kwargs)
        super().__init__(
            source_datapipe, fn, input_col, output_col, on_error=on_error, max_errors=max_errors
        )

    def new_crew(self, call: Callable[[Any], Any], turns: deque[int]) -> Crew:
        return Crew(
            call,
            self._threads,
            count=self.max_workers or min(32, (os.cpu_count() or 1) + 4),
            room=self.scheduled_tasks,
            ordered=self.ordered,
            turns=turns,
        )
