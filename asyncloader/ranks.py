"""The ranks of a distributed run.

This file is about ``Group``, the little that is asked of a process group, and about the
one we have. It is the only file that knows torch.distributed.

    loop ── Statement ──▶ thread ── all_gather ──▶ other ranks
    loop ◀── what all ranks said ── thread
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import warnings
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import IntEnum, IntFlag
from queue import SimpleQueue
from typing import Any, Protocol

from asyncloader.deadline import time_left
from asyncloader.errors import RankError, RankTimeout

_CLOSE_SECONDS = 2.0


# What ranks say -------------------------------------------------------------------------


class Kind(IntEnum):
    """What a statement is about, in the order in which a loader comes to it."""

    GRAPH = 1
    WORKERS = 2
    SEED = 3
    WINDOW = 4


class Flags(IntFlag):
    """What is true of the rank that says so."""

    NONE = 0
    #: The seed was chosen by the user.
    CHOSEN = 1
    #: No item follows those counted.
    ENDED = 2
    #: An error follows those counted.
    FAILED = 4


@dataclass(frozen=True)
class Statement:
    """What a rank says to all others: five numbers of 64 bits, whatever it is about."""

    epoch: int
    kind: Kind
    window: int = 0
    count: int = 0
    flags: Flags = Flags.NONE

    @property
    def moment(self) -> tuple[int, int, int]:
        """When it is said; every rank goes through the same moments, in this order."""
        return self.epoch, self.kind, self.window

    def words(self) -> list[int]:
        """Return the statement as signed numbers of 64 bits."""
        return [word - (word >> 63 << 64) for word in astuple(self)]

    @classmethod
    def from_words(cls, words: list[int]) -> Statement:
        """Return the statement that ``words()`` were made of."""
        epoch, kind, window, count, flags = (word & 2**64 - 1 for word in words)
        return cls(epoch, Kind(kind), window, count, Flags(flags))


class Group(Protocol):
    """The little we ask of a process group, so that tests need no torch.distributed."""

    @property
    def rank(self) -> int:
        """This rank's place among all."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Say something to all ranks; return what each of them says, by rank.

        What is said n-th on one rank meets what is said n-th on every other, also where
        the call was cancelled meanwhile.
        """

    async def aclose(self) -> None:
        """Leave the other ranks, within a bounded time."""


class Alone:
    """The group of a run that has one rank."""

    rank = 0
    size = 1

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Return what was said."""
        return [statement]

    async def aclose(self) -> None:
        """There is no one to leave."""


def ranks_in_words(ranks: list[int]) -> str:
    """Return the name of some ranks: "rank 1", "ranks 1 and 2"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


# torch.distributed ----------------------------------------------------------------------


def is_initialized() -> bool:
    """Whether this process takes part in a distributed run."""
    # While nobody has imported it, nobody has initialized it.
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def world_size() -> int:
    """Return how many ranks there are; 1 where there is no distributed run."""
    if not is_initialized():
        return 1
    import torch.distributed as dist

    return dist.get_world_size()


def own_rank() -> int:
    """Return this process's rank; 0 where there is no distributed run."""
    if not is_initialized():
        return 0
    import torch.distributed as dist

    return dist.get_rank()


async def open_group(timeout: float) -> Group:
    """Open a gloo group of all ranks, which all of them do at the same time.

    It waits for each of them for up to ``timeout`` seconds, now and in every exchange.
    """
    if world_size() == 1:
        return Alone()
    group = GlooGroup(timeout)
    await group.open()
    return group


class GlooGroup:
    """A gloo group of our own; its collectives run in a thread of its own."""

    def __init__(self, timeout: float) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._talk = _Talk(self.rank, self.size, timeout)

    async def open(self) -> None:
        """Wait until all ranks have opened it; a RankError if they do not."""
        try:
            await asyncio.wrap_future(self._talk.opened)
        except asyncio.CancelledError:
            self._talk.jobs.put(None)
            raise

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Say something to all ranks; return what each of them says, by rank."""
        answer: Future[list[Statement]] = Future()
        self._talk.jobs.put((statement, answer))
        return await asyncio.wrap_future(answer)

    async def aclose(self) -> None:
        """Destroy the group, within a bounded time."""
        self._talk.jobs.put(None)
        ended = asyncio.wrap_future(self._talk.ended)
        seconds = time_left(_CLOSE_SECONDS)
        await asyncio.wait([ended], timeout=seconds)
        if not ended.done():
            warnings.warn(
                f"rank {self.rank} still waited for the others {seconds:.1f} s after its"
                " loader was closed; its group is destroyed when they answer, or after the timeout",
                ResourceWarning,
                stacklevel=2,
            )


_Job = tuple[Statement, "Future[list[Statement]]"]


class _Talk:
    """The thread of a group: it opens the group, talks, and destroys the group."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.opened: Future[None] = Future()
        self.ended: Future[None] = Future()
        # Who stops waiting for these does not undo them.
        self.opened.set_running_or_notify_cancel()
        self.ended.set_running_or_notify_cancel()
        threading.Thread(target=self._run, name="asyncloader ranks", daemon=True).start()

    def _run(self) -> None:
        self._open_and_answer()
        # The group is gone by now. Its own threads must not outlive the interpreter.
        self.ended.set_result(None)

    def _open_and_answer(self) -> None:
        import torch.distributed as dist

        began = time.monotonic()
        try:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
        except Exception as error:  # noqa: BLE001 - whatever it is, a rank is missing
            self.opened.set_exception(self._lost([], began, error))
            return
        self.opened.set_result(None)
        lost: RankError | None = None
        while (job := self.jobs.get()) is not None:
            statement, answer = job
            if not answer.set_running_or_notify_cancel():
                continue
            if lost is None:
                began = time.monotonic()
                try:
                    answer.set_result(self._gathered(group, statement))
                    continue
                except Exception as error:  # noqa: BLE001 - whatever it is, a rank is missing
                    lost = self._lost(self._broken(group), began, error)
                # The others are to know at once, too.
                _destroy(group)
                group = None
            answer.set_exception(lost.with_traceback(None))
        if group is not None:
            _destroy(group)

    def _gathered(self, group: Any, statement: Statement) -> list[Statement]:
        import torch
        import torch.distributed as dist

        own = torch.tensor(statement.words(), dtype=torch.int64)
        said = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(said, own, group=group)
        return [Statement.from_words(words.tolist()) for words in said]

    def _broken(self, group: Any) -> list[int]:
        """Return the ranks to which the connection is broken."""
        import torch
        import torch.distributed as dist

        broken = []
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    # A broken connection says so before anything is sent.
                    dist.isend(torch.zeros(1), rank, group=group)
                except Exception:  # noqa: BLE001 - that is the answer
                    broken.append(rank)
        return broken

    def _lost(self, broken: list[int], began: float, error: Exception) -> RankError:
        is_late = time.monotonic() - began >= 0.9 * self.timeout
        # A connection on which one waited too long is broken as well, whoever is late.
        known = [1 - self.rank] if self.size == 2 else [] if is_late else broken
        who = ranks_in_words(known) if known else "another rank"
        if is_late:
            lost: RankError = RankTimeout(
                f"rank {self.rank} waited {self.timeout:g} s for {who}; give the reading service"
                " a longer timeout if that may happen",
                ranks=tuple(known),
            )
        else:
            lost = RankError(
                f"rank {self.rank} lost {who}, whose process ended, or whose loader was closed"
                " before its epoch was over; see what that rank printed",
                ranks=tuple(known),
            )
        lost.__cause__ = error.with_traceback(None)
        return lost


def _destroy(group: Any) -> None:
    import torch.distributed as dist

    try:
        dist.destroy_process_group(group)
    except (ValueError, AssertionError):
        # The user has destroyed all groups already.
        return
