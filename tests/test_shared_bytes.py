"""Bytes that are written once and read by several processes."""

import copy
import errno
import gc
import io
import mmap
import os
import pickle

import pytest

from asyncloader import system
from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.memory import SharedBytes
from asyncloader.transport.code import dumps_code
from asyncloader.transport.parcel import pack_code, unpack_code
from tests.leaks import leaves_nothing
from tests.needs import needs_sealed_memory

DATA = [b"some ", b"bytes"]


def test_the_bytes_are_the_chunks_in_their_order():
    assert bytes(SharedBytes.of(DATA).view) == b"some bytes"


def test_there_may_be_none():
    shared = SharedBytes.of([])
    assert bytes(shared.view) == b""
    (twin,) = unpack_code(*_posted([shared]))
    assert bytes(twin.view) == b""


def _posted(code):
    parcel = pack_code(code)
    return parcel.data, parcel.fds()


@needs_sealed_memory
def test_nobody_can_change_them():
    shared = SharedBytes.of(DATA)
    assert shared.view.readonly
    fd = shared.duplicate_fd()
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 10)
    os.close(fd)


def test_a_parcel_has_them_beside_it_and_once():
    shared = SharedBytes.of([bytes(1 << 20)])
    parcel = pack_code({"one": shared, "two": [shared], "code": lambda: 42})
    assert len(parcel.data) < 10_000
    assert parcel.shared == (shared,)
    twin = unpack_code(parcel.data, parcel.fds())
    assert twin["one"] is twin["two"][0]
    assert twin["one"] is not shared
    assert twin["code"]() == 42
    assert _inode(twin["one"]) == _inode(shared), "it is the same memory"


def _inode(shared: SharedBytes) -> int:
    fd = shared.duplicate_fd()
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def test_arrays_stay_inside_a_parcel():
    array = pickle.PickleBuffer(bytearray(b"beside"))
    twin, shared = unpack_code(*_posted((array, SharedBytes.of(DATA))))
    assert bytes(twin) == b"beside"
    assert bytes(shared.view) == b"some bytes"


@pytest.mark.parametrize(
    "dumps", [dumps_code, pickle.dumps, lambda each: pickle.dumps(each, protocol=2)]
)
def test_a_pickle_has_the_bytes_themselves(dumps):
    data = dumps(SharedBytes.of(DATA))
    gc.collect()
    assert bytes(pickle.loads(data).view) == b"some bytes"


def test_a_copy_is_the_same():
    shared = SharedBytes.of(DATA)
    assert copy.copy(shared) is shared
    assert copy.deepcopy([shared])[0] is shared


def test_they_are_gone_with_the_last_who_holds_them():
    with leaves_nothing():
        shared = SharedBytes.of(DATA)
        parcel = pack_code(shared)
        twin = unpack_code(parcel.data, parcel.fds())
        view = twin.view[1:3]
        del shared, parcel, twin
        assert bytes(view) == b"om"
        del view


class Refuses:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("not today")


def test_a_large_pickle_is_written_once_whoever_gets_it():
    rows = [bytes([number]) * (1 << 20) for number in range(3)]
    shared = SharedBytes.of(DATA)
    with leaves_nothing():
        parcel = pack_code({"rows": rows, "shared": shared})
        assert parcel.data == b"", "nothing of it is to be copied into a frame"
        for _ in range(2):
            twin = unpack_code(parcel.data, parcel.fds())
            assert twin["rows"] == rows
            assert _inode(twin["shared"]) == _inode(shared)
        del parcel, twin


def test_a_parcel_that_cannot_be_opened_leaves_nothing():
    parcel = pack_code([SharedBytes.of(DATA), Refuses(), SharedBytes.of(DATA)])
    with leaves_nothing(), pytest.raises(RuntimeError, match="not today"):
        unpack_code(parcel.data, parcel.fds())
    large = pack_code([SharedBytes.of(DATA), bytes(1 << 20), Refuses(), SharedBytes.of(DATA)])
    with leaves_nothing(), pytest.raises(RuntimeError, match="not today"):
        unpack_code(large.data, large.fds())


@needs_sealed_memory
@pytest.mark.parametrize("seals", [0, system._SEALS])
def test_what_a_peer_could_change_is_refused(seals):
    import fcntl

    fd = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.write(fd, b"data")
    fcntl.fcntl(fd, system._F_ADD_SEALS, seals)
    with pytest.raises(TransportError, match="sealed against change"):
        SharedBytes.attach(fd, 4)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_another_length_than_was_said_is_refused():
    with pytest.raises(TransportError, match="10 bytes came where 9 were meant"):
        SharedBytes.attach(SharedBytes.of(DATA).duplicate_fd(), 9)


def test_a_full_memory_says_what_to_do():
    def chunks():
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    with leaves_nothing(), pytest.raises(ResourceExhausted, match="share less data"):
        SharedBytes.of(chunks())


def test_an_error_of_the_data_comes_out_and_leaves_nothing():
    def chunks():
        yield b"some"
        raise KeyError("missing")

    with leaves_nothing(), pytest.raises(KeyError):
        SharedBytes.of(chunks())


def test_without_memfd_an_unnamed_file_does(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    system.can_seal.cache_clear()
    try:
        with leaves_nothing():
            shared = unpack_code(*_posted(SharedBytes.of(DATA)))
            assert bytes(shared.view) == b"some bytes"
            del shared
    finally:
        system.can_seal.cache_clear()


def test_what_is_written_may_be_any_buffer():
    text = io.BytesIO(b"abc").getbuffer()
    assert bytes(SharedBytes.of([bytearray(b"x"), text]).view) == b"xabc"
