"""One iteration of a pipe.

This file is about ``Pass``: what a pipe with state knows between two items, and how
a later pass goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, put_cursors, resume
from asyncloader.errors import SnapshotError

T_co = TypeVar("T_co", covariant=True)


class Pass(Generic[T_co]):
    """One pass over a pipe, from its first item to its last.

    Where a pass stands is in its fields, never in the locals of a generator, so
    that it can be read between any two items. ``marks`` names the fields that say it:
    whole numbers, of which ``taken`` counts the source's items that the pass is done
    with, and ``yielded`` its own. Without ``marks`` a pass can begin only at its first
    item, and what comes before the item that is wanted is made and dropped.
    """

    marks: ClassVar[tuple[str, ...] | None] = None
    #: Whether what a pass holds are calls under way, so that it is busy when it is full.
    holds_calls: ClassVar[bool] = False
    source: Any

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError

    def cursor(self) -> Cursor:
        """Return where the pass stands between two items, as plain data."""
        return {name: getattr(self, name) for name in self.marks or ()}

    def put_above(self, into: Cursors) -> None:
        """Add the cursors of what the pass reads, as far as it has begun to."""
        put_cursors(self.source, into)

    def fullness(self) -> tuple[int, int]:
        """Return how many items the pass holds or has under way, and how many it may.

        To be called at any moment, in any thread; 0 and 0 where there is no such bound.
        """
        return 0, 0

    def set_paused(self, is_paused: bool) -> None:
        """Read nothing ahead of what is waited for, or do so again; from any thread."""

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        """Be where ``cursor`` says; return how many items are to be dropped from there.

        It was taken at item ``position`` or earlier; None is the beginning. ``cursors``
        are for what the pass reads.
        """
        if cursor is None:
            return position
        missing = {"taken", "yielded", *(self.marks or ())} - cursor.keys()
        if missing:
            # Of a pipe that does not say its cursor_form.
            raise SnapshotError(f"the state of a {type(self).__qualname__} has no {min(missing)!r}")
        for name in self.marks or ():
            setattr(self, name, cursor[name])
        resume(self.source, cursor["taken"], cursors)
        return position - int(cursor["yielded"])


def set_all_paused(pipes: Iterable[Any], is_paused: bool) -> None:
    """Pause the passes of pipes that are under way, or let them run ahead again."""
    for pipe in pipes:
        running = getattr(pipe, "current_pass", None)
        if isinstance(running, Pass):
            running.set_paused(is_paused)
