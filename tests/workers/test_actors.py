"""Where the memory of items that come from actors of a cluster is."""

from __future__ import annotations

import ctypes
import subprocess
import sys

from asyncloader.transport.arena import SlotRef
from asyncloader.workers.actors.far_end import ArrivedMemory

KEPT = 64 << 10


def arrived(memory: ArrivedMemory, slot: int, data: bytes) -> memoryview:
    """Let a slot's bytes arrive and be opened."""
    memory.add(slot, data)
    return memory.lease(SlotRef(slot, 0, 0, len(data)))


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_an_actor_imports_nothing_of_loaders():
    # An actor is a fresh process, and its imports are most of what a loader's start takes.
    script = (
        "import sys, asyncloader.workers.worker, asyncloader.workers.dispatcher\n"
        "parts = {name.split('.')[1] for name in sys.modules if name.startswith('asyncloader.')}\n"
        "print(*parts & {'loader', 'services', 'adapters', 'serving', 'tools'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == []


def test_memory_that_was_dropped_is_used_again():
    memory = ArrivedMemory()
    memory.keep(KEPT)
    addresses = set()
    for number in range(10):
        view = arrived(memory, number, bytes([number]) * KEPT)
        assert bytes(view) == bytes([number]) * KEPT
        addresses.add(address(view))
        del view
    assert len(addresses) == 1
    memory.free()


def test_memory_that_is_held_is_left_alone_and_what_is_beyond_is_new():
    memory = ArrivedMemory()
    memory.keep(KEPT)
    held = [arrived(memory, number, bytes([number]) * KEPT) for number in range(4)]
    memory.free()
    held.append(arrived(memory, 4, bytes([4]) * KEPT))
    assert [bytes(view) for view in held] == [bytes([number]) * KEPT for number in range(5)]
    for view in held:
        view[0] = 7
    assert len({address(view) for view in held}) == 5


def test_what_arrives_can_be_opened_where_no_memory_is_kept():
    memory = ArrivedMemory()
    assert bytes(arrived(memory, 1, b"x" * KEPT)) == b"x" * KEPT
