"""What lies above each pipe, and where a graph can be cut.

This file is about ``Reach``. A graph can be cut after a pipe only where nothing
else holds on to what is above the cut: whatever reads a pipe up there must be up
there too. Otherwise branches of one splitter, or readers of one source, would each
see a pass of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from asyncloader.datapipes.patterns.replaying import is_replayed
from asyncloader.datapipes.pipe.base import is_iter_pipe
from asyncloader.datapipes.pipe.edges import reads_twice
from asyncloader.datapipes.pipe.kinds import is_replicable, is_splitter
from asyncloader.graph.walk import Wiring


class Reach:
    """What lies above each pipe of a graph, up to its sources or to ``inlets``.

    An inlet is a pipe that runs elsewhere: it is the last that is reached.
    """

    # Sets of pipes are integers with a bit for each pipe, so that whole sets are
    # joined and compared at once.

    def __init__(self, wiring: Wiring, inlets: Sequence[Any] = ()) -> None:
        self.wiring = wiring
        self._bit = {id(pipe): 1 << place for place, pipe in enumerate(wiring.pipes)}
        self._inlets = self._set_of(inlets)
        self._upto: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        self._fixed: dict[int, bool] = {}
        for pipe in wiring.sources_first():
            self._look_up(pipe)

    def above(self, pipe: Any) -> list[Any]:
        """Return a pipe and all above it, inlets included, breadth-first."""
        reached = self._upto[id(pipe)]
        return [other for other in self.wiring.pipes if reached & self._bit[id(other)]]

    def has_above(self, pipe: Any, other: Any) -> bool:
        """Whether ``other`` is ``pipe`` or lies above it."""
        return bool(self._upto[id(pipe)] & self._bit[id(other)])

    def can_cut_after(self, pipe: Any) -> bool:
        """Whether the items of a pipe can cross to another process, and all above it stay."""
        held_by_others = self._readers[id(pipe)] & ~self._upto[id(pipe)]
        return (
            is_iter_pipe(pipe)
            and not is_splitter(pipe)
            and not held_by_others
            and self._passes_over(pipe) <= 1
        )

    def _passes_over(self, pipe: Any) -> int:
        """Return in how many passes a pipe is read."""
        readers = self.wiring.readers(pipe)
        # A pipe of the user's may know its one source by several names.
        twice = any(not is_replayed(reader) and reads_twice(reader, pipe) for reader in readers)
        return len(readers) + twice

    def can_copy(self, pipe: Any) -> bool:
        """Whether a pipe and all above it, up to the inlets, may run in several processes."""
        return not self._fixed[id(pipe)]

    def lowest_cut(self, pipes: Sequence[Any]) -> Any | None:
        """Return the pipe nearest to ``pipes`` that has them all above it and can be cut after."""
        wanted = self._set_of(pipes)
        ends = [
            pipe
            for pipe in self.wiring.pipes
            if not wanted & ~self._upto[id(pipe)] and self.can_cut_after(pipe)
        ]
        # They lie one above the other: the way from any of ``pipes`` goes through them all.
        return min(ends, key=lambda end: self._upto[id(end)].bit_count(), default=None)

    def _look_up(self, pipe: Any) -> None:
        bit, sources = self._bit[id(pipe)], self.wiring.sources(pipe)
        self._upto[id(pipe)] = bit
        self._readers[id(pipe)] = 0
        self._fixed[id(pipe)] = not is_replicable(pipe)
        if bit & self._inlets:
            self._fixed[id(pipe)] = False
            return
        for source in sources:
            self._upto[id(pipe)] |= self._upto[id(source)]
            self._readers[id(pipe)] |= self._readers[id(source)]
            self._readers[id(pipe)] |= self._set_of(self.wiring.readers(source))
            self._fixed[id(pipe)] |= self._fixed[id(source)]

    def _set_of(self, pipes: Iterable[Any]) -> int:
        return reduce(or_, (self._bit[id(pipe)] for pipe in pipes), 0)
