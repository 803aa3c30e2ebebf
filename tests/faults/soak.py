"""Many deaths, and every item once.

This file is about the soak: loader after loader runs epochs while its processes are
ended at random, is left early now and then or gone on with from its state, and has to
hand out exactly what an undisturbed loader does; at the end nothing may have grown.

    python -m tests.faults.soak --kills 10000 [--seed 7] [--seconds 600] [--works dealt]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import random
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from tests.eyes import PROC
from tests.faults.child import settle, warm_up
from tests.faults.deaths import Obedient, Reaper
from tests.leaks import Belongings, left_since

#: No loader may take longer than this for its epochs.
LIFE_SECONDS = 300.0
EPOCHS = 4
#: Between two strikes at a loader.
PAUSES = (0.02, 0.05, 0.1)
#: By how much a long run may grow, leaving aside what the allocator could give back.
MOST_GROWTH_MIB = 24.0
MOST_NEW_OBJECTS = 2000
#: How many descriptors a loader may have more of, after an epoch, than after its first.
MOST_FDS = 24


def noisy(number: int) -> tuple[int, float, float]:
    time.sleep(0.001)
    return number, random.random(), float(torch.rand(()))


def slow(number: int) -> int:
    time.sleep(0.001)
    return number


def large(number: int) -> torch.Tensor:
    return torch.full((300_000,), number, dtype=torch.int64)


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def numbers(count: int) -> Any:
    return IterableWrapper(range(count)).shuffle(buffer_size=20)


def as_it_is(item: Any, device: Any) -> Any:
    return item


def together(*branches: Any) -> Any:
    """Branches that workers run, put together by the loader."""
    first, *others = [branch.pin_memory(pin_memory_fn=as_it_is) for branch in branches]
    return first.zip(*others)


@dataclass(frozen=True)
class Work:
    """A graph, made around a function that ends its process, and whether its order counts."""

    make: Callable[[Obedient], Any]
    in_order: bool = True
    prefetch: int = 10


WORKS = {
    "plain": Work(lambda end: numbers(3000).sharding_filter().map(end).batch(3)),
    "slow": Work(lambda end: numbers(150).sharding_filter().map(slow).map(end), prefetch=2),
    "on demand": Work(lambda end: numbers(60).sharding_filter().map(slow).map(end), prefetch=0),
    "large": Work(lambda end: numbers(120).sharding_filter().map(end).map(large), prefetch=4),
    "random": Work(lambda end: numbers(150).sharding_filter().map(noisy).map(end).batch(2)),
    "random held": Work(
        lambda end: numbers(150).sharding_filter().map(noisy).shuffle(buffer_size=9).map(end)
    ),
    "dealt": Work(lambda end: dispatched(numbers(150).map(noisy).map(end)).map(noisy).map(end)),
    "branches": Work(
        lambda end: together(
            numbers(100).sharding_filter().map(noisy).map(end),
            dispatched(numbers(100).map(end)).map(noisy),
        )
    ),
    "unordered": Work(lambda end: numbers(200).sharding_filter().map(slow).map(end), False),
}


def entry(item: Any) -> Any:
    """What the ledger has of an item; the item is not kept."""
    if isinstance(item, torch.Tensor):
        return item.numel(), int(item[0]), zlib.crc32(item.numpy())
    return item


@dataclass
class Soak:
    """Life after life of a loader, until there were so many deaths or the time is up."""

    kills: int
    seed: int
    seconds: float
    folder: Path
    works: list[str]
    lives: int = 0
    items: int = 0
    epochs: int = 0
    restarts: int = 0
    most_fds: int = 0
    rss: list[float] = field(default_factory=list)
    objects: list[float] = field(default_factory=list)
    undisturbed: dict[str, list[list[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self.end = Obedient(self.folder)
        self.reaper = Reaper(random.Random(self.seed + 1), self.folder)

    def run(self) -> None:
        """Live, die and compare; AssertionError for the first thing that is wrong."""
        for name in self.works:
            with self.loader(name) as loader:
                self.undisturbed[name] = [list(map(entry, loader)) for _ in range(EPOCHS)]
        begun, before = time.monotonic(), Belongings.now()
        self.reaper.start()
        try:
            while self.died() < self.kills and time.monotonic() - begun < self.seconds:
                self.live()
        finally:
            self.reaper.end()
        settle()
        self.report(time.monotonic() - begun, left_since(before))

    def died(self) -> int:
        return self.reaper.kills.total()

    def live(self) -> None:
        """One loader's life, or two if the second goes on from the state of the first."""
        faulthandler.dump_traceback_later(LIFE_SECONDS, exit=True)
        name = self.luck.choice(self.works)
        goes_on = self.luck.random() < 0.3
        run = self.sync_epoch if self.luck.random() < 0.5 else self.async_epoch
        try:
            self.live_with(name, run, goes_on=goes_on)
        except BaseException:
            print(f"in life {self.lives}: {name}, {run.__name__}, {goes_on=}", file=sys.stderr)
            raise
        self.lives += 1
        settle()
        gc.collect()
        self.rss.append(_held_mib())
        self.objects.append(len(gc.get_objects()))
        faulthandler.cancel_dump_traceback_later()

    def live_with(self, name: str, run: Callable[..., list[Any]], *, goes_on: bool) -> None:
        count = self.luck.randint(1, EPOCHS)
        pause = self.luck.choice(PAUSES)
        with self.loader(name) as loader, self.reaper.set_on(loader, pause):
            fds = 0
            for epoch in range(count - goes_on):
                most = self.early_end(name) if self.luck.random() < 0.2 else None
                self.compare(name, epoch, run(loader, most), most)
                fds = fds or _count_fds()
                self.most_fds = max(self.most_fds, _count_fds() - fds)
            if goes_on:
                begun = run(loader, self.early_end(name))
                state = loader.state_dict(include_datapipe=False)
            self.restarts += loader.stats().restarts
        if not goes_on:
            return
        with self.loader(name) as loader, self.reaper.set_on(loader, pause):
            loader.load_state_dict(state)
            self.compare(name, count - 1, begun + run(loader, None), None)
            self.restarts += loader.stats().restarts

    def early_end(self, name: str) -> int:
        """Draw how many items are taken of an epoch that is not run to its end."""
        return self.luck.randrange(1, len(self.undisturbed[name][0]))

    def loader(self, name: str) -> DataLoader2[Any]:
        work = WORKS[name]
        service = MultiProcessingReadingService(
            2,
            worker_prefetch_cnt=work.prefetch,
            in_order=work.in_order,
            on_worker_death="restart",
            max_restarts=8,
        )
        loader = DataLoader2(work.make(self.end), reading_service=service)
        loader.seed(4)
        return loader

    def sync_epoch(self, loader: DataLoader2[Any], most: int | None) -> list[Any]:
        """Return what an epoch hands out, all of it or its beginning."""
        found = []
        for item in loader:
            found.append(entry(item))
            self.reaper.delivered()
            if len(found) == most:
                break
        return found

    def async_epoch(self, loader: DataLoader2[Any], most: int | None) -> list[Any]:
        """Return what an epoch hands out by ``async for``, all of it or its beginning."""

        async def run() -> list[Any]:
            found = []
            items = aiter(loader)
            async for item in items:
                found.append(entry(item))
                self.reaper.delivered()
                if len(found) == most:
                    break
            return found

        return asyncio.run(run())

    def compare(self, name: str, epoch: int, found: list[Any], most: int | None) -> None:
        """Hold what was handed out, ``most`` items or all, against an undisturbed loader's."""
        self.epochs += 1
        self.items += len(found)
        due = self.undisturbed[name][epoch]
        where = f"{name}, epoch {epoch}"
        count = most or len(due)
        if not WORKS[name].in_order:
            doubled = Counter(found) - Counter(due)
            assert not doubled, f"{where}: not due {doubled}"
        else:
            for at, (item, expected) in enumerate(zip(found, due, strict=False)):
                assert item == expected, f"{where}, item {at}: {item} instead of {expected}"
        assert len(found) == count, f"{where}: {len(found)} items instead of {count}"

    def report(self, seconds: float, left: list[str]) -> None:
        """Print the figures; AssertionError if something was left or has grown."""
        kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted(self.reaper.kills.items()))
        (early, late), (few, many) = early_and_late(self.rss), early_and_late(self.objects)
        print(f"seed {self.seed}: {self.died()} deaths ({kinds}) in {seconds:.0f} s,")
        print(f"{self.lives} lives, {self.epochs} epochs, {self.items} items, all as undisturbed;")
        print(f"{self.restarts} replaced in the middle of an epoch;")
        print(f"left behind: {left or 'no fd, thread, task, process or mapping'};")
        print(f"fds within a life: {self.most_fds:+}; objects {few:.0f} -> {many:.0f};", end=" ")
        print(f"memory held {early:.0f} -> {late:.0f} MiB", flush=True)
        assert not left, "left behind:\n" + "\n".join(left)
        assert self.most_fds <= MOST_FDS, "a loader's descriptors grow with the deaths"
        assert many - few < MOST_NEW_OBJECTS, "objects are kept for the deaths"
        assert late - early < MOST_GROWTH_MIB, "memory grows with the deaths"


def early_and_late(figures: list[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter of a run's figures."""
    quarter = max(1, len(figures) // 4)
    return median(figures[quarter : 2 * quarter] or figures), median(figures[-quarter:])


def _count_fds() -> int:
    return len(os.listdir(f"{PROC}/self/fd"))


def _held_mib() -> float:
    """The resident memory, without what the allocator holds for nobody."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with open(f"{PROC}/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--works", nargs="*", choices=WORKS, default=list(WORKS))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    logging.getLogger("asyncloader").setLevel(logging.ERROR)
    warm_up(None)
    with tempfile.TemporaryDirectory() as folder:
        kills, seed, seconds = arguments.kills, arguments.seed, arguments.seconds
        Soak(kills, seed, seconds, Path(folder), arguments.works).run()


if __name__ == "__main__":
    main()
