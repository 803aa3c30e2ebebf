"""Failures of a user's function on single items.

This file is about ``on_error`` and ``max_errors``, and about ``listening_for_omissions``: a cache
asks whether items were left out because they failed, since it must not keep such a result. The
items may succeed the next time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event
from types import CoroutineType
from typing import Any, Literal

from asyncloader.arguments import check_takes, checked_count, checked_flag
from asyncloader.datapipes.call import blame, is_async, unawaited
from asyncloader.datapipes.running.cursor_forms import copied
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import keeps_results
from asyncloader.datapipes.settled import Reason
from asyncloader.errors import TooManyErrors

# Who listens for what is left out. Threads and tasks of a pass inherit the context in which the
# pass began.
_LISTENING: ContextVar[tuple[Event, ...]] = ContextVar("asyncloader_omissions", default=())


@contextlib.contextmanager
def listening_for_omissions() -> Iterator[Event]:
    """Give an event that is set when anything is left out in this context."""
    omission = Event()
    token = _LISTENING.set((*_LISTENING.get(), omission))
    try:
        yield omission
    finally:
        _LISTENING.reset(token)


def note_omission() -> None:
    """Tell the listeners of this context that something is left out."""
    for omission in _LISTENING.get():
        omission.set()


#: "raise" ends the pass, "skip" leaves the item out, and a function of the error and the
#: item returns a replacement (or raises).
OnError = Literal["raise", "skip"] | Callable[[Exception, Any], Any]


class Failure:
    """The result of a failed call, for a pipe that tolerates errors."""

    __slots__ = ("error", "item")

    def __init__(self, error: Exception, item: Any) -> None:
        self.error = error
        self.item = item


#: The result of an item that is left out.
SKIPPED: Any = object()


@dataclass(frozen=True)
class Tolerance:
    """What a pipe does when its function fails on an item."""

    on_error: OnError = "raise"
    max_errors: int | None = None

    def __post_init__(self) -> None:
        if not (self.on_error in ("raise", "skip") or callable(self.on_error)):
            raise ValueError(
                f'on_error must be "raise", "skip" or a function of the error and the item,'
                f" got {self.on_error!r}"
            )
        if is_async(self.on_error):
            raise TypeError("on_error must be a plain function, got an async one")
        if callable(self.on_error):
            check_takes("on_error", self.on_error, 2)
        if self.max_errors is not None:
            checked_count("max_errors", self.max_errors, at_least=0)
            if self.is_strict:
                raise ValueError('max_errors goes with on_error="skip" or a function')

    @functools.cached_property
    def is_strict(self) -> bool:
        """Whether the first failure ends the pass."""
        return self.on_error == "raise"

    @property
    def leaves_out(self) -> bool:
        """Whether there may be fewer results than items."""
        return self.on_error == "skip"

    def length(self, pipe: object, source: Any) -> int:
        """Return the source's length; raise TypeError if items may be left out."""
        if self.leaves_out:
            raise TypeError(f"{stage_name(pipe)} leaves out what fails, so it has no length")
        return len(source)

    def answer(self, pipe: object, failure: Failure, errors: int) -> Any:
        """Return the replacement for a result, or SKIPPED; raise if there are too many errors.

        ``errors`` is how many items failed in this pass, this one included.
        """
        if self.max_errors is not None and errors > self.max_errors:
            raise TooManyErrors(
                f"{stage_name(pipe)} failed on {errors} items, which is more than"
                f" max_errors={self.max_errors}; the last error is the cause",
                errors=errors,
            ) from failure.error
        if not callable(self.on_error):
            return SKIPPED
        return self._stand_in(pipe, failure)

    def _stand_in(self, pipe: object, failure: Failure) -> Any:
        assert callable(self.on_error)
        try:
            result = self.on_error(failure.error, failure.item)
        except BaseException as error:
            blame(error, pipe)
            raise
        if result.__class__ is CoroutineType:
            raise unawaited(pipe, result)
        return result


def checked_keeping(keep_results: bool, repeatable: bool) -> bool:
    """Return ``keep_results``; ValueError if it is no bool, or True of what repeats."""
    if checked_flag("keep_results", keep_results) and repeatable:
        raise ValueError(
            "keep_results=True goes with repeatable=False: what repeats is made again after a"
            " resume"
        )
    return bool(keep_results)


class RecordedTolerance(Tolerance):
    """What a pipe does with numbered items (see ``recording.py``) that its function fails on."""

    def answer(self, pipe: object, failure: Failure, errors: int) -> Any:
        numbered = failure.item
        number, ledger = number_of(pipe), numbered.ledger
        errors += ledger.failed_before(number)
        result = super().answer(pipe, Failure(failure.error, numbered.item), errors)
        ledger.note_failure(number, numbered.key)
        if result is SKIPPED:
            numbered.leave_out(Reason.ERROR)
            return SKIPPED
        if keeps_results(pipe) and number is not None:
            ledger.keep(number, numbered.key, copied(result))
        return self.answered(numbered, result)

    def answered(self, numbered: Any, result: Any) -> Any:
        """Return what the pipe gets in place of its function's result."""
        return numbered.with_item(result)

    @classmethod
    def of(cls, tolerance: Tolerance) -> Tolerance:
        """Return the same tolerance, for numbered items."""
        return cls(tolerance.on_error, tolerance.max_errors)


class RecordedVerdicts(RecordedTolerance):
    """What a filter does in a section when its function fails on an item."""

    def answered(self, numbered: Any, result: Any) -> Any:
        return result


def stand_in(error: BaseException, item: Any, pipe: Any, state: Any) -> Any:
    """Return the replacement for the result of an item on which a pipe failed, or SKIPPED.

    Call this where the error is caught. An error that is not tolerated is raised again; others
    are counted in ``state.errors``.
    """
    if pipe.tolerance.is_strict:
        blame(error, pipe)
        raise error
    return answered(failure_of(error, item, pipe), pipe, state)


def answered(failure: Failure, pipe: Any, state: Any) -> Any:
    """Return the replacement for a failed result, or SKIPPED; count it in ``state.errors``."""
    errors = state.errors + 1
    result = pipe.tolerance.answer(pipe, failure, errors)
    # With one error too many the pass ends, and the item does not count as done.
    state.errors = errors
    if result is SKIPPED:
        note_omission()
    return result


def failure_of(error: BaseException, item: Any, pipe: object) -> Failure:
    """Return the Failure of a pipe's function on an item.

    Call this where the error is caught. Errors that end the process or the pass are not
    failures of the function: they are raised again.
    """
    try:
        blame(error, pipe)
    except RuntimeError as instead:
        return Failure(instead, item)
    if not isinstance(error, Exception):
        raise error
    return Failure(error, item)
