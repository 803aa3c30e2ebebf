"""Which items travel together, and that none waits for company."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.errors import PipelineError
from asyncloader.generators import PROCESS
from asyncloader.graph.walk import pipes_of
from asyncloader.places.random_states import RandomStates
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Decoder, Packing
from asyncloader.workers import messages
from asyncloader.workers import stream as streams
from asyncloader.workers.conversation import Conversation
from asyncloader.workers.graph_part import PartPipes, PreparedPart
from asyncloader.workers.marker import Marker
from asyncloader.workers.messages import (
    FrameKind,
    StreamEnded,
    StreamFailed,
    load_report,
    split_items,
)
from asyncloader.workers.remote_errors import pack_error, unpack_error
from asyncloader.workers.stream import Stream
from asyncloader.workers.threads.near_end import channel_between


class Clock:
    """Time that goes on only where a pipe takes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watcher:
    """Notes the streams that opened a frame, and looks after none until told."""

    def __init__(self) -> None:
        self.watched: list[Any] = []

    def watch(self, stream: Any) -> None:
        self.watched.append(stream)


class Bench:
    """A stream, and the loader's end of the channel that it sends to."""

    def __init__(self, clock: Clock, ends: tuple[Any, Any] | None = None) -> None:
        self.clock = clock
        self.watcher = Watcher()
        self._loader, self._worker = ends or map(Channel, socket.socketpair())
        self._conversation = Conversation(self._worker)
        self.arena = self._conversation.arena
        self.whereabouts = self._conversation.whereabouts
        self._decoder = Decoder()

    def stream(
        self,
        pipe: Any,
        credits: int = 100,
        *,
        one_by_one: bool = False,
        sent: float = 0.0,
    ) -> Stream:
        part = PreparedPart(Edge(pipe, RunTree()), PartPipes(pipes_of(pipe)))
        return Stream(
            self._conversation,
            self.watcher,
            lambda error, when: pack_error(error, f"here{when}"),
            pipe,
            epoch=1,
            number=0,
            credits=credits,
            one_by_one=one_by_one,
            marker=Marker(part, RandomStates(PROCESS)),
            sent=sent,
        )

    def sent(self) -> list[Any]:
        """Return what was sent since the last look: lists of items, and reports."""
        return [self._read(frame) for frame in self._loader.receive_ready()]

    def receive(self) -> Any:
        """Wait for the next frame and return what it holds."""
        return self._read(self._loader.receive())

    def _read(self, frame: Any) -> Any:
        if frame.kind == FrameKind.MESSAGE:
            return load_report(frame.payload)
        return self._decoder.decode(split_items(frame.payload).items, frame.fds)

    def close(self) -> None:
        self._loader.close()
        self._worker.close()


@pytest.fixture
def bench(monkeypatch) -> Iterator[Bench]:
    clock = Clock()
    monkeypatch.setattr(streams, "monotonic", clock)
    bench = Bench(clock)
    yield bench
    bench.close()


@pytest.fixture
def in_threads(bench) -> Iterator[Bench]:
    """A bench of a worker that is a thread."""
    in_threads = Bench(bench.clock, channel_between())
    in_threads.arena.budget = 256 << 20
    yield in_threads
    in_threads.close()


def lengths(frames: list[Any]) -> list[int]:
    return [len(frame) for frame in frames if isinstance(frame, list)]


def can_advance(stream: Stream) -> bool:
    """Whether the worker would let the stream make items."""
    return stream.credits > 0 and not stream.is_over


def all_of(bench: Bench, stream: Stream) -> list[Any]:
    frames = []
    while can_advance(stream):
        stream.advance()
        frames += bench.sent()
    return frames


def taking(clock: Clock, seconds: Callable[[int], float], count: int) -> Iterator[int]:
    for number in range(count):
        clock.now += seconds(number)
        yield number


def test_the_first_item_after_a_silence_goes_at_once_and_quick_ones_ride_together(bench):
    stream = bench.stream(taking(bench.clock, lambda number: 1e-7, 9000))
    frames = all_of(bench, stream)
    assert lengths(frames) == [1, 4096, 4096, 807]
    assert frames[-1] == StreamEnded(1, 0)
    assert [item for frame in frames[:-1] for item in frame] == list(range(9000))


ITEMS = {
    "plain": lambda number: number,
    "other": lambda number: {number},
    "mixed": lambda number: number if number % 7 % 3 else [{number}],
}


@pytest.mark.sweep
@pytest.mark.parametrize("seconds", [1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("kind", ITEMS)
def test_what_a_worker_notes_is_right_at_each_item(bench, kind, seconds):
    widths = []

    def items() -> Iterator[Any]:
        for number in range(5000):
            bench.clock.now += seconds
            if number % 701 == 700:
                # The timer's thread may do so at any moment.
                bench.clock.now += 1.0
                stream.send_if_late()
            making = bench.whereabouts.making()
            assert making is not None
            assert number in making
            widths.append(len(making))
            yield ITEMS[kind](number)

    stream = bench.stream(items(), credits=10_000)
    while can_advance(stream):
        assert bench.whereabouts.making() is None
        stream.advance()
        bench.sent()
    assert len(widths) == 5000
    # Each that takes long, or is not plain, is noted by itself.
    assert max(widths) <= (1 if seconds == 1.0 or kind == "other" else 256)


def test_quick_items_of_an_epoch_that_follows_at_once_ride_together_from_the_first_on(bench):
    items = taking(bench.clock, lambda number: 1e-7, 9000)
    assert lengths(all_of(bench, bench.stream(items, sent=bench.clock.now))) == [4096, 4096, 808]


def test_items_that_take_long_travel_alone(bench):
    frames = all_of(bench, bench.stream(taking(bench.clock, lambda number: 0.003, 10)))
    assert lengths(frames) == [1] * 10


def test_a_frame_is_no_older_than_two_milliseconds(bench):
    frames = all_of(bench, bench.stream(taking(bench.clock, lambda number: 0.0005, 41)))
    assert lengths(frames) == [1, *[4] * 10]


@pytest.mark.parametrize(
    ("arena_bytes", "credits", "expected"),
    [
        (8 << 20, 100, [1, 4, 4, 1]),
        (8 << 20, 3, [1, 2]),
        (8 << 20, 1, [1]),
        # Each takes a slot of 73,728 bytes.
        (450_000, 5, [1, 3, 1]),
        # Without shared memory the socket has to hold them.
        (0, 100, [1] * 10),
    ],
)
def test_heavy_items_cost_a_credit_each_and_ride_together_where_there_is_memory(
    bench, monkeypatch, arena_bytes, credits, expected
):
    # Less than a socket holds.
    monkeypatch.setattr(messages, "CREDIT_BYTES", 64 << 10)
    bench.arena.budget = arena_bytes
    stream = bench.stream(iter([bytes(70_000)] * 10), credits)
    assert lengths(all_of(bench, stream)) == expected


def test_a_frame_of_few_light_items_and_a_heavy_one_costs_no_more_than_there_is(bench, monkeypatch):
    monkeypatch.setattr(messages, "CREDIT_BYTES", 16 << 10)
    bench.arena.budget = 8 << 20
    items = [b"first", *[b"light"] * 20, bytes(200_000), b"last"]
    stream = bench.stream(iter(items), credits=6)
    assert lengths(all_of(bench, stream)) == [1, 21]
    assert stream.credits == 0
    stream.grant(1)
    assert lengths(all_of(bench, stream)) == [1]


def test_all_credits_together_stay_within_what_a_worker_may_have_under_way(bench):
    bench.arena.budget = 100_000
    stream = bench.stream(iter([b"a" * 1000] * 300), credits=10, sent=bench.clock.now)
    frames = all_of(bench, stream)
    assert stream.credits == 0
    assert 70_000 < sum(len(item) for frame in frames for item in frame) <= 100_000


def test_large_rows_after_many_tiny_ones_share_no_frame_of_many_mebibytes(bench):
    bench.arena.budget = 8 << 20
    rows = [["tiny"]] * 300 + [["a" * 15_000]] * 400
    stream = bench.stream(iter(rows), credits=1, sent=bench.clock.now)
    # The frame is larger than the socket's buffer.
    advancing = threading.Thread(target=stream.advance)
    advancing.start()
    frame = bench.receive()
    advancing.join()
    assert not can_advance(stream)
    assert (1 << 20) - 30_000 < sum(len(row[0]) for row in frame) < (1 << 20) + (1 << 18)


def test_one_by_one_is_one_item_a_frame(bench):
    stream = bench.stream(range(5), one_by_one=True)
    assert lengths(all_of(bench, stream)) == [1] * 5


def test_a_credit_is_a_frame_of_1024_items(bench):
    stream = bench.stream(taking(bench.clock, lambda number: 1e-7, 5000), credits=3)
    assert lengths(all_of(bench, stream)) == [1, 2048]
    stream.grant(1)
    assert lengths(all_of(bench, stream)) == [1024]


def test_a_frame_of_many_quick_items_is_little_older_than_two_milliseconds(bench):
    stream = bench.stream(taking(bench.clock, lambda number: 3e-6, 5000), sent=bench.clock.now)
    # The clock is looked at after every 256 items at least.
    assert set(lengths(all_of(bench, stream))[:-1]) == {768}


def test_an_open_frame_is_sent_when_it_is_due_while_the_next_item_is_made(bench):
    def slow() -> Iterator[int]:
        yield 0
        yield 1
        assert stream.send_if_late() is True, "not yet"
        assert bench.sent() == []
        bench.clock.now += 0.0021
        assert stream.send_if_late() is False
        assert bench.sent() == [[1]]
        assert stream.send_if_late() is False, "nothing is open"
        yield 2

    stream = bench.stream(slow())
    assert all_of(bench, stream) == [[0], [2], StreamEnded(1, 0)]
    assert set(bench.watcher.watched) == {stream}


@pytest.mark.parametrize("quick", [5, 20, 300, 3000])
@pytest.mark.parametrize("made", [lambda number: number, lambda number: [number]])
def test_an_item_that_follows_a_slow_one_is_not_held_back_though_the_timer_sent_in_between(
    bench, quick, made
):
    def turning_slow() -> Iterator[Any]:
        for number in range(quick):
            yield made(number)
        # It takes so long to make the next one that the timer sends those before it.
        bench.clock.now += 0.0021
        stream.send_if_late()
        bench.sent()
        bench.watcher.watched.clear()
        yield made(quick)
        assert bench.sent() == [[made(quick)]] or bench.watcher.watched == [stream]
        bench.clock.now += 0.0021
        stream.send_if_late()
        yield made(quick + 1)

    stream = bench.stream(turning_slow(), sent=bench.clock.now)
    *_, last, end = all_of(bench, stream)
    assert last == [made(quick + 1)]
    assert end == StreamEnded(1, 0)


def test_what_was_held_back_for_a_credit_goes_before_the_next_is_made(bench):
    def slow() -> Iterator[int]:
        yield 0
        yield 1
        bench.clock.now += 0.0021
        stream.send_if_late()
        yield 2
        raise AssertionError("made before what was there was sent")

    stream = bench.stream(slow(), credits=2)
    stream.advance()
    stream.advance()
    assert bench.sent() == [[0], [1]]
    assert not can_advance(stream)
    stream.grant(1)
    stream.advance()
    assert bench.sent() == [[2]]


def test_items_are_as_they_were_when_they_were_made(bench):
    def same() -> Iterator[list[int]]:
        item = [0]
        for item[0] in range(5):
            yield item

    frames = all_of(bench, bench.stream(same()))
    assert [item for frame in frames[:-1] for item in frame] == [[0], [1], [2], [3], [4]]


def test_an_error_comes_behind_the_items_before_it(bench):
    def failing() -> Iterator[int]:
        yield from range(5)
        raise KeyError("five")

    *frames, failed = all_of(bench, bench.stream(failing()))
    assert [item for frame in frames for item in frame] == [0, 1, 2, 3, 4]
    assert isinstance(failed, StreamFailed)
    error = unpack_error(failed.error)
    assert (type(error), error.args) == (KeyError, ("five",))
    assert error.__notes__[-1].startswith("here, after 5 items:\n")


def test_an_item_that_cannot_be_pickled_is_an_error_in_its_place(bench):
    *frames, failed = all_of(bench, bench.stream(iter([1, 2, threading.Lock(), 4])))
    assert [item for frame in frames for item in frame] == [1, 2]
    error = unpack_error(failed.error)
    assert type(error) is PipelineError
    assert "item 2 of list_iterator" in str(error)
    assert "_thread.lock" in str(error)


def test_a_pipe_that_fails_to_begin_is_an_error_too(bench):
    class Broken:
        def __iter__(self) -> Any:
            raise KeyError("broken")

    (failed,) = all_of(bench, bench.stream(Broken()))
    assert type(unpack_error(failed.error)) is KeyError


def test_dropping_closes_the_pipe_and_forgets_the_open_frame(bench):
    closed = []

    def endless() -> Iterator[int]:
        try:
            while True:
                bench.clock.now += 1e-6
                yield 1
        finally:
            closed.append(True)

    stream = bench.stream(endless(), credits=1)
    stream.advance()
    bench.sent()
    stream.drop()
    assert closed == [True]
    assert not can_advance(stream)
    assert stream.send_if_late() is False
    assert bench.sent() == []


def test_an_item_that_is_made_while_the_timer_sends_is_counted_with_its_frame(bench, monkeypatch):
    finish = Packing.finish

    def interrupted(packing: Packing) -> Any:
        if packing.plain == [0]:
            # The thread that makes items takes no lock for tiny ones.
            packing.plain.append(1)
        return finish(packing)

    monkeypatch.setattr(Packing, "finish", interrupted)
    stream = bench.stream(iter([0, 2]))
    *batches, end = all_of(bench, stream)
    assert isinstance(end, StreamEnded)
    assert list(itertools.chain.from_iterable(batches)) == [0, 1, 2]
    assert stream.made == 3


def test_an_end_that_comes_while_the_timer_sends_is_told_once_and_last(bench, monkeypatch):
    finish = Packing.finish
    stream = bench.stream(iter([]))

    def interrupted(packing: Packing) -> Any:
        finished = finish(packing)
        # The thread that makes items goes on at once: one more, and the end.
        packing.plain.append(1)
        stream._ending = [StreamEnded(1, 0)]
        monkeypatch.setattr(Packing, "finish", finish)
        return finished

    stream.add(0)
    monkeypatch.setattr(Packing, "finish", interrupted)
    stream.send()
    stream.advance()
    *batches, end = bench.sent()
    assert batches == [[0], [1]]
    assert isinstance(end, StreamEnded)
    assert stream.is_over


@pytest.mark.parametrize(
    ("mebibytes", "seconds", "ahead"),
    [
        pytest.param(1, 0.0005, 4, id="several in a frame"),
        pytest.param(4, 0.002, 4, id="a quarter of what is made ahead"),
        pytest.param(16, 0.008, 1, id="as large as what is made ahead"),
        pytest.param(32, 0.016, 1, id="larger"),
        pytest.param(4, 0.2, 10, id="slow"),
        pytest.param(4, 0.005, 10, id="slower than memory"),
    ],
)
def test_a_thread_makes_little_ahead_of_large_items_that_are_made_as_fast_as_memory_is(
    in_threads, mebibytes, seconds, ahead
):
    arrays = taking(in_threads.clock, lambda _: seconds, 100)
    stream = in_threads.stream(IterableWrapper(arrays).map(lambda _: bytes(mebibytes << 20)), 10)
    frames = 0
    while can_advance(stream):
        stream.advance()
        frames += 1
    assert frames == ahead


def test_a_process_makes_as_much_ahead_of_large_items_as_its_memory_holds(bench):
    bench.arena.budget = 256 << 20
    arrays = taking(bench.clock, lambda _: 0.002, 100)
    stream = bench.stream(IterableWrapper(arrays).map(lambda _: bytes(4 << 20)), 10)
    assert len(all_of(bench, stream)) == 10
