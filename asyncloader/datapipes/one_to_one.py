"""One item for each of a source.

This file is about ``OneToOne``: pipes whose place is that of their source.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors, pick, picks, put_cursors, resume


class OneToOne:
    """A pipe that yields one item for each of ``self.source``, in the same order.

    Its place is that of its source. Name it first among a class's bases.
    """

    source: Any

    def put_cursors(self, into: Cursors) -> None:
        """Add where all above the pipe stand."""
        put_cursors(self.source, into)

    def iter_from(self, position: int, cursors: Cursors) -> Iterator[Any]:
        """Iterate what follows the first ``position`` items."""
        resume(self.source, position, cursors)
        return iter(self)  # type: ignore[call-overload,no-any-return]  # of a pipe

    def aiter_from(self, position: int, cursors: Cursors) -> AsyncIterable[Any]:
        """Iterate what follows the first ``position`` items, on the running loop."""
        resume(self.source, position, cursors)
        return self  # type: ignore[return-value]  # a pipe

    def picks(self) -> bool:
        """Whether single items can be had by themselves."""
        return picks(self.source)

    def iter_at(self, positions: list[int]) -> Iterator[Any]:
        """Iterate the items at these positions."""
        pick(self.source, positions)
        return iter(self)  # type: ignore[call-overload,no-any-return]  # of a pipe


def is_one_to_one(pipe: Any) -> bool:
    """Whether a pipe yields at most one item for each; a class of a user may do otherwise."""
    return isinstance(pipe, OneToOne) and is_ours(pipe)


def is_ours(pipe: Any) -> bool:
    """Whether a pipe is of a class of this package, and so yields what that says."""
    return type(pipe).__module__.startswith("asyncloader.")
