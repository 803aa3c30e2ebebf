"""One pass over several sources that are not all as far.

This file is about ``UnevenPass``: it has taken more of some sources than of others, and, where
it goes on, some may wait for their turn while the others have moved on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from asyncloader.datapipes.branches.branching import OutlastingPass
from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.datapipes.patterns.replaying import put_to_come
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.pipe.upstream import beginning, resume_one

T = TypeVar("T")


@dataclass
class UnevenPass(OutlastingPass[T]):
    """A pass that counts what it has taken of each source."""

    sources: list[Run[Any]] = field(init=False, repr=False)
    taken: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = [self.run.of(source) for source in self.pipe.sources]
        self.taken = [0] * len(self.sources)
        # Where the sources stood when this pass began, or went on: those that were not read
        # since say nothing that could be relied on.
        self._began_at = [*self.taken]
        self._began_with: list[Cursors] = [{} for _ in self.sources]

    def note_begin(self) -> None:
        """Note where the sources begin; before they do."""
        self._began_with = [beginning(source) for source in self.sources]

    def note_taken(self, turn: int) -> None:
        """Count an item of a source."""
        self.taken[turn] += 1
        self._began_with[turn] = {}

    def put_above(self, into: Cursors) -> None:
        for turn, source in enumerate(self.sources):
            if self.taken[turn] > self._began_at[turn]:
                source.put_cursors(into)
            else:
                into.update(self._began_with[turn])
                if not self.taken[turn]:
                    put_to_come(source, into)
        super().put_above(into)

    def resume_each(self, taken: Iterable[int], cursors: Cursors) -> None:
        """Let the sources go on after so many items of each."""
        self.taken = [*taken]
        self._began_at = [*self.taken]
        for source, count in zip(self.sources, self.taken, strict=True):
            resume_one(source, count, cursors)
