"""What a request through a feed costs, beside a batcher written by hand.

This file is about a command: ``python -m tests.benchmarks.feed``. Clients in the same loop ask
again as soon as they have their answer, and a model answers batches of up to 32. First the model
does next to nothing, 256 clients ask, and requests a second are counted, with the CPU time of each.
Then it takes three milliseconds (or none), 1, 32 or 256 clients ask, and the latency of the feed
stands beside that of the batcher by hand with several waits, of which the best one counts.

Each measurement runs in a process of its own, and they take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from asyncloader import DataLoader2, Feed
from tests.benchmarks.sizes import sized

SIZE = 32
ROUNDS = sized(3, 1)
SECONDS = sized(1.5, 0.05)
STEP_SECONDS = 0.003
WAITS = (0.0, 0.001, 0.005)
CLIENTS = (1, 32, 256)

Ask = Callable[[int], Awaitable[int]]
Model = Callable[[list[int]], list[int]]
Measured = dict[str, float]


def at_once(numbers: list[int]) -> list[int]:
    return [number + 1 for number in numbers]


def in_a_while(numbers: list[int]) -> list[int]:
    time.sleep(STEP_SECONDS)
    return at_once(numbers)


class ByHand:
    """The batcher that everybody writes."""

    def __init__(self, model: Model, max_wait: float, *, in_thread: bool) -> None:
        self._model = model
        self._max_wait = max_wait
        self._in_thread = in_thread
        self._asked: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._has_some = asyncio.Event()
        self._is_full = asyncio.Event()

    async def ask(self, number: int) -> int:
        answer = asyncio.get_running_loop().create_future()
        self._asked.append((number, answer))
        if len(self._asked) == 1:
            self._has_some.set()
        if len(self._asked) == SIZE:
            self._is_full.set()
        return await answer

    async def answer(self) -> None:
        while True:
            await self._has_some.wait()
            if len(self._asked) < SIZE and self._max_wait:
                self._is_full.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_full.wait(), self._max_wait)
            count = min(SIZE, len(self._asked))
            batch = [self._asked.popleft() for _ in range(count)]
            if not self._asked:
                self._has_some.clear()
            numbers = [number for number, _ in batch]
            if self._in_thread:
                outputs = await asyncio.to_thread(self._model, numbers)
            else:
                outputs = self._model(numbers)
                await asyncio.sleep(0)
            for (_, answer), output in zip(batch, outputs, strict=True):
                if not answer.done():
                    answer.set_result(output)


@contextlib.asynccontextmanager
async def by_hand(model: Model, wait: str, *, in_thread: bool = True) -> AsyncIterator[Ask]:
    batcher = ByHand(model, float(wait), in_thread=in_thread)
    answering = asyncio.create_task(batcher.answer())
    yield batcher.ask
    answering.cancel()


@contextlib.asynccontextmanager
async def in_the_loop(model: Model, wait: str) -> AsyncIterator[Ask]:
    async with by_hand(model, wait, in_thread=False) as ask:
        yield ask


@contextlib.asynccontextmanager
async def with_feed(model: Model, wait: str) -> AsyncIterator[Ask]:
    feed = Feed()
    max_wait: Any = wait if wait == "adaptive" else float(wait)
    async with feed.serve(DataLoader2(feed.batch(SIZE, max_wait=max_wait).map(model))):
        yield feed.ask


@contextlib.asynccontextmanager
async def with_deadlines(model: Model, wait: str) -> AsyncIterator[Ask]:
    async with with_feed(model, wait) as ask:
        yield lambda number: ask(number, timeout=10)  # type: ignore[call-arg]  # a feed's


WAYS: dict[str, Callable[[Model, str], contextlib.AbstractAsyncContextManager[Ask]]] = {
    "feed": with_feed,
    "feed, timeout=10": with_deadlines,
    "by hand, in a thread": by_hand,
    "by hand, in the loop": in_the_loop,
}
MODELS: dict[str, Model] = {"at once": at_once, "3 ms": in_a_while}


async def measure(way: str, model: str, wait: str, clients: int) -> Measured:
    """Return requests a second, CPU time and latency of so many clients, after a warm-up."""
    latencies: list[float] = []
    numbers = itertools.count()
    async with WAYS[way](MODELS[model], wait) as ask:

        async def client(until: float) -> None:
            began = time.perf_counter()
            while began < until:
                number = next(numbers)
                assert await ask(number) == number + 1
                ended = time.perf_counter()
                latencies.append(ended - began)
                began = ended

        async def all_clients(seconds: float) -> None:
            until = time.perf_counter() + seconds
            await asyncio.gather(*[client(until) for _ in range(clients)])

        await all_clients(SECONDS / 4)
        latencies.clear()
        began, used = time.perf_counter(), time.process_time()
        await all_clients(SECONDS)
        seconds, used = time.perf_counter() - began, time.process_time() - used
    latencies.sort()
    count = len(latencies)
    return {
        "requests/s": count / seconds,
        "CPU µs": 1e6 * used / count,
        "p50 ms": 1e3 * latencies[count // 2],
        "p99 ms": 1e3 * latencies[count * 99 // 100],
    }


def run(way: str, model: str, wait: str, clients: int) -> Measured:
    command = [sys.executable, "-m", __spec__.name, way, model, wait, str(clients)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Measured = json.loads(done.stdout)
    return found


def medians(cases: list[tuple[str, str, str, int]]) -> dict[tuple[str, str, str, int], Measured]:
    """Measure cases in turns, several times, and return the medians."""
    found: dict[tuple[str, str, str, int], list[Measured]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            found[case].append(run(*case))
    return {
        case: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        for case, rounds in found.items()
    }


def show_throughput() -> None:
    waits = {"feed": ("adaptive", "0.005"), "feed, timeout=10": ("adaptive",)}
    cases = [
        (way, "at once", wait, 256) for way in WAYS for wait in waits.get(way, ("0.0", "0.005"))
    ]
    found = medians(cases)
    best = max(measured["requests/s"] for (way, *_), measured in found.items() if "a thread" in way)
    print(f"{'256 clients':23} {'max_wait':>9} {'requests/s':>11} {'CPU µs':>7} {'ratio':>6}")
    for (way, _, wait, _), measured in found.items():
        rate, used = measured["requests/s"], measured["CPU µs"]
        print(f"{way:23} {wait:>9} {rate:11,.0f} {used:7.2f} {rate / best:6.2f}")


def show_latency() -> None:
    print(f"\n{'p50 / p99, ms':15} {'clients':>7} {'feed, adaptive':>17}", end="")
    print("".join(f"{f'by hand, {1e3 * wait:g} ms':>18}" for wait in WAITS))
    for model, clients in itertools.product(MODELS, CLIENTS):
        ways = [("feed", "adaptive"), *(("by hand, in a thread", str(wait)) for wait in WAITS)]
        found = medians([(way, model, wait, clients) for way, wait in ways])
        print(f"{'model: ' + model:15} {clients:7}", end="")
        for measured in found.values():
            print(f"{measured['p50 ms']:10.2f} /{measured['p99 ms']:6.2f}", end="")
        print(flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        told, told_model, told_wait, told_clients = sys.argv[1:]
        print(json.dumps(asyncio.run(measure(told, told_model, told_wait, int(told_clients)))))
    else:
        show_throughput()
        show_latency()
