"""Statistics that a worker reports to its loader.

This file is about ``Account``, which a process keeps while it works and reports now and then, just
before a frame that is sent anyway; and about ``WorkerStats``, which the loader shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from types import CodeType
from typing import Any

from asyncloader.datapipes.running.waits import ASKED_ABOUT
from asyncloader.datapipes.running.watch.frames import HANDING, IMPORTING
from asyncloader.datapipes.running.watch.watching import Tally, Watching
from asyncloader.errors import TransportError
from asyncloader.workers.conversation import Conversation
from asyncloader.workers.graph_part import PreparedPart
from asyncloader.workers.messages import NO_EPOCH, Tallied
from asyncloader.workers.whereabouts import SeenThread

_BETWEEN_REPORTS = 0.25


@dataclass(frozen=True)
class WorkerStats:
    """What one worker, or the dispatching process, has done in the present epoch.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(8)).sharding_filter()
    >>> with DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader:
    ...     assert len(list(loader)) == 8
    ...     [(worker.name, worker.items, worker.restarts) for worker in loader.stats().workers]
    [('worker 0', 4, 0), ('worker 1', 4, 0)]
    """

    #: Items that it made.
    items: int = 0
    #: Seconds in which it worked.
    working: float = 0.0
    #: Those of them between the pipes and the loader: encoding, sending.
    handing: float = 0.0
    #: Seconds in which it waited until the loader wanted more.
    waiting: float = 0.0
    #: Bytes of its shared memory that hold items or are held by the consumer.
    shared_used: int = 0
    #: Bytes of shared memory that it has.
    shared_bytes: int = 0
    #: What each pipe has done here; ``LoaderStats.stages`` has that of all processes together.
    pipes: tuple[Tally, ...] = ()
    #: Its name: "worker 0" is the first one; or "the dispatching process".
    name: str = ""
    #: Its process's number.
    pid: int = 0
    #: The node of a cluster on which it runs; empty on the loader's own machine.
    node: str = ""
    #: Whether it is the dispatching process.
    is_dispatcher: bool = False
    #: Items that have arrived from it and were not taken yet.
    ready: int = 0
    #: How often it died and was replaced since the loader was started.
    restarts: int = 0
    #: Of the seconds in which it worked, those in which it imported modules: each does so once.
    importing: float = 0.0

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
        self, conversation: Conversation, inside: CodeType, counts: Callable[[], list[int]]
    ) -> None:
        self._conversation = conversation
        self._counts = counts
        self._parts: Sequence[PreparedPart] = ()
        self._epoch = NO_EPOCH
        #: This thread.
        self.main = SeenThread(inside, lambda: conversation.whereabouts)
        self.watching = Watching(self.main)
        #: When to report next.
        self.due = 0.0

    def begin(self, epoch: int, parts: Sequence[PreparedPart]) -> None:
        """Begin an epoch, in which these parts are iterated."""
        if self._epoch == NO_EPOCH:
            self.main.begin()
        self._epoch, self._parts = epoch, parts
        self.main.restart()
        self.watching.begin(parts[0].edge.tree, self._pipes)
        ASKED_ABOUT[id(self.watching)] = self.watching
        self.due = monotonic() + _BETWEEN_REPORTS

    def tell(self) -> None:
        """Report to the loader what was done up to now."""
        self.due = monotonic() + _BETWEEN_REPORTS
        self._conversation.report(Tallied(self._epoch, self.tally()))

    def tally(self) -> bytes:
        """Return what was done up to now, pickled; the loader adds what it knows itself."""
        counts, main, arena = self._counts(), self.main, self._conversation.arena
        made = {id(part.end): count for part, count in zip(self._parts, counts, strict=False)}
        working, waiting = main.times()
        seconds = main.seconds()
        tally = WorkerStats(
            items=sum(counts),
            working=working,
            handing=seconds.get(HANDING, 0.0),
            importing=seconds.get(IMPORTING, 0.0),
            waiting=waiting,
            shared_used=arena.lent_bytes,
            shared_bytes=arena.mapped_bytes,
            pipes=self.watching.tallies(made),
        )
        return pickle.dumps(tally, protocol=5)

    def close(self) -> None:
        """Stop the account."""
        ASKED_ABOUT.pop(id(self.watching), None)
        self.main.end()

    def _pipes(self) -> list[Any]:
        pipes = {id(pipe): pipe for part in self._parts for pipe in part.pipes}
        return list(pipes.values())


def load_tally(data: bytes) -> WorkerStats:
    """Return a worker's tally; TransportError if the bytes hold none."""
    if not data:
        return WorkerStats()
    try:
        tally = pickle.loads(data)
    except Exception as error:
        raise TransportError(f"a tally could not be read: {error!r}") from error
    if not isinstance(tally, WorkerStats):
        raise TransportError(f"a tally is of type {type(tally).__name__}")
    return tally
