"""Statistics that a worker reports to its loader.

This file is about ``Account``, which a process keeps while it works and reports now and then, just
before a frame that is sent anyway; and about ``WorkerStats``, which the loader shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import CodeType
from typing import Any

from asyncloader.datapipes.watch.frames import HANDING
from asyncloader.datapipes.watch.watching import SAMPLER, Tally, Watched, Watching, tallies_of
from asyncloader.errors import TransportError
from asyncloader.workers.conversation import Conversation
from asyncloader.workers.graph_part import PreparedPart
from asyncloader.workers.messages import NO_EPOCH, Tallied

_BETWEEN_REPORTS = 0.1


@dataclass(frozen=True)
class WorkerTally:
    """What a worker has done in the present epoch, as it reports."""

    items: int = 0
    #: Seconds in which it worked, those of them between the pipes and the loader (encoding,
    #: sending), and seconds in which it waited until the loader wanted more.
    working: float = 0.0
    handing: float = 0.0
    waiting: float = 0.0
    #: Bytes of shared memory that hold items or are held by the consumer, and all there are.
    shared_used: int = 0
    shared_bytes: int = 0
    pipes: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class WorkerStats(WorkerTally):
    """A worker's statistics in the present epoch."""

    name: str = ""
    pid: int = 0
    is_dispatcher: bool = False
    #: Items that have arrived from it and were not taken yet.
    ready: int = 0
    #: How often it died and was replaced since the loader was started.
    restarts: int = 0

    @property
    def rate(self) -> float:
        """Items per second."""
        seconds = self.working + self.waiting
        return self.items / seconds if seconds else 0.0


class Account:
    """What this process has done in the present epoch.

    ``counts`` returns how many items each of the last pipes has made; ``inside`` is the
    function within which this thread iterates them.
    """

    def __init__(
        self,
        conversation: Conversation,
        watching: Watching,
        inside: CodeType,
        counts: Callable[[], list[int]],
    ) -> None:
        self._conversation = conversation
        self._watching = watching
        self._counts = counts
        self._watched = Watched(list, inside)
        self._parts: list[PreparedPart] = []
        self._epoch = NO_EPOCH
        self._due = 0.0

    def begin(self, epoch: int, parts: Sequence[PreparedPart]) -> None:
        """Begin an epoch, in which these parts are iterated."""
        if self._epoch == NO_EPOCH:
            SAMPLER.watch(self._watched)
        self._epoch = epoch
        self._parts = list(parts)
        self._watched.restart(self._pipes)
        self._watching.begin(self._pipes)
        self._watching.own(self._watched)
        self._due = perf_counter() + _BETWEEN_REPORTS

    def rest(self) -> None:
        """Note that the process begins to wait for the loader."""
        self._watched.rest()

    def resume(self) -> None:
        """Note that the process works again."""
        self._watched.resume()

    def tell_if_due(self) -> None:
        """Report to the loader, if the last report was some time ago."""
        if perf_counter() >= self._due:
            self.tell()

    def tell(self) -> None:
        """Report to the loader what was done up to now."""
        self._due = perf_counter() + _BETWEEN_REPORTS
        self._conversation.report(Tallied(self._epoch, self.tally()))

    def tally(self) -> bytes:
        """Return what was done up to now, pickled."""
        return pickle.dumps(self._tally(), protocol=5)

    def close(self) -> None:
        """Stop the account."""
        self._watched.end()

    def _pipes(self) -> list[Any]:
        pipes = {id(pipe): pipe for part in self._parts for pipe in part.pipes}
        return list(pipes.values())

    def _tally(self) -> WorkerTally:
        counts, watched, arena = self._counts(), self._watched, self._conversation.arena
        made = {id(part.end): count for part, count in zip(self._parts, counts, strict=False)}
        return WorkerTally(
            items=sum(counts),
            working=watched.working(),
            handing=watched.seconds().get(HANDING, 0.0),
            waiting=watched.waiting(),
            shared_used=arena.lent_bytes,
            shared_bytes=arena.mapped_bytes,
            pipes=tallies_of(self._watching, made),
        )


def load_tally(data: bytes) -> WorkerTally:
    """Return a worker's tally; TransportError if the bytes hold none."""
    if not data:
        return WorkerTally()
    try:
        tally = pickle.loads(data)
    except Exception as error:
        raise TransportError(f"a tally could not be read: {error!r}") from error
    if not isinstance(tally, WorkerTally):
        raise TransportError(f"a tally is of type {type(tally).__name__}")
    return tally
