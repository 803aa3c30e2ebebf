"""The order in which the items of several workers come out, held against a plain model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.transport.arena import Arena
from asyncloader.transport.codec import Decoder, Encoder
from asyncloader.workers.inbox import Inbox, TakeAsReady, TakeInTurn


class Worker:
    """A worker's stream: frames that are yet to arrive, and how it ends after them."""

    def __init__(self, number: int, frames: list[int], error: Exception | None = None) -> None:
        numbers = iter(range(sum(frames)))
        self.items = [(number, each) for each in range(sum(frames))]
        self.error = error
        self.decoder = Decoder()
        self.inbox = Inbox(self.decoder, number)
        self._frames = [[(number, next(numbers)) for _ in range(count)] for count in frames]
        self._is_over = False

    def arrive(self) -> bool:
        """Let the next frame, or the end, arrive; False after that."""
        if self._frames:
            payload = b"".join(Encoder(Arena(0)).encode(self._frames.pop(0)).parts)
            self.inbox.put(self.decoder.admit(payload))
        elif not self._is_over:
            self._is_over = True
            self.inbox.end(self.error)
        else:
            return False
        return True


def in_turn(streams: list[list[Any]]) -> list[Any]:
    """The model: one item from each stream that still has one, over and over."""
    streams, merged = [list(stream) for stream in streams if stream], []
    while streams:
        merged += [stream.pop(0) for stream in streams]
        streams = [stream for stream in streams if stream]
    return merged


def up_to_error(workers: list[Worker]) -> list[Any]:
    """The model: items in turn until it is the turn of a worker that has only its error left."""
    waiting = [(worker, list(worker.items)) for worker in workers]
    merged = []
    while waiting:
        left = []
        for worker, items in waiting:
            if items:
                merged.append(items.pop(0))
                left.append((worker, items))
            elif worker.error is not None:
                return merged
        waiting = left
    return merged


def drained(merge: Any, workers: list[Worker], arrivals: list[int]) -> list[Any]:
    """Take whenever there is something, with frames arriving in the given order of workers."""
    taken: list[Any] = []
    order = [*arrivals, *(number for number in range(len(workers)) for _ in range(99))]
    for number in order:
        while not merge.is_over() and merge.is_ready():
            taken += merge.take()
        if merge.is_over():
            return taken
        workers[number % len(workers)].arrive()
    raise AssertionError("never over")


frames = st.lists(st.integers(1, 5), max_size=5)
arrivals = st.lists(st.integers(0, 3), max_size=25)


@given(st.lists(frames, min_size=1, max_size=4), arrivals)
def test_items_come_in_turn_however_they_arrive(counts, order):
    workers = [Worker(number, frames) for number, frames in enumerate(counts)]
    merge = TakeInTurn(worker.inbox for worker in workers)
    assert drained(merge, workers, order) == in_turn([worker.items for worker in workers])


@given(st.lists(st.tuples(frames, st.booleans()), min_size=1, max_size=4), arrivals)
def test_an_error_comes_in_its_items_place(counts, order):
    workers = [
        Worker(number, frames, ValueError(number) if fails else None)
        for number, (frames, fails) in enumerate(counts)
    ]
    merge = TakeInTurn(worker.inbox for worker in workers)
    taken: list[Any] = []
    failed = None
    for number in [*order, *(number for number in range(len(workers)) for _ in range(99))]:
        try:
            while not merge.is_over() and merge.is_ready():
                taken += merge.take()
        except ValueError as error:
            failed = error
            break
        if merge.is_over():
            break
        workers[number % len(workers)].arrive()
    assert taken == up_to_error(workers)
    assert (failed is None) == all(worker.error is None for worker in workers)
    if failed is not None:
        with pytest.raises(ValueError, match=str(failed)) as again:
            merge.take()
        assert again.value is failed


@given(st.lists(frames, min_size=1, max_size=4), arrivals)
def test_without_order_the_set_is_the_same(counts, order):
    workers = [Worker(number, frames) for number, frames in enumerate(counts)]
    merge = TakeAsReady(worker.inbox for worker in workers)
    taken = drained(merge, workers, order)
    assert sorted(taken) == sorted(item for worker in workers for item in worker.items)
    for worker in workers:
        assert [item for item in taken if item[0] == worker.inbox.worker] == worker.items


def test_without_order_a_slow_worker_holds_nobody_up():
    slow, quick = Worker(0, [1]), Worker(1, [1, 1])
    merge = TakeAsReady([slow.inbox, quick.inbox])
    quick.arrive()
    assert merge.is_ready()
    assert merge.take() == [(1, 0)]
    assert not merge.is_ready()
    quick.arrive()
    assert merge.take() == [(1, 1)]


def test_the_awaited_are_those_that_still_owe_something():
    workers = [Worker(number, [1]) for number in range(3)]
    ordered = TakeInTurn(worker.inbox for worker in workers)
    assert [inbox.worker for inbox in ordered.awaited()] == [0]
    workers[0].arrive()
    ordered.take()
    assert [inbox.worker for inbox in ordered.awaited()] == [1]

    workers = [Worker(number, []) for number in range(3)]
    loose = TakeAsReady(worker.inbox for worker in workers)
    workers[1].arrive()
    assert [inbox.worker for inbox in loose.awaited()] == [0, 2]
