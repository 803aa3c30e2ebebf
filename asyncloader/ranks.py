"""The ranks of a distributed run, and what they say to one another.

This file is about the run that this process takes part in, about ``RankGroup``, the little that is
asked of a process group, and about ``Statement``, a few numbers of a fixed size. It is the only
file that knows torch.distributed.

    loop ── Statement ──▶ thread ── to each by itself ──▶ other ranks
    loop ◀── what all ranks said ── thread
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import IntEnum, IntFlag
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from asyncloader.deadline import time_left
from asyncloader.errors import RankError, RankTimeout
from asyncloader.runtime import at_exit, start_thread, uncancellable
from asyncloader.system import in_forked_child
from asyncloader.waiting import AwaitsOthers

#: After how long a rank that waits for others to open a group looks for them, first and at last;
#: where more than so many wait, the less often: one process answers them all. Nothing could end a
#: wait in the store when the loader is closed.
_FIRST_LOOK_SECONDS = 0.001
_LAST_LOOK_SECONDS = 0.1
_LOOKING_RANKS = 64

#: How long a closing rank waits for others that may still answer; and then at most until gloo
#: has let go, which takes milliseconds unless the machine is very busy.
_PATIENCE_SECONDS = 0.5
_ABORT_SECONDS = 1.5

#: After how many seconds of waiting for another rank the log says so, once a wait.
WARN_SECONDS = 60.0

logger = logging.getLogger("asyncloader")


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


def place_in(group: Any) -> tuple[int, int]:
    """Return this process's rank in a group, and the group's size; ValueError if it is in none.

    A group is one of torch.distributed, a mesh of one dimension, or the pair itself.
    """
    if isinstance(group, tuple):
        return _checked_place(group)
    import torch.distributed as dist

    group = _group_of_mesh(group) if hasattr(group, "get_group") else group
    # Those that are not in a new group get a number or an object in its place.
    if not isinstance(group, dist.ProcessGroup) and group != dist.GroupMember.NON_GROUP_MEMBER:
        raise TypeError(
            "group must be a process group of torch.distributed, a dimension of a DeviceMesh"
            f' (mesh["dp"]), or (rank, size), got {type(group).__name__}'
        )
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(
            f"this process, rank {dist.get_rank()} of the run, is not in the group among which the"
            " items are to be divided; give each rank the group that it is in"
        )
    return rank, size


def _checked_place(group: tuple[Any, ...]) -> tuple[int, int]:
    if len(group) != 2 or any(type(each) is not int for each in group):
        raise TypeError(f"a group that is a tuple must be (rank, size), two integers, got {group}")
    rank, size = group
    if not 0 <= rank < size:
        raise ValueError(f"the rank must be at least 0 and less than the size, got {group}")
    return rank, size


def _group_of_mesh(mesh: Any) -> Any:
    if mesh.ndim != 1:
        names = ", ".join(map(repr, mesh.mesh_dim_names or ["without names"]))
        raise ValueError(
            f"the mesh has {mesh.ndim} dimensions, {names};"
            ' name the one among which the items are to be divided, mesh["dp"]. Where these are'
            " several, as with HSDP, flatten them first"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            "this process is not in the mesh among which the items are to be divided; give each"
            " rank a mesh that it is in"
        )
    return mesh.get_group()


async def open_group(timeout: float) -> RankGroup:
    """Open a gloo group of all ranks, which all of them do at the same time.

    It waits for each of them for up to ``timeout`` seconds, now and in every exchange.
    """
    if world_size() == 1:
        return Alone()
    group = GlooGroup(timeout)
    await group.open()
    return group


async def decline_group() -> None:
    """Tell all ranks that open a group now that this one cannot, within a bounded time."""
    if world_size() == 1:
        return
    declining = asyncio.wrap_future(GlooGroup(0, declines=True).ended)
    await asyncio.wait([declining], timeout=_PATIENCE_SECONDS)


class RankGroup(Protocol):
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


class Topic(IntEnum):
    """What a statement is about, in the order in which a loader comes to it."""

    GRAPH = 1
    GROUP = 2
    WORKERS = 3
    SEED = 4
    PLACE = 5
    WINDOW = 6
    #: The last that a rank says: ``count`` is another that it has lost.
    LOST = 7


class Flags(IntFlag):
    """What is true of the rank that says so."""

    NONE = 0
    #: The seed was chosen by the user.
    CHOSEN = 1
    #: No item follows those counted.
    ENDED = 2
    #: An error follows those counted.
    FAILED = 4
    #: The epoch was begun by another loader.
    RESUMED = 8
    #: It ended, and there was no item before.
    EMPTY = 16


@dataclass(frozen=True)
class Statement:
    """What a rank says to all others: five numbers of 64 bits, whatever it is about."""

    epoch: int
    kind: Topic
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
        return cls(epoch, Topic(kind), window, count, Flags(flags))


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return the name of some ranks: "rank 1", "ranks 1 and 2"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


class Assembly:
    """Where the ranks come together to open a group, by keys in the store of the run.

    Gloo does not say who is missing when it opens a group. It also counts the groups, so that a
    rank that opens one alone never meets the others again. So each rank says first that it has
    come, and all open the group or none does: the verdict is that of the first rank that knows it.
    """

    ALL = "all"

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed as dist

        c10d: Any = dist.distributed_c10d
        run = c10d.PrefixStore("asyncloader", c10d._get_default_store())
        number = run.add(f"opened by {rank}", 1)
        self._store = c10d.PrefixStore(f"group {number}", run)
        self._rank = rank
        self._size = size
        self._first_missing = 0

    def come(self) -> str:
        """Say that this rank has come; return the verdict, or "" while there is none."""
        self._store.set(str(self._rank), "")
        is_last = self._store.add("come", 1) == self._size
        return self.decided(self.ALL) if is_last else self.verdict()

    def verdict(self) -> str:
        is_known = self._store.check(["verdict"])
        return str(self._store.get("verdict"), "ascii") if is_known else ""

    def decided(self, verdict: str) -> str:
        """Return the verdict: this one, unless there was one before."""
        return str(self._store.compare_set("verdict", "", verdict), "ascii")

    def first_missing(self) -> tuple[int, ...]:
        """Return the first rank that has not come, if any."""
        while self._first_missing < self._size and self._has_come(self._first_missing):
            self._first_missing += 1
        return (self._first_missing,) if self._first_missing < self._size else ()

    def missing(self) -> list[int]:
        return [rank for rank in range(self._size) if not self._has_come(rank)]

    def _has_come(self, rank: int) -> bool:
        return bool(self._store.check([str(rank)]))


_Job = tuple[Statement, "Future[list[Statement]]"]


class GlooGroup(AwaitsOthers):
    """A gloo group of our own. A thread opens the group, talks, and destroys the group.

    One that ``declines`` only tells the others that this rank does not come.
    """

    #: When the group that was made last is open, or is known not to be: they are opened one after
    #: the other, in the order in which they were made, as gloo counts them.
    _last_opened: Future[None] | None = None

    def __init__(self, timeout: float, *, declines: bool = False) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout = timeout
        #: What the thread is to say, until None.
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._declines = declines
        self._opened: Future[None] = uncancellable()
        self._opened_before, GlooGroup._last_opened = GlooGroup._last_opened, self._opened
        self.ended: Future[None] = uncancellable()
        self._group: Any = None
        self._under_way: list[Any] = []
        #: Of two ranks the other.
        self._of_two: tuple[int, ...] = (1 - self.rank,) if self.size == 2 else ()
        #: For which rank the thread waits, if it knows.
        self._awaited: tuple[int, ...] = self._of_two
        self._thread = threading.Thread(target=self._run, name="asyncloader ranks", daemon=True)
        start_thread(self._thread)
        _gloo_groups.add(self)

    async def open(self) -> None:
        """Wait until all ranks have opened it; a RankError if they do not."""
        try:
            with self._warning("start a loader"):
                await asyncio.wrap_future(self._opened)
        except asyncio.CancelledError:
            self._jobs.put(None)
            raise

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Say something to all ranks; return what each of them says, by rank."""
        answer: Future[list[Statement]] = Future()
        self._jobs.put((statement, answer))
        with self._warning("read a loader"):
            return await asyncio.wrap_future(answer)

    def awaited(self) -> str:
        return ranks_in_words(self._awaited) if self._awaited else "another rank"

    async def aclose(self) -> None:
        """Destroy the group, within a bounded time."""
        self._jobs.put(None)
        ended = asyncio.wrap_future(self.ended)
        await asyncio.wait([ended], timeout=time_left(_PATIENCE_SECONDS))
        if not ended.done():
            self._abort()
            await asyncio.wait([ended], timeout=time_left(_ABORT_SECONDS))

    def close_at_exit(self) -> None:
        """Destroy the group before the interpreter exits, within a bounded time."""
        self._jobs.put(None)
        self._thread.join(_PATIENCE_SECONDS)
        # Nobody can wake a thread that still opens the group.
        if self._thread.is_alive() and self._abort():
            self._thread.join(_ABORT_SECONDS)

    @contextlib.contextmanager
    def _warning(self, act: str) -> Iterator[None]:
        """Log whom this rank waits for, and to do what, if that takes long."""

        def warn() -> None:
            logger.warning(
                "rank %d has waited %g s for %s to %s, as all ranks must; it waits up to %g s",
                self.rank,
                WARN_SECONDS,
                self.awaited(),
                act,
                self._timeout,
            )

        timer = asyncio.get_running_loop().call_later(WARN_SECONDS, warn)
        try:
            yield
        finally:
            timer.cancel()

    def _abort(self) -> bool:
        """End the exchange that is under way in the thread; False if the group is not open."""
        import torch
        import torch.distributed as dist

        group = self._group
        if group is None:
            return False
        # Gloo closes all connections of a group when one wait in it took too long; but where a
        # connection is broken already it does not wait.
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(Exception):
                    never: Any = dist.irecv(torch.empty(1), rank, group=group, tag=1)
                    never.wait(timedelta(milliseconds=1))
        return True

    def _run(self) -> None:
        self._open_and_answer()
        # The group is gone by now. Its own threads must not outlive the interpreter.
        self.ended.set_result(None)

    def _open_and_answer(self) -> None:
        import torch.distributed as dist

        began = time.monotonic()
        try:
            if missing := self._assembled(began):
                self._opened.set_exception(self._lost(missing, began))
                return
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        except Exception as error:  # noqa: BLE001 - whatever it is, a rank is missing
            # Neither gloo nor the store says which.
            unknown: dict[int, Exception] = dict.fromkeys(self._of_two or (-1,), error)
            self._opened.set_exception(self._lost(unknown, began))
            return
        self._opened.set_result(None)
        self._answer()
        # The connections are closed when nobody refers to the group any more. What does, such as
        # a frame that somebody looked at, must not keep others waiting for this rank.
        self._abort()
        self._under_way = []
        group, self._group = self._group, None
        _destroy(group)

    def _assembled(self, began: float) -> dict[int, Exception]:
        """Wait until all ranks have come; return why some cannot be met."""
        if self._opened_before is not None:
            self._opened_before.exception()
            self._opened_before = None
        assembly = Assembly(self.rank, self.size)
        if self._declines:
            assembly.decided(f"refused {self.rank}")
            return {self.rank: RankError("this rank has declined")}
        seconds, verdict = _FIRST_LOOK_SECONDS, assembly.come()
        most_seconds = _LAST_LOOK_SECONDS * max(1, self.size / _LOOKING_RANKS)
        while not verdict:
            left = max(0.0, began + self._timeout - time.monotonic())
            with contextlib.suppress(Empty):
                # Nothing is to be said before the group is open, so it is closed.
                self._jobs.put(self._jobs.get(timeout=min(seconds, left)))
                verdict = assembly.decided(f"left {self.rank}")
                break
            self._awaited = assembly.first_missing() or self._of_two
            verdict = assembly.verdict() if left else assembly.decided(f"late {self.rank}")
            seconds = min(2 * seconds, most_seconds)
        self._awaited = self._of_two
        return _absent(verdict, assembly)

    def _answer(self) -> None:
        lost: RankError | None = None
        while (job := self._jobs.get()) is not None:
            statement, answer = job
            if not answer.set_running_or_notify_cancel():
                continue
            if lost is None:
                began = time.monotonic()
                said, unheard = self._exchanged(statement, began)
                if not unheard:
                    answer.set_result(said)
                    continue
                lost = self._lost(unheard, began)
                self._tell_of(min(unheard))
            answer.set_exception(lost.with_traceback(None))

    def _exchanged(
        self, statement: Statement, began: float
    ) -> tuple[list[Statement], dict[int, Exception]]:
        """Tell each rank and hear each; return what they say, and why some cannot be heard."""
        import torch
        import torch.distributed as dist

        unheard: dict[int, Exception] = {}
        own = torch.tensor(statement.words(), dtype=torch.int64)
        # Zeros until a rank is heard: no statement is.
        said = [own if rank == self.rank else own.new_zeros(own.shape) for rank in range(self.size)]
        heard = self._begun(dist.irecv, said, unheard)
        told = self._begun(dist.isend, [own] * self.size, unheard)
        # Gloo uses them as long as it has a connection to somebody.
        self._under_way = [own, said, heard, told]
        # All that can be told are told by now, so that each finds out for itself who is gone.
        for rank, work in (*heard.items(), *told.items()):
            # In time, one that cannot be heard is enough. Later gloo says it of each at once, also
            # of those that were heard.
            if unheard and not self._is_late(began):
                break
            if unheard and said[rank].any():
                continue
            left = max(began + self._timeout - time.monotonic(), 0.001)
            if rank not in unheard:
                self._awaited = (rank,)
                try:
                    work.wait(timedelta(seconds=left))
                except Exception as error:  # noqa: BLE001 - whatever it is, the rank is not heard
                    unheard[rank] = error.with_traceback(None)
            last = _heard(said[rank])
            if last is not None and last.kind is Topic.LOST:
                lost = rank if last.count == self.rank else last.count
                unheard[lost] = RankError(f"rank {rank} has lost rank {last.count}")
        return [each for each in map(_heard, said) if each is not None], unheard

    def _begun(
        self, call: Callable[..., Any], words: list[Any], unheard: dict[int, Exception]
    ) -> dict[int, Any]:
        """Begin to tell words to each other rank, or to hear them; return what is under way."""
        begun: dict[int, Any] = {}
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    begun[rank] = call(words[rank], rank, group=self._group)
                except Exception as error:  # noqa: BLE001 - whatever it is, the rank is not heard
                    # Its frames would keep the group.
                    unheard[rank] = error.with_traceback(None)
        return begun

    def _tell_of(self, lost: int) -> None:
        """Tell all that can be told of a rank that was lost.

        Others may have heard it in time, and wait for what this rank says next.
        """
        import torch
        import torch.distributed as dist

        words = torch.tensor(Statement(0, Topic.LOST, count=lost).words(), dtype=torch.int64)
        self._under_way += [words, self._begun(dist.isend, [words] * self.size, {})]

    def _is_late(self, began: float) -> bool:
        return time.monotonic() - began >= 0.9 * self._timeout

    def _lost(self, errors: dict[int, Exception], began: float) -> RankError:
        known = tuple(rank for rank in sorted(errors) if rank >= 0)
        who = ranks_in_words(known) if known else "another rank"
        if self._is_late(began):
            lost: RankError = RankTimeout(
                f"rank {self.rank} waited {self._timeout:g} s for {who}; give the reading service"
                " a longer timeout if that may happen",
                ranks=known,
            )
        else:
            lost = RankError(
                f"rank {self.rank} lost {who}: a process ended, or a loader could not start, was"
                " closed before its epoch was over, or gave up waiting; see what was printed there",
                ranks=known,
            )
        lost.__cause__ = next(iter(errors.values())).with_traceback(None)
        return lost


def _heard(words: Any) -> Statement | None:
    """Return what a rank has said; None if it has not."""
    return Statement.from_words(words.tolist()) if words.any() else None


def _absent(verdict: str, assembly: Assembly) -> dict[int, Exception]:
    """Return the ranks because of which the ranks that have come are not all, and why."""
    if verdict == Assembly.ALL:
        return {}
    why, rank = verdict.split()
    match why:
        case "refused":
            error = RankError(f"rank {rank} could not start its loader")
        case "left":
            error = RankError(f"rank {rank} closed its loader")
        case _:
            error = RankError(f"rank {rank} gave up waiting")
            if missing := assembly.missing():
                return dict.fromkeys(missing, error)
    return {int(rank): error}


def _destroy(group: Any) -> None:
    import torch.distributed as dist

    try:
        dist.destroy_process_group(group)
    except (ValueError, AssertionError):
        # The user has destroyed all groups already.
        return


_gloo_groups: weakref.WeakSet[GlooGroup] = weakref.WeakSet()


@at_exit
def _leave_groups() -> None:
    # A group has threads of C++ that only its own end joins. If it outlives the interpreter, these
    # abort the process.
    for group in list(_gloo_groups):
        group.close_at_exit()


@in_forked_child
def _forget_groups() -> None:
    # They are the parent's, whose connections the child must not end.
    _gloo_groups.clear()
    GlooGroup._last_opened = None
