import ctypes
import errno
import fcntl
import mmap
import os
import tempfile

import pytest

from asyncloader import system
from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.memory import Segment, SharedBytes, mapping_at
from tests.descriptors import only_free
from tests.eyes import PROC
from tests.needs import needs_sealed_memory


def open_fds() -> int:
    return len(os.listdir(f"{PROC}/self/fd"))


def mappings() -> int:
    with open(f"{PROC}/self/maps") as maps:
        return sum("(deleted)" in line for line in maps)


def attached(segment: Segment) -> Segment:
    return Segment.attach(os.dup(segment._fd))


def test_what_one_side_writes_the_other_reads():
    ours = Segment.create(10_000)
    theirs = attached(ours)
    ours.view[:5] = b"hello"
    assert bytes(theirs.view[:5]) == b"hello"
    assert theirs.size == 10_000
    ours.close()
    theirs.close()


def test_a_new_segment_is_all_zeros():
    segment = Segment.create(4096)
    assert bytes(segment.view) == bytes(4096)
    segment.close()


def test_the_address_is_where_the_view_is():
    segment = Segment.create(4096)
    segment.view[7] = 9
    assert ctypes.string_at(segment.address + 7, 1) == b"\x09"
    segment.close()


def test_a_mapping_holds_no_descriptor():
    before = open_fds()
    segment = Segment.create(4096)
    os.close(segment.take_fd())
    assert open_fds() == before
    segment.view[0] = 1
    with pytest.raises(ValueError, match="already taken"):
        segment.take_fd()
    segment.close()


@needs_sealed_memory
def test_attach_closes_the_descriptor_even_when_it_refuses():
    fd = os.memfd_create("plain")
    os.ftruncate(fd, 4096)
    with pytest.raises(TransportError, match="sealed"):
        Segment.attach(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@needs_sealed_memory
def test_attach_refuses_an_empty_segment():
    with pytest.raises(TransportError, match="at least 1 byte, got 0"):
        Segment.attach(os.memfd_create("empty"))


@needs_sealed_memory
@pytest.mark.parametrize("size", [1, 8192])
def test_a_peer_cannot_change_the_size(size):
    segment = Segment.create(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(segment._fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment._fd, system._F_ADD_SEALS, 0)
    segment.close()


def test_close_is_idempotent_and_leaves_nothing():
    fds, maps = open_fds(), mappings()
    segment = Segment.create(1 << 20)
    assert mappings() == maps + 1
    segment.close()
    segment.close()
    assert (open_fds(), mappings()) == (fds, maps)
    with pytest.raises(ValueError, match="closed"):
        _ = segment.view


def test_a_view_outlives_its_segment():
    maps = mappings()
    segment = Segment.create(4096)
    view = segment.view[100:200]
    segment.close()
    view[0] = 42
    assert view[0] == 42
    del view
    assert mappings() == maps


def test_descriptors_are_not_inherited():
    segment = Segment.create(4096)
    assert not os.get_inheritable(segment._fd)
    segment.close()


def test_a_full_memory_says_what_is_needed_and_what_is_there(monkeypatch):
    def full(fd, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system, "reserve", full)
    fds, maps = open_fds(), mappings()
    with pytest.raises(
        ResourceExhausted, match=r"needs 4096 bytes, but about \d+ .* fewer workers"
    ):
        Segment.create(4096)
    assert (open_fds(), mappings()) == (fds, maps)


@needs_sealed_memory
@pytest.mark.parametrize("make", [lambda: Segment.create(4096), lambda: SharedBytes.of([b"x"])])
def test_where_no_file_can_be_opened_the_system_says_why(make, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        make()


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1 byte, got 0"):
        Segment.create(0)


@pytest.fixture(params=["shm", "file"])
def no_memfd(request, monkeypatch):
    """A system without memfds; the second also has no POSIX shared memory."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    if request.param == "file":
        monkeypatch.setattr(system, "_unlinked_shm", refuse)
    system.can_seal.cache_clear()
    yield
    system.can_seal.cache_clear()


@needs_sealed_memory
def test_a_process_that_had_no_descriptor_for_it_still_seals_its_segments():
    system.can_seal.cache_clear()
    # The one that is left is the segment's.
    with only_free(1):
        ours = Segment.create(mmap.PAGESIZE)
    # Another process would find out for itself that segments can be sealed here.
    system.can_seal.cache_clear()
    assert attached(ours).size == ours.size


def test_without_memfd_segments_have_no_name_either(no_memfd):
    before = os.listdir("/dev/shm"), os.listdir(tempfile.gettempdir())
    ours = Segment.create(2 * mmap.PAGESIZE)
    theirs = attached(ours)
    ours.view[-1] = 3
    assert theirs.view[-1] == 3
    assert not [n for n in os.listdir("/dev/shm") if n.startswith("al-") and n not in before[0]]
    mine = [n for n in os.listdir(tempfile.gettempdir()) if n.startswith("asyncloader-")]
    assert not [n for n in mine if n not in before[1]]
    ours.close()
    theirs.close()


def test_what_a_peer_sent_is_found_by_the_addresses_in_it():
    ours = [Segment.create(8192) for _ in range(3)]
    theirs = [attached(segment) for segment in ours]
    for segment in theirs:
        assert mapping_at(segment.address, 8192) is segment.buffer
        assert mapping_at(segment.address + 8191, 1) is segment.buffer
        assert mapping_at(segment.address + 8191, 2) is None
    assert mapping_at(ours[0].address, 1) is None
    addresses = [segment.address for segment in theirs]
    for segment in [*ours, *theirs]:
        segment.close()
    assert [mapping_at(address, 1) for address in addresses] == [None] * 3


def test_before_memory_is_unmapped_whoever_asked_is_called_once():
    ours = Segment.create(4096)
    theirs = attached(ours)
    calls: list[int] = []
    theirs.buffer.before_unmapping = lambda: calls.append(1)
    view = theirs.view
    theirs.close()
    assert calls == []
    view.release()
    assert calls == [1]
    ours.close()
