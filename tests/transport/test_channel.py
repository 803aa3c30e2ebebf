import asyncio
import os
import socket
import threading
import time

import pytest

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.transport.channel import Channel
from asyncloader.transport.frame import MAX_FDS, encode_frame
from tests.descriptors import only_free
from tests.transport.channels import channel_pair
from tests.transport.test_frame import header

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def ends():
    """A blocking end and the bare socket at its other side."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, frame_deadline=0.05)
    yield channel, theirs
    channel.close()
    theirs.close()


def raw(*messages):
    return b"".join(bytes(b) for n, (k, p) in enumerate(messages) for b in encode_frame(k, p, n))


def test_frames_arrive_in_order(pair):
    ours, theirs = pair
    for number in range(5):
        ours.send(number, b"%d" % number)
    got = [theirs.receive() for _ in range(5)]
    assert [(f.kind, f.payload, f.sequence) for f in got] == [(n, b"%d" % n, n) for n in range(5)]


def test_receive_ready_takes_what_is_there_and_does_not_wait(pair):
    ours, theirs = pair
    assert theirs.receive_ready() == []
    ours.send(1, b"a")
    ours.send(2, b"b")
    assert [f.payload for f in theirs.receive_ready()] == [b"a", b"b"]
    assert theirs.receive_ready() == []


def test_the_end_is_an_eof_error_for_everyone(pair):
    ours, theirs = pair
    ours.send(1, b"last")
    ours.close()
    assert theirs.receive().payload == b"last"
    for _ in range(2):
        with pytest.raises(EOFError):
            theirs.receive()
    with pytest.raises(EOFError):
        theirs.receive_ready()
    with pytest.raises(EOFError):
        theirs.send(1, b"nobody is there")


def test_a_truncated_frame_is_refused_within_the_deadline(ends):
    channel, peer = ends
    peer.sendall(raw((1, b"whole"), (2, b"x" * 100))[:-1])
    assert channel.receive().payload == b"whole"
    start = time.monotonic()
    with pytest.raises(TransportError, match="nothing more came"):
        channel.receive()
    assert time.monotonic() - start < 20


def test_a_truncated_frame_and_the_end_is_a_transport_error(ends):
    channel, peer = ends
    peer.sendall(raw((2, b"x" * 100))[:-1])
    peer.close()
    with pytest.raises(TransportError, match="middle of frame 0"):
        channel.receive()


@pytest.mark.parametrize("bad", [b"garbage" * 10, header(length=1 << 40), header(sequence=7)])
def test_what_is_no_frame_is_refused_after_the_frames_before_it(ends, bad):
    channel, peer = ends
    peer.sendall(bad)
    for _ in range(2):
        with pytest.raises(TransportError):
            channel.receive()


def test_a_fault_behind_a_good_frame_is_not_forgotten(ends):
    channel, peer = ends
    peer.sendall(raw((1, b"good")) * 2)
    assert channel.receive().payload == b"good"
    with pytest.raises(TransportError, match="frame 0 came where frame 1 was due"):
        channel.receive()


def test_two_threads_may_send_at_once(pair, run, inbox):
    ours, theirs = pair

    def send(kind):
        for _ in range(50):
            theirs.send(kind, bytes([kind]) * 40_000)

    async def main():
        box = inbox(ours)
        threads = [threading.Thread(target=send, args=(kind,)) for kind in (1, 2)]
        for thread in threads:
            thread.start()
        got = await box.take(100)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert all(set(bytes(f.payload)) == {f.kind} for f in got)
        assert [f.sequence for f in got] == list(range(100))

    run(main())


def test_descriptors_arrive_with_their_frame_and_close_on_exec(pair):
    ours, theirs = pair
    reader, writer = os.pipe()
    ours.send(1, b"none")
    ours.send(2, b"two", [reader, writer])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)
    first, second = theirs.receive(), theirs.receive()
    assert first.fds == ()
    reader, writer = second.fds
    assert not os.get_inheritable(reader)
    os.write(writer, b"through")
    assert os.read(reader, 10) == b"through"
    os.close(reader)
    os.close(writer)


def test_descriptors_that_nobody_received_are_closed_with_the_channel():
    ours, theirs = channel_pair()
    ours.send(1, b"first")
    ours.send(2, b"second", os.pipe())
    theirs.receive()
    ours.close()
    theirs.close()


def test_lost_descriptors_are_noticed(pair):
    ours, theirs = pair
    ours.send(1, b"", [*os.pipe(), *os.pipe()])
    with only_free(2), pytest.raises(ResourceExhausted, match="close files, or raise the limit"):
        theirs.receive()


def test_more_descriptors_than_a_frame_may_have_are_refused(ends):
    channel, sock = ends
    socket.send_fds(sock, [b"?"], [sock.fileno()] * (MAX_FDS + 1))
    with pytest.raises(TransportError, match=f"more than {MAX_FDS} descriptors"):
        channel.receive()


def test_close_is_idempotent(pair):
    for end in pair:
        end.close()
        end.close()
        assert end.fileno() == -1
