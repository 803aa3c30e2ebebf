"""W7: milliseconds of an epoch of 100 items, with two workers that stay.

grain and torchdata's nodes are not here: their workers end with an epoch. The limit is two
processes at the other ends of socketpairs: a loop asks each of them for its share of the numbers,
and hands out what they send, which is all that an epoch cannot do without.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from statistics import median
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, graph_of, loop_factory, worker_loader
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

JOB = Job(100)
EPOCHS = sized(50, 5)


def sync_epoch() -> float:
    with worker_loader(graph_of(JOB)) as loader:
        return _milliseconds(loader)


def peer_epoch(open_: Callable[[Job], Any]) -> float:
    return _milliseconds(open_(JOB))


def _milliseconds(loader: Iterable[Any]) -> float:
    spent = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        assert len(list(loader)) == JOB.count
        spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


def async_epoch(mode: str) -> float:
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(_ours())


async def _ours() -> float:
    async with worker_loader(graph_of(JOB)) as loader:
        return await _async_milliseconds(lambda: loader)


async def _async_milliseconds(epoch: Callable[[], AsyncIterator[Any]]) -> float:
    spent = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        assert len([item async for item in epoch()]) == JOB.count
        spent.append(time.perf_counter() - began)
    return 1000 * median(spent)


# The limit ------------------------------------------------------------------------------


def bare_epoch(mode: str) -> float:
    shares = [_share(worker) for worker in range(WORKERS)]
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(_bare(shares))


def _share(worker: int) -> socket.socket:
    """Begin a process that sends its share of the numbers for every word; return our end."""
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        while theirs.recv(1 << 10):
            theirs.sendall(pickle.dumps(list(JOB.part(worker, WORKERS))))
        os._exit(0)
    theirs.close()
    ours.setblocking(False)
    return ours


async def _bare(shares: list[socket.socket]) -> float:
    loop = asyncio.get_running_loop()
    arrived: dict[socket.socket, list[int]] = {}
    whole = loop.create_future()

    def read(share: socket.socket) -> None:
        arrived[share] = pickle.loads(share.recv(1 << 16))
        if len(arrived) == len(shares):
            whole.set_result(None)

    async def epoch() -> AsyncIterator[int]:
        nonlocal whole
        whole = loop.create_future()
        arrived.clear()
        for share in shares:
            share.send(pickle.dumps(("epoch", 1)))
        await whole
        for numbers in zip(*(arrived[share] for share in shares), strict=True):
            for number in numbers:
                yield number

    for share in shares:
        loop.add_reader(share, read, share)
    return await _async_milliseconds(epoch)


ASYNC, LIMIT = "asyncloader, async for", "limit: asked and answered, asyncio"
STAY = [peer for peer in PROCESSES if not peer.name.startswith(("grain", "torchdata nodes"))]
COMPARISONS = [
    Comparison(
        "W7: an epoch of 100 items from 2 workers that stay",
        "ms",
        [
            Case(ASYNC, async_epoch, args=("async",)),
            Case("asyncloader, uvloop", async_epoch, ("uvloop",), ("uvloop",)),
            Case("asyncloader, for", sync_epoch),
            *cases(STAY, peer_epoch),
            Case(LIMIT, bare_epoch, args=("async",)),
            Case("limit: asked and answered, uvloop", bare_epoch, ("uvloop",), ("uvloop",)),
        ],
        against=[TORCH, LIMIT],
        targets=[Target(ASYNC, 0.5, at_most=True), Target(ASYNC, 0.1, TORCH, at_most=True)],
        less_is_better=True,
    )
]
