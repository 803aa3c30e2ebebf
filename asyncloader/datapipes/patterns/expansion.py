"""Several items out of one.

This file is about ``Expansion``: a pass that takes each of its source's items apart, and
knows how far it is inside the one that it took last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, dropped
from asyncloader.datapipes.going_on.forms import Rule, counts, fields, truth
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.pipe.run import Pass

T = TypeVar("T")

_INSIDE: Rule = (
    "a pass is inside an item that it has taken, and has yielded parts of that one alone",
    lambda cursor: (cursor["taken"] > 0) if cursor["inside"] else not cursor["offset"],
)
_FIELDS = {**counts("taken", "offset", "before"), "inside": truth}

#: Of an Expansion, and of a TolerantExpansion.
EXPANSION = fields(_FIELDS, _INSIDE)
TOLERANT_EXPANSION = fields(_FIELDS | counts("errors_before"), _INSIDE)


def yielded_at(cursor: Cursor) -> int:
    """Return how many parts were yielded where a cursor of an Expansion was taken."""
    return int(cursor["before"] + cursor["offset"])


@dataclass
class Expansion(Pass[T]):
    """One pass over a pipe that yields several items for each that it takes.

    ``taken`` counts the items that were taken, ``offset`` the parts of the last of them
    that were yielded, while the pass is ``inside`` it. To go on there, the item is taken
    once more.
    """

    marks: ClassVar[tuple[str, ...]] = ("taken", "inside", "offset", "before")

    taken: int = field(default=0, kw_only=True)
    inside: bool = field(default=False, kw_only=True)
    offset: int = field(default=0, kw_only=True)
    #: How many parts were yielded of the items before.
    before: int = field(default=0, kw_only=True)
    above: Marks = field(init=False, repr=False)
    _known: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source
        self.above = Marks(source.put_cursors, lambda: self.taken - 1, source.first_cursors())

    def begin(self) -> Iterator[Any]:
        """Yield the source's items, counting them."""
        for item in self.source.begin():
            self.taken += 1
            self.inside = True
            self.offset = 0
            yield item

    def known(self) -> int:
        """Return how many parts of the item that was taken last were yielded already."""
        self.offset, self._known = self._known, 0
        return self.offset

    def rest(self, parts: Iterator[T]) -> Iterator[T]:
        """Return the parts of an item without those that were yielded already."""
        return dropped(parts, self.known())

    def finish(self) -> None:
        """Note that all of the item's parts were yielded."""
        self.before += self.offset
        self.offset = 0
        self.inside = False
        self.above.passed(self.taken)

    def put_above(self, into: Cursors) -> None:
        into.update(self.above.at(self.taken - self.inside))

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.taken = cursor["taken"] - cursor["inside"]
        self._known = cursor["offset"]
        self.before = cursor["before"]
        self.above.restart(self.taken, cursors)
        self.source.resume(self.taken, cursors)
        return position - self.before - self._known


@dataclass
class TolerantExpansion(Expansion[T]):
    """An expansion that counts the items that could not be taken apart, or not to their end."""

    marks: ClassVar[tuple[str, ...]] = (*Expansion.marks, "errors_before")

    errors: int = field(default=0, kw_only=True)
    #: How many of the errors were those of items before the last.
    errors_before: int = field(default=0, kw_only=True)

    def finish(self) -> None:
        super().finish()
        self.errors_before = self.errors

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is not None:
            self.errors = self.errors_before = cursor["errors_before"]
        return super().go_on(position, cursor, cursors)
