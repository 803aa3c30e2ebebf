"""One result for each item, where there is one.

This file is about ``Applier``, the base of pipes that apply a function to every item, and
``ApplyPass``, by which they go on after items that the function fails on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.forms import SIEVE, Form, no_cursor
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.pipe.arguments import iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.function import blame, calling, unawaited
from asyncloader.datapipes.pipe.run import Pass, Run
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

    def function(self) -> Callable[[Any], Any]:
        """Return what is called with each item."""
        raise NotImplementedError

    def new_pass(self, run: Run[Any]) -> Pass[T]:
        # One result for each item needs no counting. Where items may be left out one counts.
        return OneToOnePass(run) if self.tolerance.is_strict else ApplyPass(run)

    def cursor_form(self) -> Form:
        return no_cursor if self.tolerance.is_strict else SIEVE

    def picks(self) -> bool:
        return self.tolerance.is_strict and super().picks()

    def results(self, source: Run[Any]) -> Iterator[T]:
        with calling(self.function(), self) as apply:
            for item in source.begin():
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

    taken: int = 0
    yielded: int = 0
    errors: int = 0

    def __iter__(self) -> Iterator[T]:
        with calling(self.pipe.function(), self.pipe) as apply:
            for item in self.source.begin():
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
