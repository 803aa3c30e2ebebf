import asyncio
import gc
import os
import socket
import threading
import time

import pytest

from asyncloader.errors import LoopMismatchError, TransportError
from asyncloader.transport.channel import LoopChannel
from tests.transport.test_channel import raw
from tests.transport.test_frame import header

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def ends():
    """An end for a loop and the bare socket at its other side."""
    ours, theirs = socket.socketpair()
    channel = LoopChannel(ours, frame_deadline=0.05)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_many_frames_are_handed_over_at_once(pair, run, inbox):
    ours, theirs = pair
    for number in range(100):
        theirs.send(1, b"%d" % number)

    async def main():
        box = inbox(ours)
        got = await box.take(100)
        assert [int(f.payload) for f in got] == list(range(100))
        assert box.batches == [100]

    run(main())


def test_it_may_be_attached_to_one_loop_after_another(pair, run, inbox):
    ours, theirs = pair

    async def take(count):
        box = inbox(ours)
        got = await box.take(count)
        ours.detach()
        return [f.payload for f in got]

    theirs.send(1, b"first")
    assert run(take(1)) == [b"first"]
    theirs.send(1, b"second")
    theirs.send(1, b"third")
    assert run(take(2)) == [b"second", b"third"]


def test_a_loop_that_was_closed_without_detaching_is_forgotten(pair, run, inbox):
    ours, theirs = pair

    async def take():
        return (await inbox(ours).take(1))[0].payload

    for payload in (b"first", b"second"):
        theirs.send(1, payload)
        assert run(take()) == payload


def test_a_second_attachment_is_refused(pair, run, inbox):
    async def main():
        inbox(pair[0])
        with pytest.raises(LoopMismatchError, match="detach it first"):
            inbox(pair[0])

    run(main())


def test_a_large_payload_is_sent_without_blocking(pair, run, inbox):
    ours, theirs = pair
    payload = os.urandom(1 << 20) * 8

    async def main():
        inbox(ours)
        changed = bytearray(payload)
        ours.send(1, [b"head", changed])
        changed[:] = bytes(len(changed))
        ours.send(2, b"behind")
        large, behind = await asyncio.to_thread(lambda: (theirs.receive(), theirs.receive()))
        assert large.payload == b"head" + payload
        assert behind.payload == b"behind"

    run(main())


def test_what_is_sent_while_detached_follows_when_attached(pair, run, inbox):
    ours, theirs = pair
    ours.send(1, b"x" * (4 << 20))

    async def main():
        inbox(ours)
        got = await asyncio.to_thread(theirs.receive)
        assert len(got.payload) == 4 << 20

    run(main())


def test_a_peer_that_ends_in_the_middle_of_a_large_payload_is_an_end(pair, run, inbox):
    ours, theirs = pair

    async def main():
        box = inbox(ours)
        ours.send(1, b"x" * (4 << 20))
        theirs.close()
        assert isinstance(await box.ended, EOFError)

    run(main())


def test_a_large_payload_is_received_while_the_loop_goes_on(pair, run, inbox):
    ours, theirs = pair
    payload = os.urandom(1 << 20) * 16

    async def main():
        box = inbox(ours)
        thread = threading.Thread(target=theirs.send, args=(1, payload))
        thread.start()
        (frame,) = await box.take(1)
        assert frame.payload == payload
        thread.join()

    run(main())


def test_the_end_comes_after_the_last_frames(pair, run, inbox):
    ours, theirs = pair

    async def main():
        box = inbox(ours)
        theirs.send(1, b"last")
        theirs.close()
        assert isinstance(await box.ended, EOFError)
        assert [f.payload for f in box.frames] == [b"last"]
        ours.send(1, b"nobody is there")
        again = inbox(ours)
        assert isinstance(await again.ended, EOFError)

    run(main())


def test_a_peer_that_dies_with_unread_data_is_an_end(ends, run, inbox):
    channel, peer = ends

    async def main():
        box = inbox(channel)
        channel.send(1, b"unread")
        peer.close()
        assert isinstance(await box.ended, EOFError)

    run(main())


def test_sending_to_a_dead_peer_still_delivers_what_it_said(pair, run, inbox):
    ours, theirs = pair
    theirs.send(1, b"last words")
    theirs.close()

    async def main():
        ours.send(1, b"too late", os.pipe())
        box = inbox(ours)
        assert isinstance(await box.ended, EOFError)
        assert [f.payload for f in box.frames] == [b"last words"]

    run(main())


def test_a_truncated_frame_is_refused_within_the_deadline(ends, run, inbox):
    channel, peer = ends

    async def main():
        box = inbox(channel)
        peer.sendall(raw((1, b"whole"), (2, b"x" * 100))[:-1])
        async with asyncio.timeout(10):
            ended = await box.ended
        assert isinstance(ended, TransportError)
        assert "nothing more came for 0.05 s" in str(ended)
        assert [f.payload for f in box.frames] == [b"whole"]

    run(main())


def test_a_frame_that_came_while_the_loop_was_busy_is_not_refused(ends, run, inbox):
    channel, peer = ends
    stream = raw((1, b"slow"))

    async def main():
        box = inbox(channel)
        loop = asyncio.get_running_loop()
        for index in range(len(stream)):
            peer.send(stream[index : index + 1])
            if index % 10 == 5:
                await asyncio.sleep(0)
                # The loop finds a deadline that has passed and more of the frame at once.
                loop.call_soon(time.sleep, 0.06)
                peer.send(b"")
        assert [f.payload for f in await box.take(1)] == [b"slow"]

    run(main())


@pytest.mark.parametrize(
    "bad", [b"garbage" * 10, header(length=1 << 40), header(sequence=7), raw((1, b"")) * 2]
)
def test_what_is_no_frame_ends_the_channel(ends, run, inbox, bad):
    channel, peer = ends

    async def main():
        box = inbox(channel)
        peer.sendall(bad)
        assert isinstance(await box.ended, TransportError)
        again = inbox(channel)
        assert isinstance(await again.ended, TransportError)

    run(main())


def test_descriptors_arrive_with_their_frame(pair, run, inbox):
    ours, theirs = pair

    async def main():
        box = inbox(ours)
        for number in range(20):
            theirs.send(1, b"%d" % number, os.pipe() if number % 3 == 0 else ())
        got = await box.take(20)
        assert [len(f.fds) for f in got] == [2 if n % 3 == 0 else 0 for n in range(20)]
        for frame in got:
            for fd in frame.fds:
                assert not os.get_inheritable(fd)
                os.close(fd)

    run(main())


def test_descriptors_wait_with_their_frame_when_the_socket_is_full(pair, run, inbox):
    ours, theirs = pair

    async def main():
        inbox(ours)
        ours.send(1, b"x" * (2 << 20))
        ours.send(2, b"with", os.pipe())
        first, second = await asyncio.to_thread(lambda: (theirs.receive(), theirs.receive()))
        assert (len(first.fds), len(second.fds)) == (0, 2)
        for fd in second.fds:
            os.close(fd)

    run(main())


def test_descriptors_that_were_never_sent_are_closed(pair):
    pair[0].send(1, b"x" * (2 << 20))
    pair[0].send(2, b"with", os.pipe())
    pair[0].close()
    pair[0].send(3, b"after", os.pipe())


def test_a_callback_may_close_the_channel(pair, run):
    ours, theirs = pair
    theirs.send(1, b"enough")

    async def main():
        closed = asyncio.Event()

        def on_frames(frames):
            ours.close()
            closed.set()

        ours.attach(asyncio.get_running_loop(), on_frames, pytest.fail)
        await closed.wait()

    run(main())
    gc.collect()
