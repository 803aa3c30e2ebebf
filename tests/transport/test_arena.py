import ctypes
import errno
import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

from asyncloader import system
from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.transport.arena import Arena, ArenaView, News, SlotRef, slot_size

MIB = 1 << 20


class Ends:
    """An arena and its view, with the news and the releases carried by hand."""

    def __init__(self, budget=64 * MIB, **view):
        self.arena = Arena(budget)
        self.view = ArenaView(**view)

    def send(self, nbytes, fill=b""):
        block = self.arena.take(nbytes)
        if block is None:
            return None
        block.segment.memory.view[block.offset : block.offset + len(fill)] = fill
        self.arena.lend(block)
        self.view.update(self.arena.take_news())
        return block.ref(nbytes)

    def settle(self):
        self.arena.release(self.view.take_released())

    def close(self):
        self.arena.close()
        self.view.close()


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.fixture
def ends(leaves_nothing):
    ends = Ends()
    yield ends
    ends.close()


def test_the_receiver_sees_what_the_sender_wrote(ends):
    memory = ends.view.lease(ends.send(10, b"0123456789"))
    assert bytes(memory) == b"0123456789"
    memory[0] = ord("x")
    assert bytes(memory[:2]) == b"x1"


def test_the_slot_used_last_is_used_first(ends):
    first, second = ends.send(5000), ends.send(5000)
    del_order = [ends.view.lease(first), ends.view.lease(second)]
    del_order.pop(0)
    del_order.pop(0)
    ends.settle()
    assert ends.send(5000).slot == second.slot
    assert ends.send(5000).slot == first.slot


def test_a_slot_is_free_when_the_lease_is_returned(ends):
    memory = ends.view.lease(ends.send(5000))
    assert ends.view.take_released() == []
    assert ends.arena.lent_bytes == ends.view.leased_bytes == slot_size(5000)
    del memory
    ends.settle()
    assert ends.arena.lent_bytes == ends.view.leased_bytes == 0


@pytest.mark.parametrize("over", [lambda m: torch.frombuffer(m, dtype=torch.uint8), np.frombuffer])
def test_whatever_is_made_over_a_lease_keeps_it(ends, over):
    made = over(ends.view.lease(ends.send(4096))[64:])
    part = made[10:20].reshape(2, 5)
    del made
    assert ends.view.take_released() == []
    del part
    assert len(ends.view.take_released()) == 1


def test_what_the_sender_still_holds_is_not_reused(ends):
    memory = ends.arena.allocate(8000)
    kept = torch.frombuffer(memory, dtype=torch.uint8)[100:]
    block = ends.arena.born_shared(kept.data_ptr(), kept.nbytes)
    ends.arena.lend(block)
    ends.view.update(ends.arena.take_news())
    leased = ends.view.lease(block.ref(8000))
    del memory, leased
    ends.settle()
    assert ends.arena.take(8000) is not block
    del kept
    assert ends.arena.take(8000) is block


def test_a_slot_that_was_never_sent_is_free_when_it_is_dropped(ends):
    before = address_of(ends.arena.allocate(8000))
    assert address_of(ends.arena.allocate(8000)) == before


def test_memory_that_was_born_shared_is_known_by_its_address(ends):
    tensor = torch.frombuffer(ends.arena.allocate(8000), dtype=torch.uint8)
    block = ends.arena.born_shared(tensor.data_ptr(), 8000)
    assert (block.address, block.sent) == (tensor.data_ptr(), False)
    assert ends.arena.born_shared(tensor.data_ptr() + 8000, 8000) is None
    assert ends.arena.born_shared(torch.ones(4).data_ptr(), 16) is None
    ends.arena.lend(block)
    assert ends.arena.born_shared(tensor.data_ptr(), 8000) is block
    assert block.sent


def test_a_used_up_budget_gives_none_until_something_comes_back(leaves_nothing):
    ends = Ends(budget=4 * MIB)
    leases = [ends.view.lease(ends.send(MIB)) for _ in range(4)]
    assert ends.send(MIB) is None
    assert ends.arena.allocate(MIB) is None
    leases.pop()
    ends.settle()
    assert ends.send(MIB) is not None
    ends.arena.budget += MIB
    assert ends.send(MIB) is not None
    ends.close()


def test_unused_segments_make_room_for_other_sizes(leaves_nothing):
    ends = Ends(budget=4 * MIB)
    for nbytes in (4 * MIB, 3 * MIB, 2 * MIB, 100, 4 * MIB):
        memory = ends.view.lease(ends.send(nbytes, b"new"))
        assert bytes(memory[:3]) == b"new"
        del memory
        ends.settle()
        assert ends.arena.mapped_bytes <= 4 * MIB
    ends.close()


def test_a_slot_larger_than_the_budget_is_granted_alone(leaves_nothing):
    ends = Ends(budget=MIB)
    small = ends.view.lease(ends.send(100))
    assert ends.send(3 * MIB) is None
    del small
    ends.settle()
    large = ends.view.lease(ends.send(3 * MIB, b"large"))
    assert bytes(large[:5]) == b"large"
    assert ends.send(100) is None
    del large
    ends.settle()
    assert ends.send(100) is not None
    assert ends.arena.mapped_bytes <= MIB
    ends.close()


def test_an_arena_without_a_budget_grants_nothing():
    assert Arena(0).allocate(1) is None
    with pytest.raises(ValueError, match="at least 0 bytes, got -1"):
        Arena(-1)


def test_full_memory_is_waited_for_while_the_receiver_has_some(monkeypatch, leaves_nothing):
    ends = Ends()
    memory = ends.view.lease(ends.send(MIB))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system, "reserve", full)
    assert ends.send(MIB) is None
    del memory
    ends.settle()
    with pytest.raises(ResourceExhausted, match="needs 2097152 bytes"):
        ends.send(2 * MIB)
    assert ends.send(MIB) is not None
    ends.close()


def test_beyond_a_limit_the_receiver_copies_and_returns_the_slot_at_once(leaves_nothing):
    ends = Ends(copy_beyond=2 * MIB)
    kept = []
    for number in range(20):
        kept.append(ends.view.lease(ends.send(MIB, bytes([number]) * 10)))
        ends.settle()
    assert ends.arena.mapped_bytes <= 4 * MIB
    assert ends.view.leased_bytes == 2 * MIB
    assert [bytes(memory[:10]) for memory in kept] == [bytes([n]) * 10 for n in range(20)]
    kept[-1][0] = 99
    del kept
    ends.settle()
    ends.close()


def test_what_is_copied_stays_mapped_where_the_view_is_closed_meanwhile(monkeypatch):
    ends = Ends(copy_beyond=0)
    ref = ends.send(10, b"0123456789")
    (segment,) = ends.view._segments.values()
    mapped, move = weakref.ref(segment.buffer), ctypes.memmove

    def close_and_move(*args):
        ends.close()
        assert mapped() is not None
        return move(*args)

    monkeypatch.setattr(ctypes, "memmove", close_and_move)
    assert bytes(ends.view.lease(ref)) == b"0123456789"
    assert mapped() is None


def test_wake_is_called_for_the_first_return_after_each_take(leaves_nothing):
    woken = []
    ends = Ends(wake=lambda: woken.append(1))
    leases = [ends.view.lease(ends.send(10)) for _ in range(3)]
    leases.pop()
    leases.pop()
    assert len(woken) == 1
    assert len(ends.view.take_released()) == 2
    leases.pop()
    assert len(woken) == 2
    ends.close()


def test_leases_may_end_in_any_thread_and_inside_the_collector(ends):
    def drop():
        cycle = [ends.view.lease(ends.send(100))]
        cycle.append(cycle)
        del cycle
        gc.collect()

    threads = [threading.Thread(target=drop) for _ in range(1)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len(ends.view.take_released()) == 1


def test_a_forked_child_returns_nothing(leaves_nothing):
    woken = []
    ends = Ends(wake=lambda: woken.append(1))
    leases = [ends.view.lease(ends.send(100))]
    slots = [ends.arena.allocate(100)]
    pid = os.fork()
    if not pid:
        leases.clear()
        slots.clear()
        gc.collect()
        quiet = not woken and not ends.view.take_released() and ends.view.leased_bytes
        os._exit(0 if quiet else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ends.view.take_released() == []
    leases.clear()
    assert len(ends.view.take_released()) == 1
    slots.clear()
    ends.close()


@pytest.mark.parametrize(
    "wrong",
    [{"segment": 9}, {"offset": 1 << 40}, {"nbytes": 1 << 40}, {"nbytes": 0}, {"offset": -4096}],
)
def test_references_outside_the_segment_are_refused(ends, wrong):
    ref = ends.send(100)
    with pytest.raises(TransportError):
        ends.view.lease(ref._replace(**wrong))


def test_a_slot_that_is_leased_is_not_leased_again(ends):
    ref = ends.send(100)
    memory = ends.view.lease(ref)
    with pytest.raises(TransportError, match="lent twice"):
        ends.view.lease(ref)
    del memory


@pytest.mark.parametrize("slot", [0, 12345])
def test_only_lent_slots_can_come_back(ends, slot):
    ends.send(100)
    with pytest.raises(TransportError, match="not lent"):
        ends.arena.release([0, slot])


def test_announcements_must_match_their_descriptors(ends):
    with pytest.raises(TransportError, match="2 segments were announced with 1 descriptors"):
        ends.view.update(News(added=(1, 2), fds=(os.open("/dev/null", os.O_RDONLY),)))
    with pytest.raises(TransportError, match="at least 1 byte"):
        ends.view.update(News(added=(1,), fds=(os.open("/dev/null", os.O_RDONLY),)))
    with pytest.raises(TransportError, match="never announced"):
        ends.view.update(News(retired=(5,)))


def test_leased_memory_outlives_both_ends():
    ends = Ends()
    memory = ends.view.lease(ends.send(5, b"alive"))
    ends.close()
    assert bytes(memory) == b"alive"


def test_slots_waste_at_most_an_eighth():
    for nbytes in [1, 4096, 4097, 100_000, MIB, MIB + 1, 33 * MIB]:
        size = slot_size(nbytes)
        assert nbytes <= size <= max(4096, nbytes * 9 // 8 + 4096)
        assert slot_size(size) == size
        assert size % 4096 == 0


def test_a_small_arena_does_for_any_number_of_messages(ends):
    for number in range(5000):
        memory = ends.view.lease(ends.send(1000 + number % 3000))
        del memory
        ends.settle()
    assert ends.arena.mapped_bytes <= MIB


KEEP_EVERYTHING = """
import os, resource, sys, numpy
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from asyncloader.transport.arena import Arena
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.codec import Decoder
from asyncloader.transport.codec import Encoder
nbytes, budget, segment_bytes, copy_beyond = map(int, sys.argv[1:])
view = ArenaView(copy_beyond=copy_beyond)
arena = Arena(budget, segment_bytes=segment_bytes)
encoder, decoder, kept = Encoder(arena), Decoder(view), []
for number in range(1000):
    encoded = encoder.encode([numpy.full(nbytes // 4, number, dtype=numpy.float32)])
    kept += decoder.decode(b"".join(encoded.parts), encoded.fds)
    arena.release(view.take_released())
assert all(array[-1] == number for number, array in enumerate(kept))
fds = os.environ.get("ASYNCLOADER_TESTS_PROC", "/proc") + "/self/fd"
assert len(os.listdir(fds)) < 8, os.listdir(fds)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nbytes", "budget", "segment_bytes", "copy_beyond"),
    [
        (MIB // 4, 1024 * MIB, MIB // 4, sys.maxsize),  # each in a segment of its own
        (MIB, 64 * MIB, 16 * MIB, 32 * MIB),
    ],
)
def test_keeping_everything_takes_no_descriptors(nbytes, budget, segment_bytes, copy_beyond):
    numbers = map(str, (nbytes, budget, segment_bytes, copy_beyond))
    command = [sys.executable, "-c", KEEP_EVERYTHING, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_slot_reference_is_plain_numbers():
    assert tuple(SlotRef(1, 2, 3, 4)) == (1, 2, 3, 4)
