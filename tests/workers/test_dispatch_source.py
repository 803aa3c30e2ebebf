"""What a worker is dealt: whatever is left of an epoch does no harm to the next."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from asyncloader.generators import PROCESS
from asyncloader.places.random_states import RandomStates
from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Encoder
from asyncloader.workers.dispatch_source import DEALT_CREDITS, FedSupply, Supply
from asyncloader.workers.dispatcher import DispatchTarget
from asyncloader.workers.graph_part import NOTHING
from asyncloader.workers.marker import Marker
from asyncloader.workers.messages import (
    FrameKind,
    Grant,
    StreamEnded,
    dump_message,
    items_head,
    load_command,
)
from asyncloader.workers.remote_errors import pack_error
from asyncloader.workers.stream import FlushTimer

#: So many floats travel in shared memory, of which there is more each time it is used up.
SLOT = 20_000


class Dealer:
    """The other end of a supply."""

    def __init__(self, kind: type[Supply]) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._encoder = Encoder(Arena(64 << 20))
        self.supply = kind(Channel(theirs))

    def deal(self, epoch: int, items: list[Any], cost: int = 1) -> None:
        encoded = self._encoder.encode(items)
        head = items_head(epoch, 0, cost)
        self._channel.send(FrameKind.ITEMS, [head, *encoded.parts], encoded.fds)

    def end(self, epoch: int) -> None:
        self._channel.send(FrameKind.MESSAGE, dump_message(StreamEnded(epoch, 0)))

    def granted(self) -> list[Grant]:
        frames = self._channel.receive_ready()
        return [load_command(each.payload) for each in frames if each.kind == FrameKind.MESSAGE]

    def close(self) -> None:
        self.supply.close()
        self._channel.close()


@pytest.fixture(params=[Supply, FedSupply])
def dealer(request: pytest.FixtureRequest) -> Iterator[Dealer]:
    dealer = Dealer(request.param)
    yield dealer
    dealer.close()


def frame_of(dealer: Dealer, item: Any) -> list[Any]:
    return [None, item] if isinstance(dealer.supply, FedSupply) else [item]


def test_what_was_left_of_an_epoch_costs_the_next_one_nothing():
    dealer = Dealer(Supply)
    for _ in range(5):
        dealer.deal(1, [0, 0], cost=2)
    dealer.deal(2, [1])
    items = dealer.supply.items(2)
    assert next(items) == 1
    dealer.deal(2, [2])
    dealer.end(2)
    assert list(items) == [2]
    assert sum(grant.credits for grant in dealer.granted()) == DEALT_CREDITS + 1
    dealer.close()


def test_shared_memory_that_was_told_of_in_an_epoch_that_was_left_is_known_in_the_next(dealer):
    items = dealer.supply.items(1)
    kept = []
    for _ in range(2):
        dealer.deal(1, frame_of(dealer, torch.ones(SLOT)))
        kept.append(next(items))
    # What it tells of has room for two: the one is not looked at, and the other comes later.
    dealer.deal(1, frame_of(dealer, 0))
    dealer.deal(1, frame_of(dealer, torch.ones(SLOT)))
    assert next(items) == 0
    items.close()
    dealer.deal(2, frame_of(dealer, torch.full((SLOT,), 2.0)))
    dealer.end(2)
    assert [float(item[-1]) for item in dealer.supply.items(2)] == [2.0]


def test_a_worker_that_asks_for_nothing_is_dealt_many_small_items_and_few_large_ones():
    for item, most in ((7, 256), (bytes(1 << 20), 4)):
        ours, theirs = socket.socketpair()
        flush_timer = FlushTimer()
        target = DispatchTarget(Channel(ours), 64 << 20, flush_timer, pack_error)
        target.begin(1, Marker(NOTHING, RandomStates(PROCESS)), (), int)
        count = 0
        while target.has_room():
            assert target.stream is not None
            target.stream.add(item)
            count += 1
        assert count == most
        target.end()
        flush_timer.close()
        target.conversation.close()
        theirs.close()
