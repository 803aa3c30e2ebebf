"""How long one small item takes through a worker that has nothing else to do.

The worker makes an item when it is asked for one, with nothing ahead; between two items it
is left alone for a millisecond, as a consumer that works would. The limit is a byte there
and back over a socketpair to a process that answers, for a blocking reader and for a loop.
Peers always make items ahead, so that there is no such time; the queues that torch's
workers are made of stand for them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.measuring import loop_factory
from tests.benchmarks.sizes import sized

ITEMS = sized(1_000, 50)
WARM_UP = 10
PAUSE = 0.001


def ours(mode: str) -> float:
    """Return the microseconds of a middling item."""
    loader = _on_demand()
    if mode == "sync":
        with loader:
            return _timed(iter(loader).__next__)
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(_items(loader))


def _on_demand() -> Any:
    from asyncloader import DataLoader2, MultiProcessingReadingService
    from asyncloader.datapipes.iter import IterableWrapper

    service = MultiProcessingReadingService(1, worker_prefetch_cnt=0, main_prefetch_cnt=0)
    numbers = IterableWrapper(range(ITEMS + WARM_UP + 1))
    return DataLoader2(numbers, reading_service=service)


async def _items(loader: Any) -> float:
    async with loader:
        return await _timed_async(aiter(loader).__anext__)


def socketpair(mode: str) -> float:
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        while byte := theirs.recv(1):
            theirs.send(byte)
        os._exit(0)
    theirs.close()
    with ours:
        if mode == "sync":
            return _timed(lambda: (ours.send(b"x"), ours.recv(1)))
        ours.setblocking(False)
        with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
            return runner.run(_socket_round_trips(ours))


async def _socket_round_trips(ours: socket.socket) -> float:
    loop = asyncio.get_running_loop()

    async def there_and_back() -> None:
        ours.send(b"x")
        await loop.sock_recv(ours, 1)

    return await _timed_async(there_and_back)


def queues() -> float:
    """Return the microseconds of a number over the queues of torch's workers and back."""
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=_answer, args=(there, back), daemon=True)
    child.start()
    spent = _timed(lambda: (there.put(1), back.get()))
    there.put(None)
    child.join()
    return spent


def _answer(there: Any, back: Any) -> None:
    while number := there.get():
        back.put(number)


def _timed(call: Callable[[], Any]) -> float:
    spent = []
    for _ in range(ITEMS):
        time.sleep(PAUSE)
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return 1e6 * median(spent[WARM_UP:])


async def _timed_async(call: Callable[[], Any]) -> float:
    spent = []
    for _ in range(ITEMS):
        await asyncio.sleep(PAUSE)
        began = time.perf_counter()
        await call()
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
            Case("torch's worker queues, there and back", queues, ("torch",)),
        ],
        against=[BLOCKING, LOOP],
        targets=[
            Target("asyncloader, async for", 3, LOOP, at_most=True),
            Target("asyncloader, for", 3, BLOCKING, at_most=True),
        ],
        less_is_better=True,
    )
]
