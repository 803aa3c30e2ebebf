"""One worker, as its loader sees it.

This file is about ``WorkerHandle``: the process, the channel to it, the items that arrived on the
channel, and the shared memory that is returned.
"""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, assert_never

from asyncloader.datapipes.running.run_place import present_home
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.errors import (
    LoaderError,
    ResourceExhausted,
    SnapshotError,
    TransportError,
    WorkerDied,
    WorkerStartupError,
    WorkerTimeout,
)
from asyncloader.places.marks import Mark
from asyncloader.places.stream_place import Dealing
from asyncloader.runtime import descriptors_for, running_loop
from asyncloader.safe_error_text import repr_of
from asyncloader.transport.channel import close_all
from asyncloader.transport.ends import LoopEnd
from asyncloader.transport.frame import CutOff, Frame
from asyncloader.waiting import Patience, call_soon, do_nothing
from asyncloader.workers.feed_line import FeedLine
from asyncloader.workers.inbox import Inbox
from asyncloader.workers.messages import (
    NO_EPOCH,
    Command,
    DealtMark,
    EndEpoch,
    FrameKind,
    LeftOut,
    Ready,
    Report,
    StartFailed,
    StreamEnded,
    StreamFailed,
    Tallied,
    dump_message,
    dump_slots,
    load_report,
    split_items,
)
from asyncloader.workers.process.process import UNKNOWN, WorkerProcess
from asyncloader.workers.remote_errors import unpack_error
from asyncloader.workers.whereabouts import NBYTES, Whereabouts
from asyncloader.workers.worker_stats import WorkerStats, load_tally

#: How many seconds after its channel has ended a worker must be dead.
_DEATH_SECONDS = 1.0


class WorkerLife(Enum):
    """Where a worker is in its life, as its loader knows it, and what moves it.

    STARTING ─▶ READY     it said that it is ready
    READY ────▶ REFUSING  it said that it cannot begin the epoch
    REFUSING ─▶ READY     ``join_epoch``: the next epoch may be another matter
    any ──────▶ LOST      ``fail``: it died or could not be set up, said nothing for too long, or
                          sent what cannot be; from then on it only gives what had arrived
    """

    STARTING = "starting"
    READY = "ready"
    REFUSING = "refusing"
    LOST = "lost"


STARTING, READY, REFUSING, LOST = WorkerLife


class WorkerHandle:
    """The loader's end of one worker's life. All methods belong to the attached loop."""

    def __init__(
        self,
        name: str,
        worker: int | None,
        process: WorkerProcess,
        *,
        copy_beyond: int = sys.maxsize,
    ) -> None:
        self.name = name
        self.worker = worker
        self.process = process
        self.life = STARTING
        #: Why it is REFUSING or LOST.
        self.failure: BaseException | None = None
        #: Whether the worker's init function may have changed how many items it yields.
        self.has_other_length = False
        #: Whether everything that the worker sent was read, and no more can come.
        self.is_cut = False
        self.inboxes: dict[int, Inbox] = {}
        #: Whether an item came since the worker was started.
        self.has_delivered = False
        #: For the dispatching process: the marks that it reported in this epoch.
        self.dealing = Dealing()
        #: The latest tally that the process sent, of this epoch or the one before.
        self.tally = b""
        #: The line that feeds the worker items of a source in the loader, if there is one.
        self.line: FeedLine | None = None
        self._is_paused = False
        self._last_heard = time.monotonic()
        self._channel = process.open_channel()
        self._decoder = process.open_items(self._wake_to_return, copy_beyond=copy_beyond)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The loop that is told of the process's death, once, also while this is detached.
        self._watched_on: asyncio.AbstractEventLoop | None = None
        self._unwatch: Callable[[], object] = do_nothing
        self.on_news: Callable[[], None] = do_nothing
        self._epoch = NO_EPOCH
        #: Where the worker was when it died; nothing where that is not known.
        self._whereabouts: Whereabouts | None = None

    @property
    def last_heard(self) -> float:
        """When the worker last sent something; the present time while it is paused."""
        return time.monotonic() if self._is_paused else self._last_heard

    def set_paused(self, is_paused: bool) -> None:
        """Note whether the worker is paused; its silence counts only while it is not."""
        self._last_heard = time.monotonic()
        self._is_paused = is_paused

    def attach(self, loop: asyncio.AbstractEventLoop, on_news: Callable[[], None]) -> None:
        """Listen on a loop; ``on_news`` is called when something came or the worker ended."""
        self._loop = loop
        self.on_news = on_news
        # The next epoch is usually on the same loop, so the watch over the process stays.
        if self._watched_on is not loop:
            self._unwatch()
            with descriptors_for(f"watching over {self.name}"):
                self._unwatch = self.process.on_death(loop, _weakly(self._on_death))
            self._watched_on = loop
        self._channel.attach(loop, self._receive, self._on_closed)
        self._return_slots()
        if self.line is not None:
            self.line.attach(loop, self._on_broken)

    def detach(self) -> None:
        """Leave the loop; what the worker sends waits in the kernel."""
        self._channel.detach()
        self._loop = None
        self.on_news = do_nothing
        if self.line is not None:
            self.line.detach()

    def add_line(self, channel: LoopEnd, arena_bytes: int) -> None:
        """Add a line that feeds the worker from the loader; call this while attached."""
        self.line = FeedLine(channel, arena_bytes)
        if self._loop is not None:
            self.line.attach(self._loop, self._on_broken)

    def send(self, command: Command, *then: Command, fds: Sequence[Any] = ()) -> None:
        """Send commands to the worker and give descriptors away; do nothing if it is gone.

        All are sent together, so that the worker wakes up once.
        """
        more = [(FrameKind.MESSAGE, dump_message(each)) for each in then]
        self._channel.send(FrameKind.MESSAGE, dump_message(command), fds, more)

    def say(self, command: bytes, *then: bytes) -> None:
        """Like ``send``, for commands that are dumped already."""
        more = [(FrameKind.MESSAGE, each) for each in then]
        self._channel.send(FrameKind.MESSAGE, command, (), more)

    def join_epoch(
        self, epoch: int, loop: asyncio.AbstractEventLoop, on_news: Callable[[], None]
    ) -> None:
        """Make room for an epoch's streams, and listen on its loop; drop earlier epochs' items."""
        if self._epoch != NO_EPOCH:
            self.end_epoch()
        self._epoch = epoch
        if self.life is REFUSING:
            self.life, self.failure = READY, None
        self.tally = b""
        self._is_paused = False
        self._last_heard = time.monotonic()
        if self.line is not None:
            self.line.begin_epoch(epoch)
        self.process.work_for(present_home())
        self.attach(loop, on_news)

    def stats(self, restarts: int) -> WorkerStats:
        """Return the process's statistics; ``restarts`` is how often it was replaced."""
        ready = sum(inbox.arrived - inbox.position for inbox in list(self.inboxes.values()))
        return replace(
            load_tally(self.tally),
            name=self.name,
            is_dispatcher=self.worker is None,
            pid=self.process.pid,
            node=self.process.node,
            ready=ready,
            restarts=restarts,
        )

    def begin_stream(self, number: int, mark: Mark, unwanted: int) -> Inbox:
        """Return an inbox for the items of a stream that resumes from a mark."""
        self.inboxes[number] = inbox = Inbox(self._decoder, self.worker or 0, mark, unwanted)
        if self.failure is not None:
            inbox.end(self.failure)
        return inbox

    def take_over(self, predecessor: WorkerHandle) -> None:
        """Take over the streams of a dead worker, with the items that arrived from it."""
        self._epoch = predecessor._epoch
        self.inboxes, predecessor.inboxes = predecessor.inboxes, {}
        for inbox in self.inboxes.values():
            inbox.continue_with(self._decoder)
        if self.line is not None and predecessor.line is not None:
            self.line.take_over(predecessor.line)

    def is_used_up(self) -> bool:
        """Whether everything that came was opened or given back."""
        return not self._decoder.has_unopened()

    def new_memory(self) -> list[Any]:
        """Return what the worker is sent for memory in which it notes its whereabouts, if any."""
        segment = self.process.new_memory(NBYTES)
        if segment is None:
            return []
        self._whereabouts = Whereabouts(segment.view)
        return [segment.take_fd()]

    def holds_much(self) -> bool:
        """Whether items that came from the worker hold much of its memory."""
        return self._decoder.holds_much()

    def leave_epoch(self) -> None:
        """End the epoch for the worker, unless it has sent everything, and leave the loop."""
        inboxes = self.inboxes.values()
        unfinished = [inbox for inbox in inboxes if not inbox.has_ended or inbox.is_refused]
        if unfinished or not inboxes:
            self.send(EndEpoch(self._epoch))
        self.end_epoch()
        self.detach()

    def end_epoch(self) -> None:
        """Drop the items that were not taken, and those of this epoch that still arrive."""
        self._epoch = NO_EPOCH
        for inbox in self.inboxes.values():
            inbox.drop()
        self.inboxes = {}
        if self.worker is None:
            self.dealing = Dealing()
        if self.line is not None:
            self.line.end_epoch()

    def close(self) -> None:
        """Close the channel, which makes the worker end."""
        self.end_epoch()
        self._unwatch()
        self._channel.close()
        self._decoder.close()
        self._whereabouts = None
        if self.line is not None:
            self.line.close()

    def fail(self, failure: BaseException) -> None:
        """Give this worker up, and end its streams with an error."""
        if self.life is not LOST:
            self.life, self.failure = LOST, failure
        self._end_streams()
        self.on_news()

    def _end_streams(self) -> None:
        for inbox in self.inboxes.values():
            inbox.end(self.failure)

    def holding_up(self) -> list[UnderWay]:
        """Ask the process what holds it up; nothing if it waits for another one."""
        where = f"{self.name} ({self.process.place})"
        silent = time.monotonic() - self._last_heard
        if self.life is STARTING:
            where += ", which is not ready yet"
        found = self.process.holding_up()
        if UNKNOWN in found:
            where += f", which cannot be asked from here ({self._way_to_ask()})"
        return [
            replace(
                each,
                where=f"{where}, {each.where}" if each.where else where,
                seconds=silent if each.seconds is None else each.seconds,
            )
            for each in found
        ]

    def _way_to_ask(self) -> str:
        """Return how its user sees the stacks of a process that nobody can ask."""
        there = f" on node {self.process.node}" if self.process.node else ""
        return f"`py-spy dump --pid {self.process.pid}`{there} shows where it stands"

    async def add_stack(self, failure: WorkerTimeout) -> None:
        """Ask a silent worker to end, and say in a failure where its threads stood."""
        dump = await self.process.hang_dump()
        if dump is not None:
            failure.stack = f"{self.name} stood here:\n{dump}"
            failure.add_note(failure.stack)

    def _receive(self, frames: list[Frame]) -> None:
        self._last_heard = time.monotonic()
        try:
            for frame in frames:
                if frame.kind == FrameKind.ITEMS:
                    self._take_items(frame)
                elif frame.kind == FrameKind.MESSAGE:
                    self._on_report(load_report(frame.payload))
                else:
                    close_all(frame.fds)
                    raise TransportError(f"a frame of kind {frame.kind} is not for the loader")
        except TransportError as error:
            self._on_closed(error)
        except LoaderError as error:
            # Nobody else would hear of it.
            self._give_up(error, "contradicts what it had sent before")
        self.on_news()

    def _take_items(self, frame: Frame) -> None:
        part = split_items(frame.payload)
        admitted = self._decoder.admit(part.items, frame.fds)
        if part.epoch == self._epoch:
            self.has_delivered = True
            inbox = self.inboxes.get(part.stream) or self._inbox(part.stream)
            inbox.put(admitted, part.cost, part.note)
        else:
            self._decoder.give_back(admitted)

    def _on_report(self, report: Report) -> None:
        match report:
            case Ready(has_other_length):
                self.has_other_length = has_other_length
                if self.life is STARTING:
                    self.life = READY
            case StartFailed(epoch, error):
                if epoch == self._epoch:
                    self._fail_to_start(epoch, unpack_error(error))
            case StreamEnded(epoch, stream, tally, told):
                if epoch == self._epoch:
                    self.tally = tally
                    self._inbox(stream).hear(told)
                    self._inbox(stream).end()
            case StreamFailed(epoch, stream, error, tally, told):
                if epoch == self._epoch:
                    self.tally = tally
                    self._inbox(stream).hear(told)
                    self._inbox(stream).end(unpack_error(error))
            case LeftOut(epoch, stream, told):
                if epoch == self._epoch:
                    self._inbox(stream).hear(told)
            case DealtMark(epoch, mark):
                if epoch == self._epoch:
                    self.dealing.note(mark)
            case Tallied(epoch, tally):
                if epoch == self._epoch:
                    self.tally = tally
            case _:
                assert_never(report)

    def _fail_to_start(self, epoch: int, cause: BaseException) -> None:
        what = "be set up" if epoch == NO_EPOCH else "begin the epoch"
        failure: BaseException = cause
        # A state that cannot be resumed is the user's error, not the worker's.
        if not isinstance(cause, SnapshotError):
            failure = WorkerStartupError(f"{self.name} could not {what}: {repr_of(cause)}")
            failure.__cause__ = cause
        if epoch == NO_EPOCH:
            self.fail(failure)
        elif self.life is not LOST:
            self.life, self.failure = REFUSING, failure
            self._end_streams()

    def _inbox(self, stream: int) -> Inbox:
        if stream not in self.inboxes:
            raise TransportError(f"{self.name} sent items of an unknown stream, {stream}")
        return self.inboxes[stream]

    def _on_closed(self, error: Exception) -> None:
        self.is_cut = True
        self.on_news()
        self._on_broken(error)

    def _on_broken(self, error: Exception) -> None:
        """End a worker whose channel or line is broken."""
        if isinstance(error, ResourceExhausted):
            self._give_up(error, "could not be received")
        elif isinstance(error, TransportError) and not isinstance(error, CutOff):
            self._refuse(error)
        elif self._loop is not None:
            # The worker's death usually comes at the same moment, and its error says more.
            Patience(self._loop, _DEATH_SECONDS, partial(self._on_silence, error))

    def _on_silence(self, error: Exception) -> None:
        if self.life is LOST:
            return
        if isinstance(error, TransportError):
            self._refuse(error)
        elif self._loop is not None:
            self.process.kill()
            # Whoever is to tell of its death may be stopped.
            Patience(self._loop, _DEATH_SECONDS, self._tell_of_death)
        else:
            self.process.kill()

    def _refuse(self, error: TransportError) -> None:
        error.worker = self.worker
        self._give_up(error, "was malformed")

    def _give_up(self, error: Exception, how: str) -> None:
        error.add_note(f"what {self.name} sent {how}; it was killed")
        self.process.kill()
        self.fail(error)

    def _on_death(self) -> None:
        self._watched_on = None
        # What it sent before it died is complete and is used first.
        if self._loop is not None:
            self._loop.call_soon(self._tell_of_death)

    def _tell_of_death(self) -> None:
        process, streams = self.process, self.inboxes.values()
        # Before its first stream it was making nothing.
        where = self._whereabouts if streams else None
        death = WorkerDied(
            f"{self.name} ({process.place}) {process.how_it_ended()}",
            worker=self.worker,
            pid=process.pid,
            exitcode=process.exitcode,
            items=sum(inbox.arrived for inbox in streams) if streams else None,
            making=None if where is None else where.making(),
            pipe="" if where is None else where.pipe(),
        )
        if death.items is not None:
            known = "" if where is None else f"; {where.in_words()}"
            death.add_note(f"{death.items} items of {self.name} had arrived in this epoch{known}")
        self.fail(death)

    def _wake_to_return(self) -> None:
        # This may run inside the garbage collector, in any thread.
        loop = self._loop
        if loop is None:
            return
        if running_loop() is loop:
            loop.call_soon(self._return_slots)
        else:
            call_soon(loop, self._return_slots)

    def _return_slots(self) -> None:
        slots = self._decoder.take_released()
        if slots:
            self._channel.send(FrameKind.RELEASED, dump_slots(slots))


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a call of the method that does not keep its object alive."""
    # The list of running processes keeps their callbacks alive. Without this, a loader that is
    # dropped after its loop has ended would never be collected.
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call
