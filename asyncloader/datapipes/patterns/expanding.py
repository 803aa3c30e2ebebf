"""Many items out of one.

This file is about ``Expander``, the base of pipes that read their items out of
another's, as lines out of files and members out of archives: which item of the source
a pass is in, and how far inside.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.patterns.expansion import (
    TOLERANT_EXPANSION,
    TolerantExpansion,
    yielded_at,
)
from asyncloader.datapipes.patterns.parts import parts_of, pass_over
from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.pipe.arguments import iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.pipe.tolerance import OnError, Tolerance

T = TypeVar("T")


class Expander(IterDataPipe[T]):
    """A pipe that yields the parts of each item of its source, one item after another."""

    source: Iterable[Any]

    #: What is done about an item that cannot be taken apart, or not to its end.
    tolerance = Tolerance()

    def parts(self, item: Any, skip: int = 0) -> Generator[T, None, None]:
        """Yield the parts of an item in order, without the first ``skip``.

        What it opens it closes, also when it is closed in between.
        """
        raise NotImplementedError

    def new_pass(self, run: Run[Any]) -> ExpansionPass[T]:
        return ExpansionPass(run)

    def cursor_form(self) -> Form:
        return TOLERANT_EXPANSION

    def yielded_at(self, cursor: Cursor) -> int:
        return yielded_at(cursor)


class TolerantExpander(Expander[T]):
    """An expander that goes on after such items, where that is wanted."""

    def __init__(
        self, datapipe: Iterable[Any], *, on_error: OnError, max_errors: int | None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)


@dataclass
class ExpansionPass(TolerantExpansion[T]):
    """One pass over an Expander. What was yielded of the item it goes on in is passed over."""

    def __iter__(self) -> Iterator[T]:
        for item in self.begin():
            parts = self._parts(item)
            with closing_items(parts):
                del item
                for part in parts:
                    self.offset += 1
                    yield part
                    # The part just yielded is not kept alive here while the next is made.
                    del part
            self.finish()

    def _parts(self, item: Any) -> Iterator[T]:
        known = self.known()
        if self.pipe.tolerance.is_strict:
            parts: Iterator[T] = self.pipe.parts(item, known)
            return parts
        # What stands in for the rest of an item comes again only where the item fails again.
        parts = parts_of(self, self.pipe.parts, item)
        pass_over(parts, known, self.pipe)
        return parts
