"""Rows F to K: memory, descriptors, garbage on the channel, skew, forks, seeds."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import random
import re
import resource
import socket
import stat
import struct
import threading
import time
import zlib
from functools import partial
from typing import Any

import pytest

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.errors import ResourceExhausted, TransportError, WorkerStartupError
from asyncloader.transport import channel, frame
from asyncloader.transport.channel import LoopChannel
from asyncloader.worker_info import get_worker_info
from asyncloader.workers import whereabouts
from asyncloader.workers.messages import FrameKind
from tests.descriptors import only_free
from tests.eyes import PROC
from tests.faults.child import METHODS, collected, loader_of, numbers, play, play_each
from tests.leaks import Belongings, leaves_nothing, left_since

EVERY_METHOD = [(method,) for method in METHODS]

# F --------------------------------------------------------------------------------------


def without_shared_memory(pipe: Any, info: Any) -> Any:
    # Reserving memory for a file fails beyond this, as it does on a full file system.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return pipe


def large(number: int) -> Any:
    return bytearray(8 << 20) if number == 7 else number


async def shared_memory_is_full() -> None:
    async with loader_of(numbers(20).map(large), 2, worker_init_fn=without_shared_memory) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(7))
            assert type(error) is ResourceExhausted, error
            assert str(8 << 20) in str(error)
            assert re.search(r"about \d+ are available", str(error)), error
            assert "prefetch_bytes" in str(error)


def test_f1_full_shared_memory_is_an_error_in_the_items_place(tmp_path):
    play(tmp_path, shared_memory_is_full)


def tensor_of(number: int) -> Any:
    # Scenes without tensors are quicker without torch.
    import torch

    return torch.full((1 << 18,), number, dtype=torch.int32)


async def the_budget_is_reached(kept: bool) -> None:
    graph = numbers(200).map(tensor_of)
    held = []
    async with loader_of(graph, 2, prefetch_bytes=8 << 20) as loader:
        async for tensor in loader:
            assert int(tensor[0]) == int(tensor[-1])
            held.append(tensor if kept else int(tensor[0]))
            assert shared_bytes() <= 8 << 20
    assert [int(each if not kept else each[0]) for each in held] == list(range(200))


def shared_bytes() -> int:
    """Return how much memory is shared for items; what workers note is in pages of their own."""
    total = 0
    with open(f"{PROC}/self/maps") as file:
        for line in file:
            if "/memfd:asyncloader" in line:
                start, end = line.split(maxsplit=1)[0].split("-")
                nbytes = int(end, 16) - int(start, 16)
                total += nbytes if nbytes > whereabouts.NBYTES else 0
    return total


@pytest.mark.soak
def test_f1_the_byte_budget_is_back_pressure(tmp_path):
    play_each(tmp_path, the_budget_is_reached, [(True,), (False,)], imports="torch")


def everything_is_kept() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    graph = numbers(2000).map(tensor_of)
    with loader_of(graph, 2) as loader:
        kept = list(loader)
    assert [int(tensor[0]) for tensor in kept] == list(range(2000))
    assert [int(tensor[-1]) for tensor in kept] == list(range(2000))
    assert len(os.listdir(f"{PROC}/self/fd")) < 40


@pytest.mark.soak
def test_f2_everything_may_be_kept_with_few_descriptors(tmp_path):
    play(tmp_path, everything_is_kept, imports="torch")


def no_descriptor_is_left() -> None:
    dealt = IterableWrapper(range(9)).sharding_round_robin_dispatch(SHARDING_PRIORITIES(3))
    loader, before, reasons = loader_of(dealt, 1), Belongings.now(), []
    for free in itertools.count():
        with only_free(free):
            error = failure_of(loader)
        if error is None:
            break
        reasons.append(error.__cause__ if type(error) is WorkerStartupError else error)
        assert left_since(before) == []
    assert {type(reason) for reason in reasons} == {ResourceExhausted}
    # An epoch of a loader that has started takes none.
    with loader, leaves_nothing(), only_free(0):
        assert list(loader) == list(range(9))


def failure_of(loader: Any) -> Exception | None:
    try:
        list(loader)
    except Exception as error:  # noqa: BLE001 - the scene looks at it
        return error
    return None


def test_f2_no_descriptor_left_is_a_typed_error_and_the_loader_stays_usable(tmp_path):
    play(tmp_path, no_descriptor_is_left)


# G --------------------------------------------------------------------------------------


def sockets() -> list[int]:
    found = []
    for name in os.listdir(f"{PROC}/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:
            continue
    return found


GARBAGE = {
    "noise": random.Random(3).randbytes(4096),
    "zeros": bytes(4096),
}


def babble(how: str, number: int) -> int:
    info = get_worker_info()
    if info is not None and info.worker_id == 1 and number > 10:
        os.write(connection(), GARBAGE[how])
        time.sleep(1000)
    return number


def connection() -> int:
    """The worker's channel: the one socket whose other end is in another process."""
    for fd in sockets():
        with socket.socket(fileno=os.dup(fd)) as each:
            if each.family == socket.AF_UNIX and peer_pid(each) != os.getpid():
                return fd
    raise AssertionError("no channel")


def peer_pid(sock: socket.socket) -> int:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[0])


async def a_worker_babbles(how: str) -> None:
    graph = numbers(1000).map(lambda number: babble(how, number))
    async with loader_of(graph, 2) as loader:
        taken, error = await collected(loader)
        assert taken == list(range(len(taken)))
        assert type(error) is TransportError, error
        assert error.worker == 1
        assert "was killed" in "".join(error.__notes__)


def test_g1_garbage_from_a_worker_is_an_error_that_names_it(tmp_path):
    play_each(tmp_path, a_worker_babbles, [(how,) for how in GARBAGE])


def damaged_frame(how: str, encode: Any, kind: int, payload: Any, sequence: int, **fds: int) -> Any:
    """What a worker sends instead of its later frames."""
    whole = encode(kind, payload, sequence, **fds)
    if sequence < 2:
        return whole
    match how:
        case "truncated":
            # The next frame is never made: what follows is silence.
            channel.encode_frame = lambda *_, **__: time.sleep(1000)
            return [whole[0][:-1]]
        case "of 1 TiB":
            fields = frame._FIELDS.pack(frame._MAGIC, frame._VERSION, kind, 0, sequence, 1 << 40)
            return [fields + frame._CHECK.pack(zlib.crc32(fields))]
        case "duplicate":
            return [*whole, *whole]
        case "foreign":
            return encode(FrameKind.RELEASED, payload, sequence)
        case "of an unknown kind":
            return encode(99, payload, sequence)
        case "with an unknown message":
            return encode(FrameKind.MESSAGE, pickle.dumps("hello"), sequence)


async def a_worker_sends_damaged_frames() -> None:
    # Nobody waits here for as long as a slow machine may need for a frame.
    LoopChannel.__init__.__kwdefaults__["frame_deadline"] = 0.3
    for how, says in DAMAGED.items():

        def damage(pipe: Any, info: Any, how: str = how) -> Any:
            if info.worker_id == 1:
                channel.encode_frame = partial(damaged_frame, how, channel.encode_frame)
            return pipe

        # More frames than one from each worker, and those behind the damaged one.
        async with loader_of(numbers(10_000), 2, worker_init_fn=damage) as loader:
            taken, error = await collected(loader)
            assert taken == list(range(len(taken)))
            assert type(error) is TransportError, (how, error)
            assert error.worker == 1
            assert says in str(error), (how, error)


DAMAGED = {
    "truncated": "nothing more came for 0.3 s",
    "of 1 TiB": str(1 << 40),
    "duplicate": "was due",
    "foreign": "is not for the loader",
    "of an unknown kind": "is not for the loader",
    "with an unknown message": "was sent to the wrong side",
}


def test_g1_damaged_frames_are_errors_that_name_their_worker(tmp_path):
    play(tmp_path, a_worker_sends_damaged_frames)


# I --------------------------------------------------------------------------------------


def skewed(number: int) -> tuple[int, bytes]:
    info = get_worker_info()
    if info is not None and info.worker_id == 0:
        time.sleep(0.01)
    return number, bytes(100_000)


async def workers_are_skewed_and_the_consumer_slow() -> None:
    async with loader_of(numbers(200).map(skewed), 2, prefetch_bytes=4 << 20) as loader:
        taken = []
        async for number, _ in loader:
            taken.append(number)
            assert shared_bytes() <= 4 << 20
            if number % 50 == 0:
                await asyncio.sleep(0.1)
    assert taken == list(range(200))


def test_i1_skewed_workers_and_a_slow_consumer_keep_order_and_budget(tmp_path):
    play(tmp_path, workers_are_skewed_and_the_consumer_slow)


# J --------------------------------------------------------------------------------------


class AThreadWithALock:
    """A thread of the user's that holds a lock which every worker wants, too."""

    lock = threading.Lock()

    def __enter__(self) -> None:
        self._done = threading.Event()
        holding = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(holding,), name="the user's")
        self._thread.start()
        holding.wait()

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()

    def _hold(self, holding: threading.Event) -> None:
        with self.lock:
            holding.set()
            self._done.wait()


def with_lock(number: int) -> int:
    with AThreadWithALock.lock:
        return number


def a_fork_with_threads(method: str | None) -> None:
    with AThreadWithALock():
        loader = loader_of(numbers(10).map(with_lock), 2, method)
        if method == "fork":
            with pytest.raises(WorkerStartupError, match="the user's"):
                list(loader)
        else:
            assert list(loader) == list(range(10))
    if method == "fork":
        assert list(loader) == list(range(10)), "without the thread it may be tried again"
    loader.shutdown()


@pytest.mark.soak
def test_j1_a_held_lock_hangs_nobody(tmp_path):
    play_each(tmp_path, a_fork_with_threads, EVERY_METHOD)


async def a_running_loop(method: str | None) -> None:
    async with loader_of(numbers(10), 2, method) as loader:
        assert [number async for number in loader] == list(range(10))


def test_j1_under_a_running_loop(tmp_path):
    play_each(tmp_path, a_running_loop, EVERY_METHOD)


# K --------------------------------------------------------------------------------------


def dice(number: int) -> float:
    return random.random()


async def every_seed_differs(method: str | None) -> None:
    graph = numbers(20).map(dice).shuffle()

    async def epochs(seed: int) -> list[list[float]]:
        loader = loader_of(graph, 2, method)
        loader.seed(seed)
        async with loader:
            return [[item async for item in loader] for _ in range(2)]

    first = await epochs(1)
    assert first == await epochs(1)
    rolls = [roll for epoch in (*first, *await epochs(2)) for roll in epoch]
    assert len(set(rolls)) == 80


@pytest.mark.soak
def test_k1_seeds_differ_by_seed_epoch_and_worker(tmp_path):
    play_each(tmp_path, every_seed_differs, EVERY_METHOD)


async def the_pipes_own_generators_differ() -> None:
    # Behind the shards each worker shuffles its own items in its own way, anew each epoch.
    graph = numbers(40).map(lambda number: number // 2).shuffle()
    async with loader_of(graph, 2) as loader:
        epochs = [[number async for number in loader] for _ in range(2)]
    orders = [epoch[worker::2] for epoch in epochs for worker in range(2)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_k1_generators_held_by_pipes_are_seeded_anew(tmp_path):
    play(tmp_path, the_pipes_own_generators_differ)
