"""How long one small item takes through a worker that has nothing else to do.

The worker waits in the user's function for a byte in a FIFO; the consumer writes the byte and
asks for the item, so that it takes one way there and one way back, whatever the loader would
have made ahead. Between two items it does nothing for five milliseconds, as a consumer that works
would. The limit is a byte there and back over a socketpair to a process that answers, for a
blocking reader and for a loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import graph_of, loop_factory, worker_loader
from tests.benchmarks.peers import spdl, torch_loaders
from tests.benchmarks.peers.catalogue import SPDL_NEEDS, STATEFUL, STATEFUL_NEEDS, TORCH
from tests.benchmarks.sizes import sized

ITEMS = sized(1_000, 50)
WARM_UP = 10
PAUSE = 0.005


@dataclass(frozen=True)
class WhenTold:
    """Answers a number once there is a byte for it in a FIFO."""

    fifo: str

    def __call__(self, number: int) -> int:
        os.read(_opened(self.fifo), 1)
        return number


@cache
def _opened(fifo: str) -> int:
    # For reading and writing: one who only reads waits here for one who only writes.
    return os.open(fifo, os.O_RDWR)


def job_in(folder: str) -> tuple[Job, Callable[[], Any]]:
    """Return items that wait, and what lets one of them go."""
    fifo = str(Path(folder, "fifo"))
    os.mkfifo(fifo)
    return Job(ITEMS, WhenTold(fifo)), partial(os.write, _opened(fifo), b"x")


def ours(mode: str) -> float:
    """Return the microseconds of a middling item."""
    with TemporaryDirectory() as folder:
        job, tell = job_in(folder)
        loader = worker_loader(graph_of(job), 1)
        if mode == "sync":
            with loader:
                return _timed(tell, iter(loader).__next__)
        with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
            return runner.run(_items(loader, tell))


async def _items(loader: Any, tell: Callable[[], Any]) -> float:
    async with loader:
        return await _timed_async(tell, aiter(loader).__anext__)


def theirs(open_: Callable[..., Any]) -> float:
    with TemporaryDirectory() as folder:
        job, tell = job_in(folder)
        items = iter(open_(job, workers=1))
        return _timed(tell, items.__next__)


def socketpair(mode: str) -> float:
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        while byte := theirs.recv(1):
            theirs.send(byte)
        os._exit(0)
    theirs.close()
    with ours:
        tell = partial(ours.send, b"x")
        if mode == "sync":
            return _timed(tell, partial(ours.recv, 1))
        ours.setblocking(False)
        with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
            return runner.run(_socket_round_trips(ours, tell))


async def _socket_round_trips(ours: socket.socket, tell: Callable[[], Any]) -> float:
    loop = asyncio.get_running_loop()
    return await _timed_async(tell, partial(loop.sock_recv, ours, 1))


def _timed(tell: Callable[[], Any], take: Callable[[], Any]) -> float:
    spent = []
    for _ in range(ITEMS):
        time.sleep(PAUSE)
        began = time.perf_counter()
        tell()
        take()
        spent.append(time.perf_counter() - began)
    return 1e6 * median(spent[WARM_UP:])


async def _timed_async(tell: Callable[[], Any], take: Callable[[], Awaitable[Any]]) -> float:
    spent = []
    for _ in range(ITEMS):
        await asyncio.sleep(PAUSE)
        began = time.perf_counter()
        tell()
        await take()
        spent.append(time.perf_counter() - began)
    return 1e6 * median(spent[WARM_UP:])


BLOCKING, LOOP = "limit: socketpair, blocking", "limit: socketpair, asyncio"
COMPARISONS = [
    Comparison(
        "latency of one small item through a worker with nothing else to do",
        "us",
        [
            Case(BLOCKING, socketpair, args=("sync",)),
            Case(LOOP, socketpair, args=("async",)),
            Case("limit: socketpair, uvloop", socketpair, ("uvloop",), ("uvloop",)),
            Case("asyncloader, async for", ours, args=("async",)),
            Case("asyncloader, uvloop", ours, ("uvloop",), ("uvloop",)),
            Case("asyncloader, for", ours, args=("sync",)),
            Case(TORCH, theirs, ("torch",), (torch_loaders.processes,)),
            Case(STATEFUL, theirs, STATEFUL_NEEDS, (torch_loaders.stateful_processes,)),
            Case("SPDL, processes", theirs, SPDL_NEEDS, (spdl.processes,)),
        ],
        against=[BLOCKING, LOOP],
        targets=[
            Target("asyncloader, async for", 3, LOOP, at_most=True),
            Target("asyncloader, for", 3, BLOCKING, at_most=True),
        ],
        less_is_better=True,
    )
]
