"""One item for each of a source.

This file is about ``OneToOne``, pipes that need no cursor: their position is their source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.base import most_items
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.traits import is_ours, picks


class OneToOne:
    """A pipe that yields one item for each of ``self.source``, in the same order.

    It needs no cursor of its own. Name it first among a class's bases.
    """

    source: Any

    def run(self, source: Edge[Any], state: Any) -> Iterator[Any]:
        """Read the source and yield one item for each of its items; there is no state."""
        raise NotImplementedError

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        """Return a pass that begins at the first item."""
        return OneToOnePass(edge)

    def most_items(self) -> int:
        """Return a bound of how many items there are: as many as the source has."""
        return most_items(self.source)

    def picks(self) -> bool:
        """Whether single items can be made without those before them."""
        return picks(self.source)


@dataclass
class OneToOnePass(Pass[Any]):
    """One pass over a OneToOne, at the position of its source."""

    follows_source = True

    def __iter__(self) -> Iterator[Any]:
        self.source.at_once = self.edge.at_once
        items: Iterator[Any] = self.pipe.run(self.source, None)
        return items

    def iter_at(self, positions: list[int]) -> Iterator[Any]:
        self.source.pick(positions)
        return iter(self)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.source.resume(position, cursors)
        return 0


def is_one_to_one(pipe: Any) -> bool:
    """Whether a pipe yields at most one item for each of its source; no for a user's subclass."""
    return isinstance(pipe, OneToOne) and is_ours(pipe)
