"""The dispatching process's program.

This file is about dealing: one process runs the part of the graph that must run
once, and deals its items to the workers in turn, as far as they ask for them.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.pipe.kinds import is_dispatch
from asyncloader.datapipes.pipe.registering import expect_methods
from asyncloader.datapipes.running.home import Home, run_at
from asyncloader.errors import ResourceExhausted
from asyncloader.graph.seeding import SeedPlaces
from asyncloader.graph.walk import breadth_first
from asyncloader.runtime import LoopThread
from asyncloader.transport.channel import Channel
from asyncloader.transport.code import loads_code
from asyncloader.workers.conversation.failure import pack_error
from asyncloader.workers.conversation.item_frames import dump_mark
from asyncloader.workers.conversation.messages import (
    FIRST,
    NO_EPOCH,
    BeginStream,
    Command,
    DealStart,
    DealtMark,
    EndEpoch,
    Grant,
    Hurry,
    Pause,
    Ready,
    Resume,
    SaySomething,
    Setup,
    StartEpoch,
    StartFailed,
    StreamEnded,
    StreamFailed,
)
from asyncloader.workers.conversation.random_states import RandomStates
from asyncloader.workers.process.setup import seed_globals
from asyncloader.workers.worker_side.account import Account
from asyncloader.workers.worker_side.marker import Marker
from asyncloader.workers.worker_side.outlet import Outlet
from asyncloader.workers.worker_side.part import NOTHING, Part, Prepared
from asyncloader.workers.worker_side.punctual import Punctual
from asyncloader.workers.worker_side.resets import NO_RESETS, load_resets
from asyncloader.workers.worker_side.stream import Stream
from asyncloader.workers.worker_side.talk import Talk, refuse


@dataclass(frozen=True)
class DispatchPlan:
    """What the dispatching process runs, and what it says of workers that drop items."""

    end: Any
    seed_places: SeedPlaces
    backlog_bytes: int
    #: Names of the workers' pipes that may drop items.
    droppers: tuple[str, ...]


def main(sock: socket.socket) -> None:
    """Deal until the loader closes the channel."""
    try:
        process = Dispatcher(Talk(Channel(sock)))
    except ResourceExhausted as error:
        refuse(sock, error)
        return
    with contextlib.suppress(EOFError):
        process.serve()


class Dispatcher:
    """Runs the part of the graph that runs once, and deals its items to the workers."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._thread = LoopThread()
        home = Home(self._thread.loop)
        self._context = run_at(home)
        self._account = Account(
            talk, home.watching, Dispatcher._deal.__code__, lambda: [self._dealt]
        )
        self._punctual = Punctual()
        self._outlets: list[Outlet] = []
        self._plan: DispatchPlan | None = None
        self._part: Part | None = None
        self._items: Iterator[Any] | None = None
        self._epoch = NO_EPOCH
        self._turn = 0
        self._is_paused = False
        self._states = RandomStates()
        self._marker = Marker(NOTHING, self._states)
        # How many items were dealt in this epoch, and how many of theirs the workers had before.
        self._dealt = 0
        self._had: tuple[int, ...] = ()

    def serve(self) -> None:
        """Obey the loader and deal; EOFError when the loader closes the channel."""
        try:
            while True:
                self._hear(wait=not self._may_deal())
                if self._may_deal():
                    self._context.run(self._deal)
                    self._account.tell_if_due()
                for outlet in self._outlets:
                    outlet.settle(is_waiting=not self._may_deal())
        finally:
            self._punctual.close()
            self._account.close()
            self._close_items()
            self._thread.close()
            for outlet in self._outlets:
                outlet.talk.close()

    def _hear(self, *, wait: bool) -> None:
        """Heed what the loader and the workers say; wait for it if there is nothing else to do."""
        poll = select.poll()
        poll.register(self._talk.fileno(), select.POLLIN)
        outlets = {outlet.talk.fileno(): outlet for outlet in self._outlets if not outlet.is_gone}
        for fd, outlet in outlets.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if outlet.talk.has_unsent() else 0))
        if wait:
            self._account.rest()
        heard = poll.poll(None if wait else 0)
        if wait:
            self._account.go_on()
        for fd, _ in heard:
            if fd in outlets:
                outlets[fd].hear()
            else:
                for command in self._talk.commands():
                    self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Setup():
                self._set_up(command)
            case StartEpoch():
                self._start_epoch(command)
            case EndEpoch():
                self._end_epoch()
            case Pause() | Resume():
                self._is_paused = isinstance(command, Pause)
            case SaySomething():
                self._account.tell()
            case Grant() | Hurry() | BeginStream():
                pass  # the loader takes no items from here

    def _set_up(self, command: Setup) -> None:
        expect_methods(command.homes)
        plan_fds, fds = self._talk.take_fds(command.plan_fds)
        self._outlets = [
            Outlet(Channel(socket.socket(fileno=fd)), command.arena_bytes, self._punctual, _packed)
            for fd in fds
        ]
        try:
            self._plan = plan = loads_code(command.plan, plan_fds)
            self._part = Part(plan.end, plan.seed_places.bind(plan.end))
        except Exception as error:  # noqa: BLE001 - user code ran; start-up raises it
            self._talk.report(StartFailed(NO_EPOCH, _packed(error)))
        else:
            self._talk.report(Ready())

    def _start_epoch(self, command: StartEpoch) -> None:
        self._end_epoch()
        assert self._part is not None
        self._epoch = command.epoch
        self._is_paused = False
        maker = _maker_of(self._part.end)
        for outlet in self._outlets:
            marker = Marker(NOTHING, self._states)
            outlet.begin(command.epoch, marker, maker, lambda: self._dealt)
        try:
            part = self._reset(command)
            self._states = RandomStates()
            self._account.begin(command.epoch, [part])
            self._begin_dealing(part, command.deal or DealStart(FIRST, (0,) * len(self._outlets)))
        except Exception as error:  # noqa: BLE001 - user code ran; the loader raises it
            self._talk.report(StartFailed(command.epoch, _packed(error)))

    def _begin_dealing(self, part: Prepared, start: DealStart) -> None:
        self._marker = Marker(part, self._states, start.mark)
        self._dealt = start.mark.position
        self._turn = self._dealt % len(self._outlets)
        self._had = start.dealt
        self._items = self._context.run(self._marker.begin)

    def _reset(self, command: StartEpoch) -> Prepared:
        assert self._part is not None
        generator = command.seed_generator
        seed_globals(None, [generator.generate_shared_seed() for _ in range(3)])
        self._part.seed(command.shared_seeds, generator)
        if command.resets == NO_RESETS:
            return self._part.prepared()
        reset, _ = load_resets(command.resets)
        return self._part.reset(lambda end: self._thread.finished(reset(end)), generator)

    def _end_epoch(self) -> None:
        self._close_items()
        for outlet in self._outlets:
            outlet.end()

    def _close_items(self) -> None:
        items, self._items = self._items, None
        if items is not None:
            # What user code does while it is closed is of no interest to a closed epoch.
            with contextlib.suppress(Exception):
                self._context.run(close_items, items)

    def _may_deal(self) -> bool:
        if self._items is None or self._is_paused:
            return False
        # Nobody may be told of an end that others did not live to see.
        if any(outlet.is_gone for outlet in self._outlets):
            return False
        return self._outlets[self._turn].has_room() or self._must_run_ahead()

    def _must_run_ahead(self) -> bool:
        """Whether a worker has nothing while the one whose turn it is asks for nothing.

        That happens where workers drop items: the loader waits for the first, and
        until it has something takes nothing of the second.
        """
        return any(outlet.is_starving() for outlet in self._outlets)

    def _deal(self) -> None:
        """Deal items until the next frame is sent."""
        is_sent = False
        while not is_sent and self._items is not None and self._may_deal():
            outlet = self._outlets[self._turn]
            try:
                is_sent = self._deal_next(self._items, outlet)
            except StopIteration:
                self._finish(None)
            except SystemExit:
                raise
            except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
                self._finish(error)

    def _deal_next(self, items: Iterator[Any], outlet: Outlet) -> bool:
        assert outlet.stream is not None
        self._check_backlog(outlet.stream)
        self._note_mark()
        item = next(items)
        rounds, self._turn = divmod(self._dealt, len(self._outlets))
        is_due = False
        # The worker of whom an earlier one went on may have had it already.
        if rounds >= self._had[self._turn]:
            is_due = outlet.stream.add(item)
        if is_due:
            outlet.send()
        self._dealt += 1
        self._turn = self._dealt % len(self._outlets)
        return is_due

    def _note_mark(self) -> None:
        mark = self._marker.mark(self._dealt)
        if mark is not None:
            self._talk.report(DealtMark(self._epoch, dump_mark(mark)))

    def _check_backlog(self, stream: Stream) -> None:
        assert self._plan is not None
        if stream.nbytes > self._plan.backlog_bytes:
            droppers = ", ".join(self._plan.droppers) or "a pipe"
            raise ResourceExhausted(
                f"worker {self._turn} was dealt {stream.nbytes} bytes that it does not ask for,"
                f" while another worker has dropped all that it was dealt: {droppers} drops items"
                " behind the dispatching process. Drop them before it, or pass in_order=False"
            )

    def _finish(self, error: BaseException | None) -> None:
        """Have every worker told, after its last item, that the data ended, or failed."""
        self._close_items()
        self._account.tell()
        for worker, outlet in enumerate(self._outlets):
            if error is not None and worker == self._turn:
                outlet.ending = StreamFailed(self._epoch, 0, _packed(error))
            else:
                outlet.ending = StreamEnded(self._epoch, 0)


def _maker_of(end: Any) -> Any:
    """Return the pipe that makes the items: a pipe that dispatches hands on what another made."""
    pipes = breadth_first(end)
    return pipes[1] if is_dispatch(end) and len(pipes) > 1 else end


def _packed(error: BaseException, when: str = "") -> bytes:
    return pack_error(error, f"in the dispatching process{when}")
