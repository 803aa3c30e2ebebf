"""A worker's program.

This file is about a worker process, from its first command to the end of its channel: it sets
up a copy of the graph, and sends each epoch's items as far as its credits allow.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, assert_never

from asyncloader.arguments import checked_graph, function_name
from asyncloader.datapipes.base import DataPipe, expect_methods
from asyncloader.datapipes.mapping import own_memory
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.run_place import Home, run_at
from asyncloader.datapipes.running.traits import is_filter_of_shards
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import ResourceExhausted
from asyncloader.graph.settings import PartSeeds, apply_sharding
from asyncloader.graph.walk import Graph, breadth_first, pipes_of
from asyncloader.places.random_states import RandomStates, SharedGenerators
from asyncloader.runtime import LoopThread
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.channel import Channel
from asyncloader.transport.ends import BlockingEnd
from asyncloader.transport.parcel import unpack_code
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.conversation import Conversation, refuse
from asyncloader.workers.dispatch_source import FromDispatcher, FromLoader, Supply
from asyncloader.workers.graph_part import (
    NO_RESETS,
    GraphPart,
    PreparedPart,
    check_alike,
    is_as_long,
    load_resets,
    resets_name,
)
from asyncloader.workers.marker import Marker, dealt_before
from asyncloader.workers.messages import (
    NO_EPOCH,
    BeginStream,
    Command,
    EndEpoch,
    Grant,
    Hurry,
    Instruction,
    Ready,
    Setup,
    StartEpoch,
    StartFailed,
)
from asyncloader.workers.process.setup import OwnProcess, Surroundings
from asyncloader.workers.remote_errors import pack_error
from asyncloader.workers.stream import FlushTimer, Stream
from asyncloader.workers.worker_stats import Account


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker runs: the last pipe of each stream, and the places of their seeds."""

    ends: tuple[Any, ...]
    seed_places: tuple[tuple[int, ...], ...]
    init_fn: Callable[[Any, WorkerInfo], Any] | None


def main(sock: socket.socket) -> None:
    """Work until the loader closes the channel."""
    try:
        process = Worker(Conversation(Channel(sock)), OwnProcess())
    except ResourceExhausted as error:
        refuse(sock, error)
        return
    with contextlib.suppress(EOFError):
        process.serve()


def work(channel: BlockingEnd, surroundings: Surroundings) -> None:
    """Work until the loader closes the channel, where all is known to be in order."""
    with contextlib.suppress(EOFError):
        Worker(Conversation(channel), surroundings).serve()


class Worker:
    """Runs a copy of the graph's replicable part for a loader."""

    def __init__(self, conversation: Conversation, surroundings: Surroundings) -> None:
        self._conversation = conversation
        self._surroundings = surroundings
        self._thread = LoopThread()
        self._account = Account(conversation, Stream.advance.__code__, self._made)
        self._home = Home(
            self._thread, self._account.watching, beyond=lambda: surroundings.beyond()
        )
        self._context = run_at(self._home)
        conversation.tally = self._account.tally
        self._flush_timer = FlushTimer()
        self._info = WorkerInfo(num_workers=1, worker_id=0)
        self._parts: list[GraphPart] = []
        #: Called before a state of another number of workers is resumed.
        self._init_checks: list[Callable[[], None]] = []
        self._epoch = NO_EPOCH
        self._inlets: list[FromDispatcher] = []
        self._supplies: list[Supply] = []
        #: The parts that the epoch's streams iterate, and the streams that have begun.
        self._ready: list[PreparedPart] = []
        self._generators = SharedGenerators(surroundings.generators, ())
        self._streams: dict[int, Stream] = {}
        #: When the streams of the epoch before last sent something.
        self._sent: dict[int, float] = {}
        self._turns: deque[Stream] = deque()
        self._is_paused = False

    def serve(self) -> None:
        """Obey commands and send items; EOFError when the loader closes the channel."""
        try:
            while True:
                stream = self._next_stream()
                if stream is None:
                    self._account.main.resting_since = perf_counter()
                    command = self._conversation.command()
                    self._account.main.resume()
                    self._obey(command)
                elif commands := self._conversation.commands_by_now():
                    for command in commands:
                        self._obey(command)
                else:
                    if stream.number != self._generators.turn:
                        self._generators.turn_to(stream.number)
                    self._context.run(stream.advance)
                    if monotonic() >= self._account.due:
                        self._account.tell()
        finally:
            self._flush_timer.close()
            self._account.close()
            self._end_epoch()
            self._thread.close()
            for supply in self._supplies:
                supply.close()

    def _obey(self, command: Command) -> None:
        match command:
            case Setup():
                self._set_up(command)
            case StartEpoch():
                self._start_epoch(command)
            case BeginStream():
                self._begin_stream(command)
            case Grant(epoch, number, credits):
                # A Grant that was sent before the epoch ended may arrive late.
                if epoch == self._epoch and number in self._streams:
                    self._streams[number].grant(credits)
            case EndEpoch():
                self._end_epoch()
            case Hurry():
                pass  # the conversation has already handled it
            case Instruction.PAUSE | Instruction.RESUME:
                self._is_paused = command is Instruction.PAUSE
            case Instruction.ANSWER:
                self._account.tell()
            case _:
                assert_never(command)

    def _set_up(self, command: Setup) -> None:
        self._conversation.arena.budget = command.arena_bytes
        self._info = command.info
        self._surroundings.settle(command.info)
        expect_methods(command.homes)
        plan_fds, channels = self._conversation.take_fds(
            command.plan_fds, has_memory=command.has_memory
        )
        try:
            plan: WorkerPlan = unpack_code(command.plan, plan_fds)
            self._surroundings.know(plan.ends)
            # Made again, of a context that knows which worker this is.
            self._context = run_at(self._home)
            seeds = list(map(PartSeeds, plan.ends, plan.seed_places))
            self._connect(plan.ends, channels)
            given = [pipes_of(end) for end in plan.ends]
            ends = [self._initialized(end, plan) for end in plan.ends]
            self._conversation.whereabouts.name(_in_order(ends))
            is_counted = plan.init_fn is None or all(map(is_as_long, ends, given))
            self._parts = list(map(GraphPart, ends, seeds))
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code ran; start-up raises it
            self._conversation.report(StartFailed(NO_EPOCH, self._packed(error)))
        else:
            self._conversation.report(Ready(has_other_length=not is_counted))

    def _connect(self, ends: Sequence[Any], channels: Sequence[BlockingEnd]) -> None:
        """Give the pipes of dealt items their channels."""
        pipes = {id(pipe): pipe for end in ends for pipe in breadth_first(end)}
        self._inlets = [pipe for pipe in pipes.values() if isinstance(pipe, FromDispatcher)]
        # The channel to the dispatching process comes first, then that to the loader.
        kinds = {type(inlet): inlet for inlet in self._inlets}
        wanted = [kind for kind in (FromDispatcher, FromLoader) if kind in kinds]
        for kind, channel in zip(wanted, channels, strict=True):
            supply = kinds[kind].new_supply(channel)
            self._supplies.append(supply)
            for inlet in self._inlets:
                if type(inlet) is kind:
                    inlet.supply = supply

    def _initialized(self, end: Any, plan: WorkerPlan) -> Any:
        info = self._info
        shard_for_worker(end, info)
        if plan.init_fn is None:
            return end
        given, giver = breadth_first(end), f"worker_init_fn={function_name(plan.init_fn)}"
        returned = self._run(plan.init_fn, end, info)
        returned = checked_graph("worker_init_fn", plan.init_fn, returned)
        self._init_checks.append(partial(check_alike, given, returned, giver))
        return returned

    def _start_epoch(self, command: StartEpoch) -> None:
        self._end_epoch()
        self._epoch = command.epoch
        self._is_paused = False
        try:
            self._ready = self._reset(command)
            self._account.begin(command.epoch, self._ready)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
            self._conversation.report(StartFailed(command.epoch, self._packed(error)))

    def _begin_stream(self, command: BeginStream) -> None:
        # An epoch that could not be made ready has no streams.
        if command.epoch != self._epoch or not self._ready:
            return
        part = self._ready[command.stream]
        for inlet in self._inlets:
            if any(pipe is inlet for pipe in part.pipes):
                inlet.begin_epoch(command.epoch, dealt_before(inlet, command.mark.cursors))
        if command.stream != self._generators.turn:
            self._generators.turn_to(command.stream)
        stream = Stream(
            self._conversation,
            self._flush_timer,
            self._packed,
            part.end,
            epoch=command.epoch,
            number=command.stream,
            credits=command.credits,
            one_by_one=command.one_by_one,
            marker=Marker(
                part,
                RandomStates(self._surroundings.generators),
                command.mark,
                command.unwanted,
                command.settled,
                command.kept,
            ),
            sent=self._sent.get(command.stream, 0.0),
        )
        self._streams[command.stream] = stream
        self._turns.append(stream)

    def _reset(self, command: StartEpoch) -> list[PreparedPart]:
        if command.seed_generator.taken_with is not None:
            for check in self._init_checks:
                check()
        generator = command.seed_generator.spawn(self._info.worker_id, inplace=True)
        first = self._seeding(generator)
        first()
        ready = []
        tree = RunTree()
        for part in self._parts:
            part.seed(command.shared_seeds, generator)
            ready.append(self._prepared(part, tree, command))
        seedings = [first, *(self._seeding(generator) for _ in ready[1:])]
        self._generators = SharedGenerators(self._surroundings.generators, seedings)
        self._let_last_make_in_slots(ready)
        return ready

    def _prepared(self, part: GraphPart, tree: RunTree, command: StartEpoch) -> PreparedPart:
        if command.resets == NO_RESETS:
            return part.prepared(tree)
        reset, own_reset = load_resets(command.resets)

        def both(pipe: Any) -> Any:
            given = pipes_of(pipe)
            pipe = checked_graph("iter_reset_fn", reset, self._run(reset, pipe))
            pipe = self._run(own_reset, pipe, self._info, command.seed_generator)
            pipe = checked_graph("worker_reset_fn", own_reset, pipe)
            if command.seed_generator.taken_with is not None:
                check_alike(given, pipe, resets_name(own_reset))
            return pipe

        return part.reset(tree, both, command.seed_generator)

    def _seeding(self, generator: SeedGenerator) -> Callable[[], None]:
        """Return a function that seeds the worker's generators, each time in the same way."""
        return partial(self._surroundings.seed, [generator.generate_seed() for _ in range(3)])

    def _let_last_make_in_slots(self, ready: list[PreparedPart]) -> None:
        if self._conversation.hands_over:
            # It takes ordinary memory, and what collates is shared with other threads.
            return
        # A reset may have added another pipe at the end, and one stream's last pipe may be
        # read by another stream.
        for part in self._parts:
            if isinstance(part.end, DataPipe):
                part.end.make_in(own_memory)
        if len(ready) == 1 and isinstance(ready[0].end, DataPipe):
            ready[0].end.make_in(self._conversation.allocate)

    def _end_epoch(self) -> None:
        streams, self._streams = self._streams, {}
        # In epochs that follow quickly the first items share frames too.
        self._sent |= {number: stream.sent for number, stream in streams.items()}
        ready, self._ready = self._ready, []
        self._turns.clear()
        for stream in streams.values():
            # The epoch is over, so errors of user code that is being closed do not matter.
            with contextlib.suppress(Exception):
                self._context.run(stream.drop)
        for part in ready:
            self._context.run(part.edge.tree.close_sources)

    def _made(self) -> list[int]:
        """Return how many items were made of each stream."""
        numbers = range(len(self._ready))
        return [self._streams[each].made if each in self._streams else 0 for each in numbers]

    def _next_stream(self) -> Stream | None:
        """Return the stream to advance next; they take turns."""
        for _ in range(0 if self._is_paused else len(self._turns)):
            stream = self._turns[0]
            self._turns.rotate(-1)
            if stream.credits > 0 and not stream.is_over:
                return stream
        return None

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a user's function, which may be async."""
        # A plain function must run in the same thread as the pipes.
        return self._thread.finished(function(*args))

    def _packed(self, error: BaseException, when: str = "") -> bytes:
        place = f"{self._conversation.place}{when}"
        where = f"in worker {self._info.worker_id} of {self._info.num_workers}{place}"
        return pack_error(error, where)


def _in_order(ends: Sequence[Any]) -> list[Any]:
    """Return all pipes of several graphs, each after those that it reads."""
    pipes = [pipe for end in ends for pipe in breadth_first(end)]
    return list({id(pipe): pipe for pipe in pipes}.values())[::-1]


def shard_for_worker(end: Any, info: WorkerInfo) -> None:
    """Make the sharding filters of a part keep this worker's items.

    Filters after dealt items keep everything, because dealing has divided them already.
    """
    graph = Graph(end)
    dealt = [pipe for pipe in graph.pipes if isinstance(pipe, FromDispatcher)]
    group = SHARDING_PRIORITIES.MULTIPROCESSING
    if not dealt:
        apply_sharding(end, info.num_workers, info.worker_id, group)
        return
    after = {key for inlet in dealt for key in graph.downstream(inlet)}
    for pipe in graph.pipes:
        if is_filter_of_shards(pipe) and id(pipe) not in after:
            apply_sharding(pipe, info.num_workers, info.worker_id, group)
