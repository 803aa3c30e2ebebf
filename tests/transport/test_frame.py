import mmap
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader.errors import TransportError
from asyncloader.transport import frame as frames
from asyncloader.transport.frame import MAX_FDS, MAX_PAYLOAD, Frame, FrameDecoder, encode_frame

messages = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=8)


def encoded(*parts: tuple[int, bytes]) -> bytes:
    return b"".join(
        bytes(buffer)
        for number, (kind, payload) in enumerate(parts)
        for buffer in encode_frame(kind, payload, number)
    )


def header(kind=1, fds=0, sequence=0, length=0, magic=frames._MAGIC, version=1) -> bytes:
    fields = frames._FIELDS.pack(magic, version, kind, fds, sequence, length)
    return fields + frames._CHECK.pack(zlib.crc32(fields))


@given(messages, st.data())
def test_any_chunking_gives_the_same_frames(sent, data):
    stream = encoded(*sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    decoder, got = FrameDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    decoder.eof()
    assert [(f.kind, bytes(f.payload)) for f in got] == sent
    assert [f.sequence for f in got] == list(range(len(sent)))


@given(messages.filter(bool), st.data())
def test_a_changed_byte_is_a_transport_error_or_a_changed_payload(sent, data):
    stream = bytearray(encoded(*sent))
    where = data.draw(st.integers(0, len(stream) - 1))
    stream[where] ^= data.draw(st.integers(1, 255))
    decoder = FrameDecoder()
    got = []
    try:
        got = decoder.feed(bytes(stream))
        decoder.eof()
    except TransportError:
        pass
    assert [f.kind for f in got] == [kind for kind, _ in sent][: len(got)]


@given(st.binary(max_size=500), st.integers(1, 60))
def test_garbage_is_refused_and_never_more_than_that(garbage, step):
    decoder = FrameDecoder()
    try:
        for start in range(0, len(garbage), step):
            decoder.feed(garbage[start : start + step])
        decoder.eof()
    except TransportError:
        return
    assert not garbage


@given(messages.filter(bool), st.data())
def test_the_end_within_a_frame_is_an_error(sent, data):
    stream = encoded(*sent)
    cut = data.draw(st.integers(1, len(stream)))
    decoder = FrameDecoder()
    decoder.feed(stream[:cut])
    if decoder.partial:
        with pytest.raises(TransportError, match="middle of frame"):
            decoder.eof()
    else:
        decoder.eof()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (header(magic=b"HTTP"), "begins with b'HTTP'"),
        (header(version=9), "version 9, not 1"),
        (header()[:-1] + b"\0", "damaged"),
        (header(sequence=1), "frame 1 came where frame 0 was due"),
        (header(length=1 << 40), "claims 1099511627776 bytes; at most 68719476736"),
        (header(fds=1), "claims 1 descriptors, but 0 arrived"),
    ],
)
def test_a_bad_header_says_what_is_wrong(bad, message):
    decoder = FrameDecoder()
    with pytest.raises(TransportError, match=message):
        decoder.feed(bad)
    with pytest.raises(TransportError, match=message):
        decoder.feed(encoded((1, b"")))


def test_a_duplicate_frame_is_refused():
    stream = encoded((1, b"once"))
    decoder = FrameDecoder()
    assert len(decoder.feed(stream + stream)) == 1
    with pytest.raises(TransportError, match="frame 0 came where frame 1 was due"):
        raise decoder.fault


def test_frames_before_a_fault_are_delivered():
    decoder = FrameDecoder()
    assert [f.payload for f in decoder.feed(encoded((1, b"good")) + b"?" * 40)] == [b"good"]
    with pytest.raises(TransportError):
        decoder.feed(b"")


def test_nothing_is_allocated_for_what_a_header_claims():
    decoder = FrameDecoder()
    decoder.feed(header(length=MAX_PAYLOAD))
    assert decoder.partial
    assert len(decoder._buffer) < 100


def test_partial_tells_of_a_frame_that_has_begun():
    decoder = FrameDecoder()
    stream = encoded((1, b"abc"))
    assert not decoder.partial
    decoder.feed(stream[:5])
    assert decoder.partial
    decoder.feed(stream[5:])
    assert not decoder.partial


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 10, 300_000, 600_000]), min_size=1, max_size=5))
def test_large_payloads_are_handed_over_whole(sizes):
    sent = [(index, bytes([index]) * size) for index, size in enumerate(sizes)]
    stream = encoded(*sent)
    decoder, got = FrameDecoder(), []
    for start in range(0, len(stream), 65536):
        got += decoder.feed(stream[start : start + 65536])
    assert [(f.kind, bytes(f.payload)) for f in got] == sent
    assert not decoder.partial


def test_descriptors_go_to_the_frames_that_claim_them():
    stream = b"".join(
        bytes(b)
        for number, count in enumerate([0, 2, 1])
        for b in encode_frame(1, b"", number, fds=count)
    )
    decoder = FrameDecoder()
    got = decoder.feed(stream, [10, 11, 12, 13])
    assert [f.fds for f in got] == [(), (10, 11), (12,)]
    assert decoder.take_fds() == [13]


def test_encoding_copies_no_payload():
    payload = bytearray(b"x" * 1000)
    assert encode_frame(1, payload, 0)[1] is payload
    assert encode_frame(1, [b"a", payload], 0)[2] is payload


def test_frames_too_large_to_be_accepted_are_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 10)
    with pytest.raises(TransportError, match="at most 10 bytes, got 11"):
        encode_frame(1, b"x" * 11, 0)
    with pytest.raises(TransportError, match="descriptors"):
        encode_frame(1, b"", 0, fds=MAX_FDS + 1)


def test_what_fits_memory_is_not_too_large():
    large = (1 << 30) + 1
    # Memory that is never written to is never there.
    with mmap.mmap(-1, large) as memory, memoryview(memory) as payload:
        parts = encode_frame(1, payload, 0)
        assert parts[1] is payload
    decoder = FrameDecoder()
    decoder.feed(parts[0])
    assert decoder.partial


def test_a_frame_does_not_show_what_it_carries():
    assert "secret" not in repr(Frame(1, b"secret", 0))
