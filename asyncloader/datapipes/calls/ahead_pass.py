"""A pass that begins calls ahead of its reader.

This file is about ``AheadPass``: which items were read, what was handed out for them,
how many the function failed on, and how a later pass goes on from there.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.handing_out import positions_for
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.datapipes.pipe.tolerance import SKIPPED, Failure, answered

T = TypeVar("T")


class Ahead(Protocol):
    """What reads a source ahead of its consumer."""

    def set_paused(self, is_paused: bool) -> None: ...


class NothingAhead:
    """Stands for it where nothing does."""

    def set_paused(self, is_paused: bool) -> None:
        """There is nothing to pause."""


NOTHING_AHEAD = NothingAhead()


class AheadPass(Pass[T]):
    """One pass over a pipe that makes one result of each item, many at a time."""

    marks = ()
    holds_calls = True

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        pipe = run.pipe
        self.yielded = 0
        self.errors = 0
        #: The calls that were begun, as long as there are any.
        self.calls: Sized = ()
        #: How many there may be.
        self.room = 0
        #: What begins them, while something does.
        self.ahead: Ahead = NOTHING_AHEAD
        self.positions = positions_for(pipe, run.tree.course_of(pipe))
        # The position alone says where such a pass stands.
        self.is_one_to_one = pipe.ordered and pipe.tolerance.is_strict
        source = self.source
        self.above = Marks(source.put_cursors, self.positions.oldest, source.first_cursors())

    def begin(self) -> int:
        """Note that an item was read; return its position, or BEFORE if it is done already."""
        position = self.positions.begin()
        self.above.passed(self.positions.read)
        return position

    def finish(self, position: int, result: Any) -> Any:
        """Return what is handed out for a result, or SKIPPED; raise if it is an error."""
        if result.__class__ is Failure:
            result = answered(result, self)
        if result is not SKIPPED:
            self.yielded += 1
        self.positions.finish(position, self.yielded, self.errors)
        return result

    def fullness(self) -> tuple[int, int]:
        return len(self.calls), self.room

    def set_paused(self, is_paused: bool) -> None:
        self.ahead.set_paused(is_paused)

    def cursor(self) -> Cursor:
        if self.is_one_to_one:
            return {}
        counts = {"yielded": self.yielded, "errors": self.errors}
        return counts | self.positions.cursor()

    def put_above(self, into: Cursors) -> None:
        into.update(self.above.at(self.positions.oldest()))

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if self.is_one_to_one:
            cursor = {"taken": position, "yielded": position, "errors": 0}
        if cursor is None:
            return position
        self.yielded, self.errors = self.positions.go_on(cursor, position)
        oldest = self.positions.oldest()
        # Whoever holds the own cursor keeps all that is handed out from now on.
        above = {place: each for place, each in cursors.items() if each is not cursor}
        self.above.restart(oldest, above)
        self.source.resume(oldest, above)
        return position - self.yielded
