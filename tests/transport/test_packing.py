"""Items that are packed one by one, into the payload of a frame."""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import ResourceExhausted
from asyncloader.transport.arena import Arena, ArenaView
from asyncloader.transport.codec import Decoder, Encoder, Packing

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = (
    SCALARS
    | st.lists(SCALARS)
    | st.lists(SCALARS).map(tuple)
    | st.dictionaries(st.text() | st.integers(), SCALARS)
)
ITEMS = PLAIN | st.binary() | st.lists(PLAIN, max_size=3)


def add(packing: Packing, item: Any) -> None:
    """Add an item of either kind."""
    if not packing.add_plain(item):
        packing.add_other(item)


def carried(packing: Packing) -> list[Any]:
    """Return what the next payload brings to the other side."""
    count, encoded = packing.finish()
    items = Decoder(ArenaView()).decode(b"".join(encoded.parts), ())
    assert len(items) == count
    return items


def same(items: list[Any], others: list[Any]) -> bool:
    """Whether the items are equal and of the same types: 1, 1.0 and True are not."""
    return repr(items) == repr(others)


@given(st.lists(st.lists(ITEMS, min_size=1, max_size=6), min_size=1, max_size=3))
def test_whatever_is_packed_together_comes_back_in_its_order(payloads):
    packing = Packing(Encoder(Arena(0)))
    for items in payloads:
        for item in items:
            add(packing, item)
        assert packing.count == len(items)
        assert same(carried(packing), items)
        assert packing.count == 0
        assert packing.nbytes == 0


@pytest.mark.parametrize(
    "item", [[1, "a"], {"path": "a", "label": 1}, {1, 2}, [[1], [2]], bytearray(b"abc")], ids=repr
)
def test_an_item_may_be_changed_once_it_was_added(item):
    packing = Packing(Encoder(Arena(0)))
    before = copy.deepcopy(item)
    add(packing, item)
    item.clear()
    add(packing, item)
    assert same(carried(packing), [before, type(item)()])


def test_one_list_that_is_yielded_twice_comes_as_two():
    packing = Packing(Encoder(Arena(0)))
    batch = [1, 2]
    add(packing, batch)
    add(packing, batch)
    first, second = carried(packing)
    assert first == second
    assert first is not second


def test_plain_items_are_pickled_together_and_others_by_themselves():
    packing = Packing(Encoder(Arena(0)))
    for number in range(10):
        add(packing, [number])
    assert packing.pickles == []
    add(packing, {1, 2})
    assert len(packing.pickles) == 11
    assert carried(packing) == [*([number] for number in range(10)), {1, 2}]


@pytest.mark.parametrize(
    "item", [list(range(2_000)), ["a" * 20_000], {"a": "b" * 20_000}, "c" * 20_000]
)
def test_a_large_item_is_pickled_at_once(item):
    packing = Packing(Encoder(Arena(0)))
    add(packing, item)
    assert len(packing.pickles) == 1
    assert carried(packing) == [item]


def test_what_cannot_be_pickled_leaves_the_others():
    packing = Packing(Encoder(Arena(0)))
    add(packing, [1])
    with pytest.raises(TypeError):
        add(packing, (generator for generator in ()))
    add(packing, [2])
    assert carried(packing) == [[1], [2]]


def test_the_bytes_of_what_waits_are_known_roughly():
    packing = Packing(Encoder(Arena(0)))
    add(packing, ["a" * 1000, "b" * 1000])
    add(packing, {"c": "d" * 1000})
    assert 3000 < packing.nbytes < 4000


def made_in_a_slot(arena: Arena, number: int) -> torch.Tensor:
    return torch.frombuffer(arena.allocate(100_000), dtype=torch.uint8).fill_(number)


def test_what_was_made_in_shared_memory_stays_as_it_was_until_the_payload_is_sent():
    arena = Arena(1 << 20)
    packing = Packing(Encoder(arena))
    for number in range(5):
        # Nobody here holds it any more when the next is made.
        add(packing, made_in_a_slot(arena, number))
    _, encoded = packing.finish()
    items = Decoder(ArenaView()).decode(b"".join(encoded.parts), encoded.fds)
    assert [item.unique().tolist() for item in items] == [[number] for number in range(5)]
    add(packing, made_in_a_slot(arena, 5))
    lent = arena.lent_bytes
    packing.drop()
    assert arena.lent_bytes < lent
    arena.close()


def test_dropping_forgets_what_was_added():
    packing = Packing(Encoder(Arena(0)))
    add(packing, [1])
    packing.drop()
    add(packing, [2])
    assert carried(packing) == [[2]]


@pytest.mark.parametrize("arena_bytes", [0, 1 << 20])
def test_dropping_forgets_buffers_too(arena_bytes):
    arena = Arena(arena_bytes)
    packing = Packing(Encoder(arena))
    add(packing, bytes(100_000))
    packing.drop()
    assert arena.lent_bytes == 0
    add(packing, [bytes(10_000), 1])
    count, encoded = packing.finish()
    assert count == 1
    items = Decoder(ArenaView()).decode(b"".join(encoded.parts), encoded.fds)
    assert items == [[bytes(10_000), 1]]
    arena.close()


def test_the_slots_of_an_item_for_which_memory_ran_out_come_back_unused():
    def run_out(nbytes: int) -> bool:
        raise ResourceExhausted("no memory")

    arena, view = Arena(1 << 20), ArenaView()
    packing, decoder = Packing(Encoder(arena, on_full=run_out)), Decoder(view)
    add(packing, bytes(300_000))
    _, first = packing.finish()
    with pytest.raises(ResourceExhausted):
        add(packing, [bytes(300_000), bytes(300_000), bytes(300_000)])
    add(packing, {1})
    _, second = packing.finish()
    for payload, items in ((first, [bytes(300_000)]), (second, [{1}])):
        assert decoder.decode(b"".join(payload.parts), payload.fds) == items
    arena.release(view.take_released())
    assert arena.lent_bytes == 0
    add(packing, {2})
    assert carried(packing) == [{2}]
    view.close()
    arena.close()


@pytest.fixture
def busy_threads():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads")
def test_plain_items_that_are_added_while_another_thread_finishes_payloads_come_once_in_order():
    packing = Packing(Encoder(Arena(0)))
    items = [kind(range(number, number + 3)) for number in range(5_000) for kind in (list, tuple)]
    carry, has_sent, is_over = [], threading.Event(), threading.Event()

    def send() -> None:
        while not is_over.is_set() or packing.count:
            if packing.count:
                carry.append(carried(packing))
                has_sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        added = [packing.add_plain(item) for item in items[:5_000]]
        assert has_sent.wait(60)
        added += [packing.add_plain(item) for item in items[5_000:]]
    finally:
        is_over.set()
        sender.join()
    assert all(added)
    assert len(carry) > 1
    assert same(list(itertools.chain.from_iterable(carry)), items)
