"""A cache on disk that several processes use: each entry is made once, and nobody hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.adapters import CacheTimeout, InvalidateCache
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.errors import WorkerDied
from tests.eyes import PROC
from tests.leaks import leaves_nothing
from tests.processes.scripts import running_script

METHODS = [None, "fork", "spawn", "forkserver"]
COUNT = 60

repeats = pytest.mark.filterwarnings("ignore:nothing shards the graph")


class Notes:
    """A file to which any process adds lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: object) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class Kitchen:
    """Where entries are kept, and how they are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cache"
        self.made = Notes(folder / "made")

    def path(self, item: int) -> str:
        return str(self.folder / f"{item:03}")

    def paths(self, count: int = COUNT) -> list[str]:
        return [self.path(item) for item in range(count)]

    def pair(self, item: int) -> tuple[str, Any]:
        self.made.add(item)
        return self.path(item), self.pieces(item)

    def pieces(self, item: int) -> Iterator[bytes]:
        yield b"first half, "
        # Somebody else may want to run, just now.
        os.sched_yield()
        yield str(item).encode()

    def graph(self, source: Any, **settings: Any) -> Any:
        return source.on_disk_cache(self.path).map(self.pair).end_caching(**settings)

    def is_whole(self, count: int = COUNT) -> bool:
        """Whether there are these entries, each whole, and nothing else."""
        whole = {f"{n:03}": f"first half, {n}" for n in range(count)}
        found = {path.name: path.read_text() for path in self.folder.iterdir()}
        assert found == whole
        return True

    def made_once(self, count: int = COUNT) -> bool:
        return sorted(map(int, self.made.lines())) == list(range(count))


@pytest.fixture
def kitchen(tmp_path) -> Kitchen:
    return Kitchen(tmp_path)


def loader_of(graph: Any, *args: Any, adapter: Any = None) -> DataLoader2[Any]:
    return DataLoader2(graph, adapter, MultiProcessingReadingService(*args))


@pytest.mark.soak
@pytest.mark.sweep
@repeats
@pytest.mark.parametrize("method", METHODS)
def test_workers_that_race_make_each_entry_once(method, kitchen):
    with loader_of(kitchen.graph(IterableWrapper(range(COUNT))), 3, method) as loader:
        for _ in range(2):
            assert sorted(loader) == sorted(3 * kitchen.paths())
    assert kitchen.made_once()
    assert kitchen.is_whole()


@repeats
async def test_workers_that_race_in_different_orders(kitchen):
    source = IterableWrapper(range(COUNT)).map(lambda n: n).shuffle().cycle(2)
    async with loader_of(kitchen.graph(source), 3) as loader:
        assert sorted([path async for path in loader]) == sorted(6 * kitchen.paths())
    assert kitchen.made_once()
    assert kitchen.is_whole()


async def hand_on(item: int) -> int:
    await asyncio.sleep(0)
    return item


@repeats
async def test_waiting_pipes_between_in_workers(kitchen):
    begun = IterableWrapper(range(COUNT)).on_disk_cache(kitchen.path)
    cached = begun.async_map(hand_on).map(kitchen.pair).end_caching()
    with leaves_nothing_after(loader_of(IterableWrapper([1]), 2)):
        async with loader_of(cached, 2) as loader:
            found = [path async for path in loader]
        del loader
    assert found == [path for path in kitchen.paths() for _ in range(2)]
    assert kitchen.made_once()
    assert kitchen.is_whole()


def leaves_nothing_after(loader: DataLoader2[Any]) -> Any:
    """Start what stays for later loaders; then look at what else does."""
    loader.shutdown()
    return leaves_nothing()


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_in_the_dispatching_process(method, kitchen):
    cached = kitchen.graph(IterableWrapper(range(COUNT)))
    graph = cached.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(str)
    with loader_of(graph, 2, method) as loader:
        assert list(loader) == list(loader) == kitchen.paths()
    assert kitchen.made_once()
    assert kitchen.is_whole()


@pytest.mark.sweep
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_sharded_entries_come_in_order_for_any_number_of_workers(num_workers, kitchen):
    cached = kitchen.graph(IterableWrapper(range(COUNT)).sharding_filter())
    with loader_of(cached, num_workers) as loader:
        assert list(loader) == list(loader) == kitchen.paths()
    assert kitchen.made_once()


class Once:
    """Does something for the first who asks, in whichever process."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def is_first(self) -> bool:
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@repeats
async def test_an_error_in_a_worker_comes_out_and_nobody_hangs(kitchen, tmp_path):
    once = Once(tmp_path / "failed")

    def pair(item: int) -> tuple[str, Any]:
        if item == 5 and once.is_first():
            raise ConnectionError("reset")
        return kitchen.pair(item)

    begun = IterableWrapper(range(COUNT)).on_disk_cache(kitchen.path)
    async with loader_of(begun.map(pair).end_caching(timeout=30), 3) as loader:
        with pytest.raises(ConnectionError, match="reset") as caught:
            [path async for path in loader]
        assert any(f"while the cache entry {kitchen.path(5)}" in n for n in caught.value.__notes__)
        assert sorted([path async for path in loader]) == sorted(3 * kitchen.paths())
    assert kitchen.made_once()
    assert kitchen.is_whole()


@repeats
async def test_a_break_leaves_no_half_of_an_entry(kitchen):
    async with loader_of(kitchen.graph(IterableWrapper(range(COUNT))), 3) as loader:
        for stop in range(5):
            items = aiter(loader)
            for _ in range(stop):
                await anext(items)
    names = {path.name for path in kitchen.folder.iterdir()}
    assert names <= {Path(path).name for path in kitchen.paths()}
    assert all(path.read_text().startswith("first half, ") for path in kitchen.folder.iterdir())


@pytest.mark.soak
@pytest.mark.sweep
@repeats
@pytest.mark.parametrize("method", METHODS)
async def test_after_a_workers_death_its_entry_is_made(method, kitchen, tmp_path):
    once = Once(tmp_path / "died")

    def pieces(item: int) -> Iterator[bytes]:
        yield b"first half, "
        if item == 5 and once.is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        yield str(item).encode()

    def pair(item: int) -> tuple[str, Any]:
        return kitchen.path(item), pieces(item)

    begun = IterableWrapper(range(COUNT)).on_disk_cache(kitchen.path)
    async with loader_of(begun.map(pair).end_caching(timeout=60), 3, method) as loader:
        with pytest.raises(WorkerDied):
            [path async for path in loader]
        assert sorted([path async for path in loader]) == sorted(3 * kitchen.paths())
    assert kitchen.is_whole()


MAKES = """
import os, sys
from asyncloader.datapipes.iter import IterableWrapper

path, how = sys.argv[1:]

def pieces():
    yield "first half, "
    print("half", flush=True)
    if how == "hang":
        os.read(os.pipe()[0], 1)
    yield "0"

cached = IterableWrapper([path]).on_disk_cache().map(lambda path: (path, pieces()))
print(*cached.end_caching("wt", timeout=60), flush=True)
"""


def test_whoever_waits_takes_over_from_the_dead_at_once(kitchen, tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with running_script(folders[0], MAKES, kitchen.path(0), "hang") as first:
        assert first.stdout.readline() == "half\n"
        with running_script(folders[1], MAKES, kitchen.path(0), "make") as second:
            wait_for_a_lock(second.pid)
            first.kill()
            began = time.monotonic()
            assert second.communicate(timeout=60) == (f"half\n{kitchen.path(0)}\n", "")
            assert time.monotonic() - began < 20
    assert kitchen.is_whole(1)


def wait_for_a_lock(pid: int) -> None:
    """Return when a process waits for a lock, as the kernel tells."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with open(f"{PROC}/locks") as locks:
            if any("->" in line and str(pid) in line.split() for line in locks):
                return
    raise AssertionError("nobody waits for a lock")


def test_another_run_clears_up_after_one_that_was_killed(kitchen, tmp_path):
    with running_script(tmp_path, MAKES, kitchen.path(0), "hang") as killed:
        assert killed.stdout.readline() == "half\n"
        killed.kill()
        killed.wait(10)
    assert len(list(kitchen.folder.glob(".*"))) == 2, "its lock and its half"
    cached = kitchen.graph(IterableWrapper(range(3)))
    assert list(cached) == kitchen.paths(3)
    assert kitchen.is_whole(3)


async def test_a_worker_that_waits_too_long_says_so(kitchen, tmp_path):
    with running_script(tmp_path, MAKES, kitchen.path(0), "hang") as other:
        assert other.stdout.readline() == "half\n"
        cached = kitchen.graph(IterableWrapper(range(3)).sharding_filter())
        async with loader_of(cached, 2, adapter=CacheTimeout(0.1)) as loader:
            with pytest.raises(TimeoutError, match=f"by process {other.pid};"):
                [path async for path in loader]
    assert other.returncode == -signal.SIGKILL


@repeats
async def test_workers_make_invalidated_entries_again_once(kitchen):
    list(kitchen.graph(IterableWrapper(range(COUNT))))
    kitchen.made.path.unlink()
    cached = kitchen.graph(IterableWrapper(range(COUNT)))
    async with loader_of(cached, 3, adapter=InvalidateCache()) as loader:
        for _ in range(2):
            assert sorted([path async for path in loader]) == sorted(3 * kitchen.paths())
    assert kitchen.made_once()
    assert kitchen.is_whole()


class Pinned(IterDataPipe[Any]):
    """A pipe that stays in the loader's process."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


async def test_a_recipe_that_is_divided_between_processes_says_so(kitchen):
    begun = IterableWrapper(range(4)).sharding_filter().on_disk_cache(kitchen.path)
    cached = Pinned(begun.map(kitchen.pair)).end_caching()
    with pytest.raises(RuntimeError, match="on_disk_cache"):
        async with loader_of(cached, 1) as loader:
            [path async for path in loader]
