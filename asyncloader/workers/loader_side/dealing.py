"""Where a dispatching process stood.

This file is about ``Dealing``: the marks that a dispatching process reports, and which of
them is old enough for all of its workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncloader.datapipes.going_on.marks import thinned
from asyncloader.workers.conversation.item_frames import load_mark
from asyncloader.workers.conversation.messages import FIRST, DealStart, Mark


class Dealing:
    """The marks of one epoch, oldest first; it began, or goes on, with ``first``."""

    def __init__(self, first: Mark = FIRST) -> None:
        self._marks = [first]

    def note(self, mark: bytes) -> None:
        """Add a mark that was reported."""
        # The workers may never say that they need the older ones no more.
        self._marks = [*thinned(self._marks), load_mark(mark)]

    def start(self, pipe: int, workers: Sequence[Mark]) -> DealStart:
        """Return how dealing goes on for workers that go on from these marks."""
        dealt = _dealt(pipe, workers)
        return DealStart(self._marks[self._newest(dealt)], dealt)

    def forget_before(self, pipe: int, workers: Sequence[Mark]) -> None:
        """Keep only what workers need that go on from these marks, or from later ones."""
        del self._marks[: self._newest(_dealt(pipe, workers))]

    def _newest(self, dealt: tuple[int, ...]) -> int:
        # The next item of a worker is dealt in that worker's turn.
        first = min(taken * len(dealt) + worker for worker, taken in enumerate(dealt))
        old_enough = [at for at, mark in enumerate(self._marks) if mark.position <= first]
        return old_enough[-1] if old_enough else 0


def _dealt(pipe: int, workers: Sequence[Mark]) -> tuple[int, ...]:
    """Return how many of the items dealt to each worker its mark leaves behind."""
    return tuple(mark.cursors.get(pipe, {}).get("taken", 0) for mark in workers)
