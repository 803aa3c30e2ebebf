"""The dispatching process's program.

This file is about dealing. One process runs the part of the graph that must run only once, and
deals its items: each item goes to one worker, in turn, as far as the workers ask for them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

from asyncloader.datapipes.base import expect_methods
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.run_place import Home, run_at
from asyncloader.datapipes.running.traits import is_dispatch
from asyncloader.errors import ResourceExhausted
from asyncloader.graph.settings import PartSeeds
from asyncloader.graph.walk import breadth_first
from asyncloader.places.marks import FIRST, DealStart, dump_mark
from asyncloader.places.random_states import RandomStates
from asyncloader.runtime import LoopThread
from asyncloader.system import ready_of
from asyncloader.transport.channel import Channel
from asyncloader.transport.ends import BlockingEnd
from asyncloader.transport.parcel import unpack_code
from asyncloader.workers.conversation import Conversation, refuse
from asyncloader.workers.dispatch_source import DEALT_CREDITS
from asyncloader.workers.graph_part import NO_RESETS, NOTHING, GraphPart, PreparedPart, load_resets
from asyncloader.workers.marker import Marker
from asyncloader.workers.messages import (
    CREDIT_BYTES,
    NO_EPOCH,
    BeginStream,
    Command,
    Dealt,
    DealtMark,
    EndEpoch,
    Grant,
    Hurry,
    Instruction,
    Ready,
    Setup,
    StartEpoch,
    StartFailed,
    StreamEnded,
    StreamFailed,
)
from asyncloader.workers.process.setup import OwnProcess, Surroundings
from asyncloader.workers.remote_errors import pack_error
from asyncloader.workers.stream import FRAME_CREDITS, FlushTimer, Stream
from asyncloader.workers.worker_stats import Account


@dataclass(frozen=True)
class DispatchPlan:
    """What the dispatching process runs."""

    end: Any
    seed_places: tuple[int, ...]
    backlog_bytes: int
    #: The names of the workers' pipes that may drop items, for an error message.
    droppers: tuple[str, ...]


def main(sock: socket.socket) -> None:
    """Deal until the loader closes the channel."""
    try:
        process = Dispatcher(Conversation(Channel(sock)), OwnProcess())
    except ResourceExhausted as error:
        refuse(sock, error)
        return
    with contextlib.suppress(EOFError):
        process.serve()


def work(channel: BlockingEnd, surroundings: Surroundings) -> None:
    """Deal until the loader closes the channel, where all is known to be in order."""
    with contextlib.suppress(EOFError):
        Dispatcher(Conversation(channel), surroundings).serve()


class Dispatcher:
    """Runs the part of the graph that runs once, and deals its items to the workers."""

    def __init__(self, conversation: Conversation, surroundings: Surroundings) -> None:
        self._conversation = conversation
        self._surroundings = surroundings
        self._thread = LoopThread()
        self._account = Account(conversation, Dispatcher._deal.__code__, lambda: [self._dealt])
        home = Home(self._thread, self._account.watching, beyond=lambda: surroundings.beyond())
        self._context = run_at(home)
        self._flush_timer = FlushTimer()
        self._targets: list[DispatchTarget] = []
        self._plan: DispatchPlan | None = None
        self._part: GraphPart | None = None
        self._items: Iterator[Any] | None = None
        self._epoch = NO_EPOCH
        self._turn = 0
        self._is_paused = False
        self._states = RandomStates(self._surroundings.generators)
        self._tree = NOTHING.edge.tree
        self._marker = Marker(NOTHING, self._states)
        # How many items were dealt in this epoch, and how many the workers had before it resumed.
        self._dealt = 0
        self._had: tuple[int, ...] = ()

    def serve(self) -> None:
        """Obey the loader and deal; EOFError when the loader closes the channel."""
        try:
            while True:
                self._hear(wait=not self._may_deal())
                if self._may_deal():
                    self._context.run(self._deal)
                    if monotonic() >= self._account.due:
                        self._account.tell()
                for target in self._targets:
                    target.settle(is_waiting=not self._may_deal())
        finally:
            self._flush_timer.close()
            self._account.close()
            self._close_items()
            self._thread.close()
            for target in self._targets:
                target.conversation.close()

    def _hear(self, *, wait: bool) -> None:
        """Handle the messages of the loader and the workers; wait if there is nothing to do."""
        targets = {
            target.conversation.fileno(): target for target in self._targets if not target.is_gone
        }
        unsent = [fd for fd, target in targets.items() if target.conversation.has_unsent()]
        if wait:
            self._account.main.resting_since = perf_counter()
        heard = ready_of([self._conversation.fileno(), *targets], unsent, None if wait else 0.0)
        if wait:
            self._account.main.resume()
        for fd in heard:
            if fd in targets:
                targets[fd].hear()
            else:
                for command in self._conversation.commands():
                    self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Setup():
                self._set_up(command)
            case StartEpoch():
                self._start_epoch(command)
            case EndEpoch():
                self._end_epoch()
            case Instruction.PAUSE | Instruction.RESUME:
                self._is_paused = command is Instruction.PAUSE
            case Instruction.ANSWER:
                self._account.tell()
            case Grant() | Hurry() | BeginStream():
                pass  # the loader takes no items from here

    def _set_up(self, command: Setup) -> None:
        expect_methods(command.homes)
        plan_fds, channels = self._conversation.take_fds(
            command.plan_fds, has_memory=command.has_memory
        )
        self._targets = [
            DispatchTarget(channel, command.arena_bytes, self._flush_timer, self._packed)
            for channel in channels
        ]
        try:
            self._plan = plan = unpack_code(command.plan, plan_fds)
            self._part = GraphPart(plan.end, PartSeeds(plan.end, plan.seed_places))
        except Exception as error:  # noqa: BLE001 - user code ran; start-up raises it
            self._conversation.report(StartFailed(NO_EPOCH, self._packed(error)))
        else:
            self._conversation.report(Ready())

    def _start_epoch(self, command: StartEpoch) -> None:
        self._end_epoch()
        assert self._part is not None
        self._epoch = command.epoch
        self._is_paused = False
        maker = _maker_of(self._part.end)
        for target in self._targets:
            marker = Marker(NOTHING, self._states)
            target.begin(command.epoch, marker, maker, lambda: self._dealt)
        try:
            part = self._reset(command)
            self._states = RandomStates(self._surroundings.generators)
            self._account.begin(command.epoch, [part])
            self._begin_dealing(part, command.deal or DealStart(FIRST, (0,) * len(self._targets)))
        except Exception as error:  # noqa: BLE001 - user code ran; the loader raises it
            self._conversation.report(StartFailed(command.epoch, self._packed(error)))

    def _begin_dealing(self, part: PreparedPart, start: DealStart) -> None:
        self._tree = part.edge.tree
        self._marker = Marker(part, self._states, start.mark)
        self._dealt = start.mark.position
        self._turn = self._dealt % len(self._targets)
        self._had = start.dealt
        self._items = self._context.run(self._marker.begin)

    def _reset(self, command: StartEpoch) -> PreparedPart:
        assert self._part is not None
        generator = command.seed_generator
        self._surroundings.seed([generator.generate_shared_seed() for _ in range(3)])
        self._part.seed(command.shared_seeds, generator)
        if command.resets == NO_RESETS:
            return self._part.prepared(RunTree())
        reset, _ = load_resets(command.resets)
        return self._part.reset(RunTree(), lambda end: self._thread.finished(reset(end)), generator)

    def _end_epoch(self) -> None:
        self._close_items()
        self._context.run(self._tree.close_sources)
        for target in self._targets:
            target.end()

    def _close_items(self) -> None:
        items, self._items = self._items, None
        if items is not None:
            # The epoch is over, so errors of user code that is being closed do not matter.
            with contextlib.suppress(Exception):
                self._context.run(close_items, items)

    def _may_deal(self) -> bool:
        if self._items is None or self._is_paused:
            return False
        # If a worker is gone, no other may be told the end: the epoch will be repeated or fail.
        if any(target.is_gone for target in self._targets):
            return False
        return self._targets[self._turn].has_room() or self._must_run_ahead()

    def _must_run_ahead(self) -> bool:
        """Whether a worker has no items while the worker whose turn it is asks for none.

        This happens if workers drop items: the loader waits for the first worker, and until
        that has an item it takes none of the second.
        """
        return any(target.is_starving() for target in self._targets)

    def _deal(self) -> None:
        """Deal items until the next frame is sent."""
        is_sent = False
        while not is_sent and self._items is not None and self._may_deal():
            target = self._targets[self._turn]
            try:
                is_sent = self._deal_next(self._items, target)
            except StopIteration:
                self._finish(None)
            except SystemExit:
                raise
            except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
                self._finish(error)

    def _deal_next(self, items: Iterator[Any], target: DispatchTarget) -> bool:
        assert target.stream is not None
        self._check_backlog(target.stream)
        self._note_mark()
        item = next(items)
        rounds, self._turn = divmod(self._dealt, len(self._targets))
        is_due = False
        # The worker may have had this item before the resume.
        if rounds >= self._had[self._turn]:
            is_due = target.stream.add(item)
        if is_due:
            target.send()
        self._dealt += 1
        self._turn = self._dealt % len(self._targets)
        return is_due

    def _note_mark(self) -> None:
        mark = self._marker.mark(self._dealt)
        if mark is not None:
            self._conversation.report(DealtMark(self._epoch, dump_mark(mark)))

    def _check_backlog(self, stream: Stream) -> None:
        assert self._plan is not None
        if stream.nbytes > self._plan.backlog_bytes:
            droppers = ", ".join(self._plan.droppers) or "a pipe"
            raise ResourceExhausted(
                f"worker {self._turn} was dealt {stream.nbytes} bytes that it did not ask for,"
                f" while another worker has dropped all that it was dealt: {droppers} drops items"
                " after the dispatching process. Drop them before it, or pass in_order=False"
            )

    def _packed(self, error: BaseException, when: str = "") -> bytes:
        place = f"{self._conversation.place}{when}"
        return pack_error(error, f"in the dispatching process{place}")

    def _finish(self, error: BaseException | None) -> None:
        """Tell every worker, after its last item, that the data has ended or failed."""
        self._close_items()
        self._account.tell()
        for worker, target in enumerate(self._targets):
            if error is not None and worker == self._turn:
                target.ending = StreamFailed(self._epoch, 0, self._packed(error))
            else:
                target.ending = StreamEnded(self._epoch, 0)


def _maker_of(end: Any) -> Any:
    """Return the pipe that makes the items; a pipe that dispatches only passes them on."""
    pipes = breadth_first(end)
    return pipes[1] if is_dispatch(end) and len(pipes) > 1 else end


#: How many items a credit for dealt items allows: a worker that gets many keeps others waiting.
_CREDIT_ITEMS = 64
#: How many items and bytes may be dealt to a worker without a credit: one frame's.
_ROOM_ITEMS = FRAME_CREDITS * _CREDIT_ITEMS
_ROOM_BYTES = FRAME_CREDITS * CREDIT_BYTES


class DispatchTarget:
    """One worker, as the dispatching process sees it."""

    def __init__(
        self,
        channel: BlockingEnd,
        arena_bytes: int,
        flush_timer: FlushTimer,
        pack_error: Callable[[BaseException, str], bytes],
    ) -> None:
        self.conversation = Conversation(channel, waits=False)
        self.conversation.arena.budget = arena_bytes
        self._flush_timer = flush_timer
        self._pack_error = pack_error
        #: Credits for an epoch that the worker has begun, but this process has not yet.
        self._early: dict[int, int] = {}
        self.ending: StreamEnded | StreamFailed | None = None
        self.is_gone = False
        self.stream: Stream | None = None

    def begin(self, epoch: int, marker: Marker, pipe: Any, dealt: Callable[[], int]) -> None:
        """Begin an epoch with the credits that the worker has already granted for it.

        ``dealt`` returns how many items were dealt to all workers together.
        """
        credits = self._early.pop(epoch, 0)
        self._early.clear()
        self.stream = Stream(
            self.conversation,
            self._flush_timer,
            self._pack_error,
            pipe,
            epoch=epoch,
            number=0,
            credits=credits,
            one_by_one=False,
            marker=marker,
            counted=dealt,
            credit_items=_CREDIT_ITEMS,
            all_credits=DEALT_CREDITS,
        )

    def end(self) -> None:
        """End the epoch, if one was begun: drop unsent items, and tell the worker."""
        stream, self.stream = self.stream, None
        self.ending = None
        if stream is not None:
            stream.drop()
            self.tell(EndEpoch(stream.epoch))

    def on_command(self, command: Command) -> None:
        """Add the worker's credits for this epoch or the next."""
        if not isinstance(command, Grant):
            return
        if self.stream is not None and self.stream.epoch == command.epoch:
            self.stream.grant(command.credits)
        else:
            self._early[command.epoch] = self._early.get(command.epoch, 0) + command.credits

    def has_room(self) -> bool:
        """Whether the worker has asked for another item."""
        stream = self.stream
        return stream is not None and (stream.credits > 0 or _is_light(stream))

    def is_starving(self) -> bool:
        """Whether the worker has used up all that it was dealt."""
        stream = self.stream
        return stream is not None and stream.credits >= DEALT_CREDITS and _is_light(stream)

    def send(self) -> None:
        """Send dealt items as far as there are credits; do nothing if the worker is gone."""
        if self.stream is not None and not self.is_gone:
            with self._noticing_its_end():
                self.stream.send()

    def settle(self, *, is_waiting: bool) -> None:
        """Send frames that get no more items, as far as there are credits, and the epoch's end."""
        if is_waiting or self.ending is not None:
            self.send()
        if self.stream is not None and self.ending is not None and not self.stream.count:
            self.tell(self.ending)
            self.ending = None

    def tell(self, message: Dealt) -> None:
        """Send the worker a message; do nothing if it is gone."""
        with self._noticing_its_end():
            self.conversation.report(message)

    def hear(self) -> None:
        """Receive the worker's messages, and send it what there was no room for."""
        with self._noticing_its_end():
            self.conversation.flush()
            for command in self.conversation.commands():
                self.on_command(command)

    @contextlib.contextmanager
    def _noticing_its_end(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            # The loader notices the worker's death too, and ends the epoch or replaces all workers.
            self.is_gone = True


def _is_light(stream: Stream) -> bool:
    return stream.count < _ROOM_ITEMS and stream.nbytes < _ROOM_BYTES
