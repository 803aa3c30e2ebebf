"""Fewer items out than in.

This file is about pipes that let some items pass, unchanged and in order:
filter and header.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import blame, calling, is_async, unawaited
from asyncloader.datapipes.columns import reading
from asyncloader.datapipes.one_to_one import OneToOnePass
from asyncloader.datapipes.patterns import Pipe
from asyncloader.datapipes.recording import of_numbered
from asyncloader.datapipes.running.cursor_forms import Sieved
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.settled import Reason
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import SKIPPED, OnError, RecordedVerdicts, Tolerance, stand_in

T = TypeVar("T")


@functional_datapipe("filter")
class Filter(Pipe[T]):
    """Yield the items for which ``filter_fn(item)`` is true.

    It must return True or False, or such a scalar of NumPy or torch; a forgotten
    ``return`` is an error. ``input_col`` picks what is passed to it out of a tuple,
    list or dict.

    ``on_error="skip"`` leaves out the items that ``filter_fn`` fails on, and a function
    ``on_error(error, item)`` says True or False in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    With ``repeatable=False`` the function may answer differently the next time: what became of
    each item is recorded from here on, so that a state resumes exactly.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(6)).filter(lambda n: n % 2 == 0))
    [0, 2, 4]
    """

    makes_again = False
    State = Sieved

    def __init__(
        self,
        datapipe: Iterable[T],
        filter_fn: Callable[..., Any],
        input_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.filter_fn = checked_function("filter_fn", filter_fn)
        self.input_col = input_col
        self.repeatable = repeatable
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)
        self._keeps = reading(filter_fn, input_col)
        # Called with what is left out.
        self._leave_out: Callable[[Any], None] | None = None

    def waits(self) -> bool:
        return is_async(self.filter_fn)

    def in_section(self) -> Filter[T]:
        self._keeps = of_numbered(self._keeps)
        self.tolerance = RecordedVerdicts.of(self.tolerance)
        self._leave_out = operator.methodcaller("leave_out", Reason.FILTER)
        return self

    def run(self, source: Edge[T], state: Sieved) -> Iterator[T]:
        leave_out = self._leave_out
        with calling(self._keeps, self) as keeps:
            for item in source:
                try:
                    kept = keeps(item)
                except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                    kept = stand_in(error, item, self, state)
                    if kept is SKIPPED:
                        continue
                if kept is not False and (kept is True or self.verdict(kept)):
                    yield item
                elif leave_out is not None:
                    leave_out(item)

    def verdict(self, answer: Any) -> bool:
        """Return a non-bool answer as True or False; raise if it cannot be one."""
        if answer.__class__ is CoroutineType:
            raise unawaited(self, answer)
        if not hasattr(answer, "dtype"):
            raise ValueError(
                f"filter_fn must return True or False, got {type(answer).__name__}"
                f" from the function of {self!r}"
            )
        try:
            return bool(answer)
        except Exception as error:  # such as an array with several elements
            blame(error, self)
            raise


@functional_datapipe("header")
class Header(IterDataPipe[T]):
    """Yield the first ``limit`` items and read no further; all of them if it is None.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(100)).header(3))
    [0, 1, 2]
    """

    makes_again = False

    def __init__(self, source_datapipe: Iterable[T], limit: int | None = 10) -> None:
        self.source = iterable_source(source_datapipe)
        self.limit = None if limit is None else checked_count("limit", limit, at_least=0)

    def __len__(self) -> int:
        try:
            length = len(self.source)
        except TypeError:
            if self.limit is None:
                raise
            warnings.warn(
                f"the length of {self!r} is assumed to be its limit; its source has no length, so"
                " it may have fewer items. Use set_length to set the real length",
                stacklevel=2,
            )
            return self.limit
        return length if self.limit is None else min(length, self.limit)

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return OneToOnePass(edge)

    def run(self, source: Edge[T], state: None) -> Iterator[T]:
        """Yield the source's items up to the limit."""
        left = None if self.limit is None else max(0, self.limit - source.first_position())
        if left == 0:
            return
        # The source must not look up more at once than is yielded.
        source.at_once = 1
        items = iter(source)
        try:
            yield from islice(items, left)
        finally:
            close_items(items)
