"""One result for each item, where there is one.

This file is about ``Applier``, the base of pipes that apply a function to every item, and
``ApplyPass``, by which they go on after items that the function fails on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.datapipes.going_on.forms import SIEVE, Form, no_cursor
from asyncloader.datapipes.going_on.passes import Pass
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.reading import begin
from asyncloader.datapipes.pipe.arguments import iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.function import blame, calling, unawaited
from asyncloader.datapipes.pipe.tolerance import SKIPPED, OnError, Tolerance, stand_in

T = TypeVar("T")


class Applier(OneToOne, IterDataPipe[T]):
    """A pipe that yields what a function makes of each item, and may leave out what it cannot."""

    makes_again = False

    def __init__(
        self, datapipe: Iterable[Any], *, on_error: OnError, max_errors: int | None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)
        # One result for each item needs no pass. Where items may be left out one counts.
        self._way: Any = OneToOne if self.tolerance.is_strict else IterDataPipe

    def function(self) -> Callable[[Any], Any]:
        """Return what is called with each item."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        return self._results() if self.tolerance.is_strict else super().__iter__()

    def new_pass(self) -> ApplyPass[T]:
        return ApplyPass(self)

    def cursor_form(self) -> Form:
        return no_cursor if self.tolerance.is_strict else SIEVE

    def put_cursors(self, into: Cursors) -> None:
        self._way.put_cursors(self, into)

    def iter_from(self, position: int, cursors: Cursors) -> Iterator[T]:
        items: Iterator[T] = self._way.iter_from(self, position, cursors)
        return items

    def picks(self) -> bool:
        return self.tolerance.is_strict and super().picks()

    def _results(self) -> Iterator[T]:
        with calling(self.function(), self) as apply:
            for item in begin(self.source):
                # As answer_of would, of which a call for each item would take its time.
                try:
                    result = apply(item)
                except BaseException as error:
                    blame(error, self)
                    raise
                if result.__class__ is CoroutineType:
                    raise unawaited(self, result)
                yield result
                # Their memory, still warm, is wanted for the next.
                del item, result


@dataclass
class ApplyPass(Pass[T]):
    """One pass over an Applier that goes on after errors, which knows how many there were."""

    marks = ("taken", "yielded", "errors")

    pipe: Applier[T]
    taken: int = 0
    yielded: int = 0
    errors: int = 0

    @property
    def source(self) -> Any:
        return self.pipe.source

    def __iter__(self) -> Iterator[T]:
        with calling(self.pipe.function(), self.pipe) as apply:
            for item in begin(self.source):
                try:
                    result = apply(item)
                except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                    result = stand_in(error, item, self)
                if result.__class__ is CoroutineType:
                    raise unawaited(self.pipe, result)
                self.taken += 1
                if result is not SKIPPED:
                    self.yielded += 1
                    yield result
                # Their memory, still warm, is wanted for the next.
                del item, result
