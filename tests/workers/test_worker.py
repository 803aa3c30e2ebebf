"""A worker's side of the conversation, over a channel within one process."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import torch

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.errors import PipelineError
from asyncloader.graph.settings import SharedPipes
from asyncloader.graph.walk import Graph
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import unchanged
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.channel import Channel
from asyncloader.transport.code import dumps_code
from asyncloader.transport.codec import Decoder, read_payload
from asyncloader.transport.frame import Frame
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers import messages
from asyncloader.workers import worker as program
from asyncloader.workers.graph_part import dump_resets
from asyncloader.workers.messages import (
    BeginStream,
    Command,
    EndEpoch,
    FrameKind,
    Grant,
    Hurry,
    Instruction,
    Ready,
    Report,
    Setup,
    StartEpoch,
    StartFailed,
    StreamEnded,
    StreamFailed,
    Tallied,
    dump_message,
    dump_slots,
    load_report,
    split_items,
)
from asyncloader.workers.remote_errors import unpack_error
from asyncloader.workers.threads.own_thread import OwnThread
from asyncloader.workers.worker import WorkerPlan

SOON = 10.0


class Loader:
    """The loader's end: says commands, and hears what comes in the order in which it comes."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock)
        self._arrived: deque[Frame] = deque()
        self._view = ArenaView()
        self._decoder = Decoder(self._view)
        self.generator = SeedGenerator(1)
        #: Of every frame of items, what it says of the slots it is in.
        self.slot_sizes: list[list[int]] = []

    def say(self, command: Command) -> None:
        self._channel.send(FrameKind.MESSAGE, dump_message(command))

    def set_up(self, *ends: Any, init_fn: Any = None, arena_bytes: int = 16 << 20) -> Any:
        self.streams = len(ends)
        places = tuple(SharedPipes(Graph(end)).places_in(end) for end in ends)
        plan = dumps_code(WorkerPlan(ends, places, init_fn))
        self.say(Setup(WorkerInfo(2, 1), plan, arena_bytes))
        return self.hear()

    def start(
        self, epoch: int = 1, credits: int = 10, reset: Any = unchanged, fn: Any = None
    ) -> None:
        resets = dump_resets(reset, fn)
        self.say(StartEpoch(epoch, (), self.generator, resets))
        for number in range(self.streams):
            self.say(BeginStream(epoch, number, credits, credits == 0))

    def hear(self, timeout: float = SOON) -> Any:
        """Return a report, or ``(epoch, stream, items)``; what is told of the work goes by."""
        frame = self._next_frame(timeout)
        if frame.kind == FrameKind.MESSAGE:
            report = load_report(frame.payload)
            return self.hear(timeout) if isinstance(report, Tallied) else report
        part = split_items(frame.payload)
        self.slot_sizes.append([slot.nbytes for slot in read_payload(part.items).slots])
        return part.epoch, part.stream, self._decoder.decode(part.items, frame.fds)

    def _next_frame(self, timeout: float) -> Frame:
        while not self._arrived:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise TimeoutError
            self._arrived += self._channel.receive_ready()
        return self._arrived.popleft()

    def frames(self, until: type[Report] = StreamEnded) -> list[Any]:
        """Return the items of all frames up to a report, which comes last."""
        heard = []
        while not isinstance(heard[-1] if heard else None, until):
            heard.append(self.hear())
        return [each[2] if isinstance(each, tuple) else each for each in heard]

    def hear_items(self, count: int) -> None:
        """Hear so many items, in whatever frames, and then nothing more."""
        while count > 0:
            count -= len(self.hear()[2])
        assert count == 0
        with pytest.raises(TimeoutError):
            self.hear(timeout=0.1)

    def return_slots(self) -> None:
        self._channel.send(FrameKind.RELEASED, dump_slots(self._view.take_released()))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def loader(monkeypatch) -> Iterator[Loader]:
    # So that items of a size that sockets hold are heavy.
    monkeypatch.setattr(messages, "CREDIT_BYTES", 64 << 10)
    ours, theirs = socket.socketpair()
    before = set(threading.enumerate())
    worker = threading.Thread(target=program.work, args=(Channel(theirs), OwnThread()))
    worker.start()
    loader = Loader(ours)
    yield loader
    loader.close()
    worker.join(SOON)
    assert not worker.is_alive(), "a worker ends with its channel"
    # One that ran on might send through a descriptor that is closed, or is somebody else's.
    for thread in set(threading.enumerate()) - before:
        thread.join(SOON)
        assert not thread.is_alive(), thread
    theirs.close()


def numbers(count: int = 10) -> Any:
    return IterableWrapper(range(count)).sharding_filter()


def items_of(frames: list[Any]) -> list[Any]:
    return [item for frame in frames if isinstance(frame, list) for item in frame]


def test_a_worker_yields_its_shard_epoch_after_epoch(loader):
    assert loader.set_up(numbers()) == Ready()
    for epoch in (1, 2):
        loader.start(epoch)
        frames = loader.frames()
        assert items_of(frames) == [1, 3, 5, 7, 9]
        assert frames[-1] == StreamEnded(epoch, 0)


def test_small_items_ride_together_and_few_large_ones(loader):
    loader.set_up(numbers(2000))
    loader.start(credits=99)
    sizes = [len(frame) for frame in loader.frames()[:-1]]
    # The first goes at once, so that nobody waits.
    assert sizes[0] == 1
    assert max(sizes) >= 32
    loader.set_up(numbers(20).map(lambda number: bytes(100_000)))
    loader.start(2, credits=20)
    sizes = [len(frame) for frame in loader.frames()[:-1]]
    assert sum(sizes) == 10
    assert max(sizes) <= 4


def test_credits_are_large_items(loader):
    loader.set_up(numbers(20).map(lambda number: bytes(100_000)))
    loader.start(credits=2)
    loader.hear_items(2)
    loader.say(Grant(1, 0, 3))
    loader.hear_items(3)
    loader.say(Grant(7, 0, 3))
    with pytest.raises(TimeoutError):
        loader.hear(timeout=0.1)
    loader.say(Grant(1, 0, 99))
    assert len(items_of(loader.frames())) == 5


def test_without_credits_each_item_is_asked_for(loader):
    loader.set_up(numbers(6))
    loader.start(credits=0)
    for number in (1, 3, 5):
        with pytest.raises(TimeoutError):
            loader.hear(timeout=0.05)
        loader.say(Grant(1, 0, 1))
        assert loader.hear() == (1, 0, [number])
    loader.say(Grant(1, 0, 1))
    assert loader.hear() == StreamEnded(1, 0)


RELEASE = threading.Event()


def large_when_released(number: int) -> bytes:
    RELEASE.wait(SOON)
    return bytes(100_000)


def test_streams_take_turns(loader):
    RELEASE.clear()
    loader.set_up(numbers(100).map(large_when_released), numbers(100).map(large_when_released))
    loader.start(credits=100)
    RELEASE.set()
    sent = [0, 0]
    senders: list[int] = []
    while min(sent) < 15:
        _, stream, items = loader.hear()
        sent[stream] += len(items)
        senders.append(stream)
    turns = [len(list(frames)) for _, frames in groupby(senders)]
    # A turn is a frame; the clock may send a part of it by itself. The first may be ahead by what
    # it made before the worker looked for the second.
    assert max(turns[1:-1]) <= 3, turns


def wait_at_5(number: int) -> int:
    if number == 5:
        RELEASE.wait(6 * SOON)
    return number


def test_an_item_is_sent_though_the_next_one_takes_long(loader):
    RELEASE.clear()
    loader.set_up(numbers(8).map(wait_at_5))
    loader.start(credits=1)
    begun = time.monotonic()
    # One frame or two, as the machine has it: a second one only with a credit.
    loader.say(Grant(1, 0, 1))
    items = loader.hear()[2]
    while items[-1] != 3:
        items += loader.hear()[2]
    assert items == [1, 3]
    assert time.monotonic() - begun < 2 * SOON
    RELEASE.set()
    loader.say(Grant(1, 0, 9))
    assert items_of(loader.frames()) == [5, 7]


def test_a_pause_holds_until_resume(loader):
    loader.set_up(numbers(2000))
    loader.start(credits=1)
    loader.hear()
    loader.say(Instruction.PAUSE)
    loader.say(Grant(1, 0, 99))
    with pytest.raises(TimeoutError):
        loader.hear(timeout=0.1)
    loader.say(Instruction.RESUME)
    assert items_of(loader.frames())[-1] == 1999


class Closes(IterDataPipe[int]):
    edges = ()

    def __iter__(self) -> Any:
        try:
            yield from range(1_000_000)
        finally:
            CLOSED.set()


CLOSED = threading.Event()


@pytest.mark.parametrize("how", ["EndEpoch", "StartEpoch", "close"])
def test_pipes_are_closed_when_their_epoch_ends(loader, how):
    CLOSED.clear()
    loader.set_up(Closes())
    loader.start(credits=1)
    loader.hear()
    match how:
        case "EndEpoch":
            loader.say(EndEpoch(1))
        case "StartEpoch":
            loader.start(2, credits=1)
            assert loader.hear()[0] == 2
        case "close":
            loader.close()
    assert CLOSED.wait(SOON)


def fail_at_5(number: int) -> Any:
    if number == 5:
        raise KeyError("five")
    return number


def test_an_error_ends_the_stream_behind_the_items_before_it(loader):
    loader.set_up(numbers().map(fail_at_5))
    loader.start()
    *frames, failed = loader.frames(StreamFailed)
    assert items_of(frames) == [1, 3]
    error = unpack_error(failed.error)
    assert (type(error), error.args) == (KeyError, ("five",))
    assert "in worker 1 of 2, after 2 items:" in error.__notes__[-1]


def test_an_item_that_cannot_be_pickled_ends_the_stream_behind_those_before_it(loader):
    loader.set_up(numbers().map(lambda number: [number] if number < 5 else (i for i in range(1))))
    loader.start()
    *frames, failed = loader.frames(StreamFailed)
    assert items_of(frames) == [[1], [3]]
    error = unpack_error(failed.error)
    assert type(error) is PipelineError
    assert "item 2 of map(" in str(error)
    assert "builtins.generator" in str(error)


def fail(*args: Any) -> Any:
    raise KeyError("at start")


async def fail_soon(pipe: Any) -> Any:
    raise KeyError("at start")


def test_what_fails_at_set_up_is_told_and_may_be_tried_again(loader):
    told = loader.set_up(numbers(), init_fn=fail)
    assert isinstance(told, StartFailed)
    assert (told.epoch, type(unpack_error(told.error))) == (0, KeyError)
    assert loader.set_up(numbers()) == Ready()


def forget_to_return(*args: Any) -> None:
    pass


async def forget_to_return_soon(*args: Any) -> None:
    pass


def test_an_init_function_that_returns_no_pipe_is_named(loader):
    told = loader.set_up(numbers(), init_fn=forget_to_return)
    error = unpack_error(told.error)
    assert type(error) is TypeError
    assert "worker_init_fn must return the pipe to use" in str(error)
    assert "forget_to_return returned NoneType" in str(error)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("worker_reset_fn", {"fn": forget_to_return}),
        ("iter_reset_fn", {"reset": forget_to_return_soon}),
    ],
)
def test_a_reset_that_returns_no_pipe_is_named(loader, name, kwargs):
    loader.set_up(numbers())
    loader.start(1, **kwargs)
    error = unpack_error(loader.hear().error)
    assert type(error) is TypeError
    assert f"{name} must return the pipe to use, but forget_to_return" in str(error)
    loader.start(2)
    assert items_of(loader.frames()) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("kwargs", [{"reset": fail_soon}, {"fn": fail}])
def test_what_fails_at_the_start_of_an_epoch_is_told(loader, kwargs):
    loader.set_up(numbers())
    loader.start(1, **kwargs)
    told = loader.hear()
    assert isinstance(told, StartFailed)
    assert (told.epoch, type(unpack_error(told.error))) == (1, KeyError)
    loader.start(2)
    assert items_of(loader.frames()) == [1, 3, 5, 7, 9]


def test_a_full_arena_waits_for_slots_unless_the_item_is_waited_for(loader):
    loader.set_up(numbers(20).map(lambda number: bytearray(400_000)), arena_bytes=1 << 20)
    loader.start()
    kept = [loader.hear()[2] for _ in range(2)]
    with pytest.raises(TimeoutError):
        loader.hear(timeout=0.1)
    loader.say(Hurry(1, 0))
    kept.append(loader.hear()[2])
    with pytest.raises(TimeoutError):
        loader.hear(timeout=0.1)
    del kept[:]
    loader.return_slots()
    assert loader.hear()[1] == 0
    loader.say(EndEpoch(1))
    loader.start(2, credits=1)
    while loader.hear()[0] != 2:
        loader.return_slots()


def test_a_hurry_that_comes_after_the_end_of_its_stream_is_forgotten_with_the_epoch(loader):
    loader.set_up(numbers(6).map(lambda number: bytearray(400_000)), arena_bytes=1 << 20)
    loader.start(1)
    while not isinstance(loader.hear(), StreamEnded):
        loader.return_slots()
    loader.return_slots()
    loader.say(Hurry(1, 0))
    loader.start(2)
    # Nobody waits for the third, so that it waits for a slot.
    loader.hear_items(2)
    loader.return_slots()
    assert loader.hear()[0] == 2


def filled(number: int) -> Any:
    return torch.full((12_500,), float(number))


def test_a_collated_batch_is_sent_from_where_it_was_made_and_stays_as_it_was(loader):
    loader.set_up(IterableWrapper(range(20)).map(filled).batch(2).collate())
    kept = []
    for epoch in (1, 2):
        loader.start(epoch, credits=20)
        kept += items_of(loader.frames())
        loader.return_slots()
    expected = [[2.0 * n, 2.0 * n + 1] for n in range(10)] * 2
    assert [batch[:, -1].tolist() for batch in kept] == expected
    # They say all of the slot: a copy says how much of it there is.
    assert [size for frame in loader.slot_sizes for size in frame] == [106_496] * 20


def test_a_batch_that_a_reset_put_a_pipe_behind_is_not_made_where_it_is_sent_from(loader):
    loader.set_up(IterableWrapper(range(4)).map(filled).batch(2).collate())
    for epoch, fn, size in ((1, None, 106_496), (2, with_a_pipe_behind, 100_000)):
        loader.slot_sizes.clear()
        loader.start(epoch, fn=fn)
        assert [each[0, 0].item() for each in items_of(loader.frames())] == [0.0, 2.0]
        assert {each for frame in loader.slot_sizes for each in frame} == {size}


def with_a_pipe_behind(pipe: Any, *_: Any) -> Any:
    return pipe.map(as_it_is)


def as_it_is(item: Any) -> Any:
    return item
