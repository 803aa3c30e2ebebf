"""Calls that run ahead of their consumer.

This file is about ``CallsAhead``, a pipe that calls a function for many items at a time, and about
``AheadPass``, its pass: which items were read, what was yielded for them, and how a later pass
resumes. Of many results the oldest comes first (``OldestFirst``), or whichever is ready
(``ReadyFirst``).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sized
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from asyncloader.arguments import function_name
from asyncloader.datapipes.attempts import Attempts, ErrorTypes
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.call import itself
from asyncloader.datapipes.columns import changed_columns
from asyncloader.datapipes.recording import on_numbered
from asyncloader.datapipes.resources import checked_resource
from asyncloader.datapipes.running.cursor_forms import Fields, Sieved
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import (
    SKIPPED,
    Failure,
    OnError,
    RecordedTolerance,
    Tolerance,
    answered,
    checked_keeping,
)
from asyncloader.tuning import Bounds, Tuning, Window

logger = logging.getLogger("asyncloader")

T = TypeVar("T")
C = TypeVar("C")


#: What was found for pipes whose concurrency is "auto", for their later passes in this process.
_found: WeakKeyDictionary[Any, Tuning] = WeakKeyDictionary()

#: A window of measuring is at least so long, and has at least so many items for each call.
_WINDOW_SECONDS = 0.4
_WINDOW_ITEMS = 2
#: A window in which the consumer was away for so long in a row says nothing.
_AWAY_SECONDS = 2.0


class Concurrency:
    """How many calls a pass makes at a time, where that is found by measuring.

    All methods but ``worked`` belong to the consumer.
    """

    def __init__(self, pipe: Any, first: int, bounds: Bounds) -> None:
        self._pipe = pipe
        self._bounds = bounds
        self._tuning = _found.get(pipe) or Tuning(first)
        # Seconds of calls, by thread: each thread writes only its own.
        self._worked: Counter[int] = Counter()
        self._begin()

    @property
    def number(self) -> int:
        """How many calls there may be."""
        return self._tuning.number

    def worked(self, thread: int, seconds: float) -> None:
        """Note for how long a thread, or a call, was at work."""
        self._worked[thread] += seconds  # type: ignore[assignment]  # a number

    def timed(self, call: Callable[[Any], Any], item: Any) -> Any:
        """Call a function, and note for how long it is at work in this thread."""
        begun = perf_counter()
        try:
            return call(item)
        finally:
            self.worked(get_ident(), perf_counter() - begun)

    def begin_wait(self) -> None:
        """Note that the consumer begins to wait."""
        now = perf_counter()
        if now - self._latest > _AWAY_SECONDS:
            self._begin()
        self._waits_since = now

    def took(self, items: int) -> bool:
        """Note that the consumer has taken items; return whether the number is another now."""
        self._latest = now = perf_counter()
        if self._waits_since:
            self._waited += now - self._waits_since
            self._waits_since = 0.0
        self._items += items
        seconds, number = now - self._since, self.number
        if seconds < _WINDOW_SECONDS or self._items < _WINDOW_ITEMS * number:
            return False
        busy = min(1.0, sum(self._worked.values()) / (number * seconds))
        window = Window(seconds, self._items, min(1.0, self._waited / seconds), busy)
        was_kept = self._tuning.kept is not None
        _found[self._pipe] = self._tuning = self._tuning.after(window, self._bounds)
        if self._tuning.kept is not None and not was_kept:
            logger.info("%r: concurrency=%d, chosen: %s", self._pipe, self.number, self._tuning.why)
        self._begin()
        return self.number != number

    def _begin(self) -> None:
        self._since = self._latest = perf_counter()
        self._items, self._waited, self._waits_since = 0, 0.0, 0.0
        self._worked.clear()


class CallsAhead(IterDataPipe[T]):
    """A pipe that calls a function for each item, many calls at a time.

    Who calls it is said by ``new_pass``. A subclass has a constructor of its own, with defaults.
    """

    #: Whether each result is that of one item.
    calls_for_each = True

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any,
        output_col: Any,
        resource: Callable[[], Any] | None,
        concurrency: Any,
        ordered: bool,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.resource = None if resource is None else checked_resource(resource)
        self.concurrency = concurrency
        self.ordered = ordered
        more = 0 if resource is None else 1
        self._columns = changed_columns(fn, input_col, output_col, more=more)
        self._wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = itself

    def set_attempts(
        self, timeout: float | None, retries: int, retry_on: ErrorTypes, backoff: float
    ) -> None:
        """Say how long a call may take, and which are made again; a constructor does."""
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on
        self.backoff = backoff
        self._attempts = Attempts(timeout, retries, retry_on, backoff, function_name(self.fn))

    def set_outcomes(
        self, on_error: OnError, max_errors: int | None, repeatable: bool, keep_results: bool
    ) -> None:
        """Say what becomes of errors, and of results in a state; a constructor does."""
        self.on_error = on_error
        self.max_errors = max_errors
        self.repeatable = repeatable
        self.keep_results = checked_keeping(keep_results, repeatable)
        self.tolerance = Tolerance(on_error, max_errors)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        self._wrap = wrap
        return self.tolerance.is_strict

    def in_section(self) -> Any:
        self.carry(partial(on_numbered, pipe=self))
        self.tolerance = RecordedTolerance.of(self.tolerance)
        return self

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    @property
    def State(self) -> type[Fields] | None:  # type: ignore[override]
        return Sieved if self.ordered and not self.tolerance.is_strict else None

    def has_no_order(self) -> bool:
        return not self.ordered


class AheadPass(Pass[T]):
    """One pass over a pipe that calls a function for each item, with many calls running."""

    holds_calls = True
    runs_ahead = True

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        pipe = edge.pipe
        self.yielded = 0
        self.errors = 0
        #: The calls that have begun and whose results were not taken.
        self.calls: Sized = ()
        #: How many of them there may be.
        self.room = 0
        #: How many items were read, and of how many the results were yielded, or left out.
        self.read = self.done = 0
        # Such a pass needs no cursor: its reader's position says it all.
        self.is_one_to_one = pipe.ordered and pipe.tolerance.is_strict

    @property
    def has_place(self) -> bool:  # type: ignore[override]  # of one pipe it is always the same
        """Whether it can begin elsewhere than at its first item: not without an order."""
        return bool(self.pipe.ordered)

    def lags(self) -> bool:
        return self.has_place

    def begin(self) -> int:
        """Note that an item was read; return its position."""
        position = self.read
        self.read += 1
        return position

    def finish(self, result: Any) -> Any:
        """Return what to yield for a result, or SKIPPED; raise if it is an error."""
        if result.__class__ is Failure:
            result = answered(result, self.pipe, self)
        if result is not SKIPPED:
            self.yielded += 1
        self.done += 1
        return result

    @property
    def taken(self) -> int:
        """How many items were read."""
        return self.read

    def fullness(self) -> tuple[int, int]:
        return len(self.calls), self.room

    def cursor(self) -> Cursor:
        if self.is_one_to_one:
            return {}
        return Sieved(taken=self.done, yielded=self.yielded, errors=self.errors).saved()

    def needs(self) -> int:
        return self.done

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if self.is_one_to_one:
            cursor = {"taken": position, "yielded": position, "errors": 0}
        if cursor is None:
            return position
        self.yielded, self.errors = cursor["yielded"], cursor["errors"]
        self.read = self.done = cursor["taken"]
        self.source.resume(self.done, cursors)
        return position - self.yielded


class OldestFirst(Generic[C]):
    """Calls whose results are taken in the order in which the calls began."""

    def __init__(self) -> None:
        self._calls: deque[C] = deque()
        #: The finished calls.
        self._done: set[C] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def begun(self, call: C) -> None:
        """Note that the next item has its call."""
        self._calls.append(call)

    def finished(self, call: C) -> None:
        """Note that a call is done."""
        self._done.add(call)

    def is_ready(self) -> bool:
        """Whether there is one to take."""
        return bool(self._calls) and self._calls[0] in self._done

    def take(self) -> C:
        """Return the next."""
        call = self._calls.popleft()
        self._done.remove(call)
        return call

    def clear(self) -> None:
        """Forget them all."""
        self._calls.clear()
        self._done.clear()


class ReadyFirst(Generic[C]):
    """Calls whose results are taken as they finish."""

    def __init__(self) -> None:
        self._ready: deque[C] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def begun(self, call: C) -> None:
        """Note that the next item has its call."""

    def finished(self, call: C) -> None:
        """Note that a call is done."""
        self._ready.append(call)

    def is_ready(self) -> bool:
        """Whether there is one to take."""
        return bool(self._ready)

    def take(self) -> C:
        """Return the next."""
        return self._ready.popleft()

    def clear(self) -> None:
        """Forget them all."""
        self._ready.clear()


def calls_in_order(ordered: bool) -> OldestFirst[Any] | ReadyFirst[Any]:
    """Return what keeps the calls of one pass in the order of their results."""
    return OldestFirst() if ordered else ReadyFirst()
