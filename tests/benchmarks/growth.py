"""What grows with the calls in flight, with the loaders of a program, and with the epochs.

This file is about a command: ``python -m tests.benchmarks.growth``, which takes the names of the
parts (``calls``, ``loaders``, ``epochs``) to run some of them, and ``--seconds`` for the epochs.

``calls``: a window of calls that sleep, 20,000 of them a second, by hand or by ``async_map``.
``loaders``: loaders that are open at a time in one loop, or are made one after another by a thread.
``epochs``: 100 short epochs a second of one loader, and what each tenth of the time used.

A gap is how late a task comes that asks for its turn each millisecond. The machine has part in it:
``CPU`` is how long the loop's thread has computed meanwhile, which is ours, or the collector's of
Python's garbage (``gc`` is the longest collection). The gap of an idle loop stands beside it.

Each measurement runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.sizes import is_quick, sized
from tests.cpu_time import cpu_seconds
from tests.eyes import PROC
from tests.leaks import descendants

Found = dict[str, float]

IN_FLIGHT = (64,) if is_quick() else (64, 1000, 10_000)
LOADERS = (4,) if is_quick() else (10, 100, 1000)
CALLS_A_SECOND = 20_000
EPOCHS_A_SECOND = 100
TENTHS = 10


# Measuring ------------------------------------------------------------------------------


class Gaps:
    """The longest times for which a loop gave its other tasks no turn, in milliseconds."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    async def tick(self) -> None:
        """Ask for a turn each millisecond."""
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.wall = max(self.wall, 1e3 * (time.perf_counter() - wall) - 1)
            self.cpu = max(self.cpu, 1e3 * (time.thread_time() - cpu))

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look for gaps as long as this is open."""
        ticking = asyncio.create_task(self.tick())
        # A gap that has begun is noted at its end.
        await asyncio.sleep(0.01)
        try:
            yield
            await asyncio.sleep(0.01)
        finally:
            ticking.cancel()

    def found(self, when: str = "") -> Found:
        return {f"gap{when}": self.wall, f"gap{when} CPU": self.cpu}


class Collections:
    """The longest collection of garbage, in milliseconds."""

    def __init__(self) -> None:
        self.longest = self._begun = 0.0
        gc.callbacks.append(self._note)

    def end(self) -> None:
        """Look no more."""
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._begun = now
        else:
            self.longest = max(self.longest, 1e3 * (now - self._begun))


def kib_of(pid: int | str = "self") -> float:
    """Return how much memory a process has."""
    with open(f"{PROC}/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def fds() -> int:
    return len(os.listdir(f"{PROC}/self/fd"))


async def objects() -> int:
    """Return how many objects there are once what has just ended is gone."""
    await asyncio.sleep(0.1)
    gc.collect()
    return len(gc.get_objects())


async def idle_gap() -> Found:
    gaps = Gaps()
    async with gaps.watched():
        await asyncio.sleep(sized(1000, 10) / 1000)
    return {"idle gap": gaps.wall}


# Calls ----------------------------------------------------------------------------------


@dataclass
class Calls:
    """What calls for the numbers that it is given, so many at a time."""

    count: int

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self.made = 0

    async def call(self, number: int) -> int:
        await asyncio.sleep(2 * self._random.random() * self.count / CALLS_A_SECOND)
        return number

    @contextlib.asynccontextmanager
    async def by_hand(self) -> AsyncIterator[None]:
        numbers = iter(range(sys.maxsize))

        async def caller() -> None:
            for number in numbers:
                await self.call(number)
                self.made += 1

        tasks = [asyncio.create_task(caller()) for _ in range(self.count)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    @contextlib.asynccontextmanager
    async def by_async_map(self, *, ordered: bool = False) -> AsyncIterator[None]:
        numbers = IterableWrapper(range(sys.maxsize), deepcopy=False)
        graph = numbers.async_map(self.call, concurrency=self.count, ordered=ordered)

        async def consume() -> None:
            async for _ in loader:
                self.made += 1

        async with DataLoader2(graph) as loader:
            task = asyncio.create_task(consume())
            yield
            task.cancel()

    def in_order(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self.by_async_map(ordered=True)


CALLS: dict[str, Callable[[Calls], contextlib.AbstractAsyncContextManager[None]]] = {
    "by hand": Calls.by_hand,
    "async_map": Calls.by_async_map,
    "async_map, ordered": Calls.in_order,
}


async def measure_calls(way: str, count: int, collecting: str) -> Found:
    if collecting == "without":
        gc.disable()
    found = await idle_gap()
    calls, collections = Calls(count), Collections()
    start, run, close = Gaps(), Gaps(), Gaps()
    before = kib_of()
    async with contextlib.AsyncExitStack() as open_calls:
        async with start.watched():
            await open_calls.enter_async_context(CALLS[way](calls))
            # The slowest of the first calls ends about then.
            await asyncio.sleep(max(0.05, 2 * count / CALLS_A_SECOND))
        async with run.watched():
            made, wall, cpu = calls.made, time.perf_counter(), time.process_time()
            await asyncio.sleep(sized(4000, 50) / 1000)
            made, wall = calls.made - made, time.perf_counter() - wall
            cpu, memory = time.process_time() - cpu, kib_of() - before
        async with close.watched():
            await open_calls.aclose()
    found |= start.found(" at start") | run.found() | close.found(" at close")
    rates = {"calls/s": made / wall, "CPU µs": 1e6 * cpu / made, "KiB each": memory / count}
    return rates | found | {"gc": collections.longest}


def show_calls() -> None:
    for collecting in ("with", "without"):
        print(f"\n{collecting} collections of garbage")
        print(f"{'':19} {'calls':>7} {'calls/s':>8} {'CPU µs':>7} {'KiB each':>9}", end="")
        print(f" {'gap at start, CPU':>18} {'as they run, CPU':>17} {'at close, CPU':>14}", end="")
        print(f" {'gc':>6} {'idle':>6}")
        for count in IN_FLIGHT:
            for way in CALLS:
                found = run("calls", way, count, collecting)
                print(
                    f"{way:19} {count:7,} {found['calls/s']:8,.0f} {found['CPU µs']:7.1f}", end=""
                )
                print(f" {found['KiB each']:9.2f}", end="")
                for when, width in ((" at start", 10), ("", 9), (" at close", 6)):
                    wall, cpu = found[f"gap{when}"], found[f"gap{when} CPU"]
                    print(f" {wall:{width}.0f}, {cpu:6.1f}", end="")
                print(f" {found['gc']:6.1f} {found['idle gap']:6.0f}", flush=True)


# Loaders --------------------------------------------------------------------------------


async def soon(number: int) -> int:
    await asyncio.sleep(0)
    return number


def at_once(number: int) -> int:
    return number


GRAPHS: dict[str, Callable[[], Any]] = {
    "async_map": lambda: IterableWrapper(range(200)).async_map(soon, concurrency=4).batch(4),
    "map": lambda: IterableWrapper(range(200)).map(at_once).batch(4),
}


def present(before: Found) -> Found:
    """Return by how much each is more than before."""
    now = {"KiB": kib_of(), "threads": threading.active_count(), "fds": fds()}
    return {key: value - before.get(key, 0) for key, value in now.items()}


async def open_together(graph: str, count: int) -> Found:
    """Begin, read and close so many loaders, all of which are open for a while."""
    gaps, before = Gaps(), present({})
    half, go_on = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def use() -> None:
        async with DataLoader2(GRAPHS[graph]()) as loader:
            read = 0
            async for _ in loader:
                read += 1
                if read == 25:
                    half.release()
                    await go_on.acquire()
            assert read == 50

    async with gaps.watched():
        cpu = time.process_time()
        tasks = []
        # One after another: a program that begins all in one turn of its loop has a gap by itself.
        for _ in range(count):
            tasks.append(asyncio.create_task(use()))
            await half.acquire()
        held = present(before)
        for task in tasks:
            go_on.release()
            await task
        cpu = time.process_time() - cpu
    return held | gaps.found() | {"CPU ms": 1e3 * cpu / count}


async def one_by_one(graph: str, count: int) -> Found:
    """Make, read and close so many loaders one after another, in a thread."""

    def use_all() -> Found:
        before, cpu = present({}), time.process_time()
        held: Found = {}
        for _ in range(count):
            with DataLoader2(GRAPHS[graph]()) as loader:
                items = iter(loader)
                next(items)
                held = held or present(before)
                assert len(list(items)) == 49
        cpu = time.process_time() - cpu
        return held | {"CPU ms": 1e3 * cpu / count}

    gaps = Gaps()
    async with gaps.watched():
        held = await asyncio.to_thread(use_all)
    return held | gaps.found()


LOADER_WAYS: dict[str, Callable[[str, int], Coroutine[Any, Any, Found]]] = {
    "in one loop": open_together,
    "one by one": one_by_one,
}


async def measure_loaders(way: str, graph: str, count: int) -> Found:
    # What the first loaders of a process make stays, as does memory that is free again.
    await LOADER_WAYS[way](graph, count)
    found = await idle_gap()
    before, before_objects = present({}), await objects()
    collections = Collections()
    found |= await LOADER_WAYS[way](graph, count)
    found["gc"] = collections.longest
    left_objects = await objects() - before_objects
    left = {f"{key} left": value for key, value in present(before).items()}
    tasks = len(asyncio.all_tasks()) - 1
    return found | left | {"objects left": left_objects, "tasks left": tasks}


def show_loaders() -> None:
    left = ("threads", "fds", "tasks", "objects", "KiB")
    print(f"\n{'':12} {'':10} {'loaders':>7} {'CPU ms':>7} {'KiB each':>9} {'threads':>8}", end="")
    print(f" {'fds':>5} {'gap, CPU':>13} {'gc':>6} {'idle':>5}  left: {', '.join(left)}")
    for way in LOADER_WAYS:
        for graph in GRAPHS:
            for count in LOADERS:
                found = run("loaders", way, graph, count)
                each = found["KiB"] / (count if way == "in one loop" else 1)
                print(f"{way:12} {graph:10} {count:7,} {found['CPU ms']:7.2f} {each:9.1f}", end="")
                print(f" {found['threads']:8.0f} {found['fds']:5.0f} {found['gap']:5.0f},", end="")
                print(f" {found['gap CPU']:6.1f} {found['gc']:6.1f}", end="")
                print(f" {found['idle gap']:5.0f} {'':7}", end="")
                print(*(f"{found[f'{each} left']:,.0f}" for each in left), sep=", ", flush=True)


# Epochs ---------------------------------------------------------------------------------


@dataclass
class Tenth:
    """A tenth of the time: how many epochs there were, and what they used."""

    epochs: int
    seconds: float
    #: By process: this one first.
    cpu: list[float]
    kib: list[float]
    gap: float
    gap_cpu: float
    collection: float
    objects: int


async def measure_epochs(workers: int, seconds: float) -> list[dict[str, Any]]:
    numbers = IterableWrapper(range(32)).shuffle().sharding_filter().map(at_once).batch(4)
    service = MultiProcessingReadingService(num_workers=workers)
    async with DataLoader2(numbers, reading_service=service) as loader:
        await read_epochs(loader, min(1.0, seconds / TENTHS))
        return [vars(await one_tenth(loader, seconds / TENTHS)) for _ in range(TENTHS)]


async def one_tenth(loader: DataLoader2[Any], seconds: float) -> Tenth:
    family = [os.getpid(), *sorted(descendants())]
    gaps, collections, begun = Gaps(), Collections(), time.perf_counter()
    before = [cpu_seconds([pid]) for pid in family]
    async with gaps.watched():
        epochs = await read_epochs(loader, seconds)
    cpu = [cpu_seconds([pid]) - then for pid, then in zip(family, before, strict=True)]
    seconds = time.perf_counter() - begun
    kib = [kib_of(pid) for pid in family]
    collections.end()
    longest = gaps.wall, gaps.cpu, collections.longest
    return Tenth(epochs, seconds, cpu, kib, *longest, await objects())


async def read_epochs(loader: DataLoader2[Any], seconds: float) -> int:
    epochs, begun = 0, time.perf_counter()
    while (now := time.perf_counter() - begun) < seconds:
        await asyncio.sleep(max(0.0, epochs / EPOCHS_A_SECOND - now))
        count = 0
        async for batch in loader:
            count += len(batch)
        assert count == 32
        epochs += 1
    return epochs


def show_epochs(seconds: float) -> None:
    print(f"\n{'':22} {'epochs/s':>8} {'gap, CPU':>13} {'gc':>6} {'objects':>8}  ", end="")
    print("of each process: CPU µs of an epoch, MiB")
    for workers in (0, 2):
        for number, each in enumerate(run("epochs", workers, seconds), start=1):
            tenth = Tenth(**each)
            print(
                f"{workers} workers, tenth {number:2}   {tenth.epochs / tenth.seconds:8.1f}", end=""
            )
            print(f" {tenth.gap:5.0f}, {tenth.gap_cpu:6.1f} {tenth.collection:6.1f}", end="")
            cpu = [f"{1e6 * cpu / tenth.epochs:.0f}" for cpu in tenth.cpu]
            mib = [f"{kib / 1024:.2f}" for kib in tenth.kib]
            pairs = "; ".join(map(", ".join, zip(cpu, mib, strict=True)))
            print(f" {tenth.objects:8,}  {pairs}", flush=True)


# The command ----------------------------------------------------------------------------

MEASURES: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "calls": measure_calls,
    "loaders": measure_loaders,
    "epochs": measure_epochs,
}


def run(part: str, *settings: Any) -> Any:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--measure", json.dumps([part, *settings])]
    return json.loads(subprocess.check_output(command))


def chosen() -> Iterator[Callable[[], None]]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(MEASURES))
    parser.add_argument("--seconds", type=float, default=30.0, help="how long epochs are read")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.measure is not None:
        part, *settings = json.loads(told.measure)
        yield lambda: print(json.dumps(asyncio.run(MEASURES[part](*settings))))
        return
    shown = {"calls": show_calls, "loaders": show_loaders}
    shown["epochs"] = lambda: show_epochs(told.seconds)
    if unknown := set(told.parts) - set(shown):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    yield from (show for part, show in shown.items() if part in (told.parts or shown))


if __name__ == "__main__":
    for show in chosen():
        show()
