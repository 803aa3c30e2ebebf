"""What everybody may ask of the ends of a conversation, whatever carries its frames."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from asyncloader.runtime import CallThread, call_into
from asyncloader.system import is_readable
from asyncloader.transport.ends import BlockingEnd, LoopEnd
from asyncloader.workers.actors.actor import Mailbox
from asyncloader.workers.actors.far_end import FarEnd
from asyncloader.workers.threads.near_end import channel_between, channel_to_loop
from tests.transport.channels import channel_pair

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@dataclass
class Pair:
    """The loader's end, a worker's, and what happens when the worker's program is over."""

    ours: LoopEnd
    theirs: BlockingEnd
    leave: Callable[[], None]
    release: Callable[[], None] = lambda: None


def over_a_socket() -> Pair:
    ours, theirs = channel_pair()
    return Pair(ours, theirs, theirs.close)


def between_threads() -> Pair:
    ours, theirs = channel_to_loop()
    return Pair(ours, theirs, theirs.close)


def by_calls() -> Pair:
    box = Mailbox("", {}.__getitem__)
    calls, actor = CallThread("calls of a test"), ActorHere(box)
    ours = FarEnd(actor, 0, calls, argument=lambda sent: sent)

    def release() -> None:
        box.finish(0)
        for each in (calls, actor.fetch, actor.tell):
            each.close()

    return Pair(ours, box, lambda: box.finish(0), release)


class ActorHere:
    """Answers an actor's calls in threads of this process, in place of Ray."""

    def __init__(self, box: Mailbox) -> None:
        self.fetch = Calls(lambda _: box.fetch())
        self.tell = Calls(lambda _, number, frames, *sent: box.put(number, frames, sent))


class Calls:
    """The calls of one of an actor's methods, which are made one after the other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._thread = CallThread("an actor of a test")

    def options(self, **options: Any) -> Calls:
        return self

    def remote(self, *args: Any) -> Calls:
        self._answer: Future[Any] = Future()
        self._thread.submit(partial(call_into, self._answer, self._function, *args))
        return self

    def future(self) -> Future[Any]:
        return self._answer

    def close(self) -> None:
        self._thread.close()


@pytest.fixture(params=[over_a_socket, between_threads, by_calls])
def pair(request: Any) -> Iterator[Pair]:
    pair: Pair = request.param()
    yield pair
    pair.ours.close()
    pair.theirs.close()
    pair.release()


def test_a_worker_receives_frames_in_order(pair):
    pair.ours.send(1, [b"a", bytearray(b"b")], then=[(2, b"c")])
    pair.ours.send(3, b"d")
    got = [pair.theirs.receive() for _ in range(3)]
    assert [(f.kind, bytes(f.payload), f.sequence) for f in got] == [
        (1, b"ab", 0),
        (2, b"c", 1),
        (3, b"d", 2),
    ]


def test_a_worker_receives_what_came_before_the_end(pair):
    pair.ours.send(1, b"last")
    pair.ours.close()
    assert pair.theirs.receive().payload == b"last"
    for take in (pair.theirs.receive, pair.theirs.receive_ready):
        with pytest.raises(EOFError):
            take()


def test_a_workers_descriptor_tells_of_frames_and_of_the_end(pair):
    assert not is_readable(pair.theirs.fileno(), 0)
    assert pair.theirs.receive_ready() == []
    for payload in (b"a", b"b"):
        pair.ours.send(1, payload)
        assert is_readable(pair.theirs.fileno(), 60)
        assert [f.payload for f in pair.theirs.receive_ready()] == [payload]
    assert not is_readable(pair.theirs.fileno(), 0)
    pair.ours.close()
    assert is_readable(pair.theirs.fileno(), 60)


def test_a_worker_cannot_send_to_a_loader_that_is_gone(pair):
    pair.ours.close()
    with pytest.raises(EOFError):
        pair.theirs.receive()
    with pytest.raises(EOFError):
        pair.theirs.send(1, b"x")


def test_what_is_posted_arrives(pair, run, inbox):
    pair.theirs.post(1, b"a", then=[(2, b"b")])
    pair.theirs.flush()
    assert not pair.theirs.has_unsent()

    async def main():
        got = await inbox(pair.ours).take(2)
        assert [(f.kind, bytes(f.payload)) for f in got] == [(1, b"a"), (2, b"b")]

    run(main())


def test_a_loop_gets_what_comes_while_it_is_attached_and_the_next_loop_the_rest(pair, run, inbox):
    async def take(count):
        got = await inbox(pair.ours).take(count)
        pair.ours.detach()
        return [bytes(f.payload) for f in got]

    pair.theirs.send(1, b"a")
    assert run(take(1)) == [b"a"]
    pair.theirs.send(1, b"b")
    pair.theirs.send(1, b"c")
    assert run(take(2)) == [b"b", b"c"]


def test_a_loop_is_told_of_the_end_once_and_after_the_last_frames(pair, run, inbox):
    pair.theirs.send(1, b"last")
    pair.leave()

    async def main():
        for frames in ([b"last"], []):
            # An end that is told twice is an error of the future's.
            box = inbox(pair.ours)
            assert isinstance(await box.ended, EOFError)
            assert [f.payload for f in box.frames] == frames
            await asyncio.sleep(0)
            pair.ours.detach()

    run(main())


def test_what_a_loop_sends_to_nobody_is_dropped(pair, run, inbox):
    pair.leave()

    async def main():
        box = inbox(pair.ours)
        await box.ended
        pair.ours.send(1, b"x")
        pair.ours.close()
        pair.ours.send(1, b"x")

    run(main())


def test_two_threads_talk_over_ends_that_both_wait():
    one, other = channel_between()
    one.send(1, b"a", ["beside"])
    assert other.receive().fds == ("beside",)
    other.close()
    with pytest.raises(EOFError):
        one.receive()


def test_a_thread_hears_that_the_other_end_was_dropped():
    ours, theirs = channel_to_loop()
    ours.send(1, b"last")
    del ours
    gc.collect()
    assert theirs.receive().payload == b"last"
    with pytest.raises(EOFError):
        theirs.receive()
