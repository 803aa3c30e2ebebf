"""A pass that is done with what it has taken only later.

This file is about ``LaggingPass``: it knows where its source stood when all that it had
taken was done with, so that a later pass takes what was not once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import counts, fields
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.pipe.run import Pass

T = TypeVar("T")

#: Of a LaggingPass.
LAGGING = fields(counts("taken", "yielded"))


@dataclass
class LaggingPass(Pass[T]):
    """One pass over a pipe: ``taken`` items are done with, and those after them are held."""

    marks: ClassVar[tuple[str, ...]] = ("taken", "yielded")

    taken: int = field(default=0, kw_only=True)
    yielded: int = field(default=0, kw_only=True)
    above: Marks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.above = Marks(self.source.put_cursors, lambda: self.taken)

    def put_above(self, into: Cursors) -> None:
        into.update(self.above.at(self.taken))

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        behind = super().go_on(position, cursor, cursors)
        self.above.restart(self.taken, cursors)
        return behind
