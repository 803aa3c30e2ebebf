"""What is there on Windows, as far as that can be found out elsewhere: all but worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.scripts import run_script

PRETEND = """
from tests.without_posix import pretend
pretend()
"""

#: Of these samples the reason is said: they need locks of files.
CACHES = {"OnDiskCacheHolder", "EndOnDiskCacheHolder"}

RUN_SAMPLES = (
    PRETEND
    + """
import asyncio, warnings
warnings.simplefilter("ignore")
import asyncloader
from asyncloader import DataLoader2, MultiThreadingReadingService
from tests.samples import ITER_PIPES, MAP_PIPES, graph_with


async def collected(loader):
    async with loader:
        return [item async for item in loader]


for pipe in ITER_PIPES | MAP_PIPES:
    try:
        with DataLoader2(graph_with(pipe)) as loader:
            count = len(list(loader))
        assert len(asyncio.run(collected(DataLoader2(graph_with(pipe))))) == count > 0
        threads = MultiThreadingReadingService(2)
        with DataLoader2(graph_with(pipe), reading_service=threads) as loader:
            assert len(list(loader)) > 0
        print(pipe.__name__, "works")
    except Exception as error:
        print(pipe.__name__, repr(error))
"""
)

ASK_FOR_WORKERS = (
    PRETEND
    + """
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

graph = IterableWrapper(range(4)).sharding_filter()
try:
    list(DataLoader2(graph, None, MultiProcessingReadingService(2)))
except Exception as error:
    print(type(error).__name__, error)
print(sum(DataLoader2(graph.thread_map(int), None, MultiProcessingReadingService(0))))
loader = DataLoader2.from_dataset(range(4), num_workers=2, collate_fn=sum)
print(type(loader.reading_service).__name__, sum(loader))
"""
)


@pytest.mark.soak
def test_every_pipe_works_here_and_in_threads_but_caches_on_disk(tmp_path: Path) -> None:
    done = run_script(tmp_path, RUN_SAMPLES)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(found) > 80
    refused = {name: what for name, what in found.items() if what != "works"}
    assert set(refused) == CACHES
    assert all("need POSIX file locks" in what for what in refused.values())


@pytest.mark.soak
def test_asking_for_workers_says_what_to_do_instead(tmp_path: Path) -> None:
    done = run_script(tmp_path, ASK_FOR_WORKERS)
    assert done.returncode == 0, done.stderr
    error, total, of_threads = done.stdout.splitlines()
    assert error.startswith(
        "WorkerStartupError worker processes need Linux, macOS or another POSIX"
    )
    assert "MultiThreadingReadingService" in error
    assert "WSL" in error
    assert total == "6"
    assert of_threads == "MultiThreadingReadingService 6"
