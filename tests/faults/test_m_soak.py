"""Rows M: what runs for long, and dies often, neither grows nor loses anything."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from tests.eyes import PROC
from tests.faults.child import loader_of, numbers, play
from tests.leaks import Belongings, left_since
from tests.processes.scripts import ROOT

if TYPE_CHECKING:
    import torch

#: How many deaths the test sees; by hand as many as one likes.
KILLS = 60
#: By far more than they take.
SOAK_SECONDS = 400
_COMPLAINTS = ("Traceback", "Warning", "Exception", "never")


@pytest.mark.timeout(SOAK_SECONDS + 250)
@pytest.mark.soak
def test_m1_processes_that_are_killed_at_random_are_not_missed():
    # The seed is another each time; a soak that fails prints it, with the life it failed in.
    command = ["tests.faults.soak", "--kills", str(KILLS), "--seconds", str(SOAK_SECONDS)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SOAK_SECONDS + 200,
        check=False,
    )
    # Workers that crash say where they were, several of them at a time.
    words = [each for each in _COMPLAINTS if each in done.stderr]
    assert (done.returncode, words) == (0, []), done.stdout + done.stderr
    found = re.search(r"(\d+) deaths", done.stdout)
    assert found
    assert int(found[1]) >= KILLS, done.stdout


def rss_mib() -> float:
    with open(f"{PROC}/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


async def many_epochs(graph: str, count: int) -> None:
    loader = DataLoader2(numbers(20)) if graph == "in-process" else loader_of(numbers(20), 2)
    async with loader:
        before, size = Belongings.now(), 0.0
        for epoch in range(count):
            assert [item async for item in loader] == list(range(20))
            if epoch == count // 4:
                before, size = Belongings.now(), rss_mib()
        await asyncio.sleep(0)
        assert not left_since(before)
        assert rss_mib() - size < 8


def many_epochs_by_for(graph: str, count: int) -> None:
    pipe: Any = IterableWrapper(range(20)).prefetch(3)
    loader = DataLoader2(pipe) if graph == "in-process" else loader_of(numbers(20), 2)
    with loader:
        before, size = Belongings.now(), 0.0
        for epoch in range(count):
            assert list(loader) == list(range(20))
            if epoch == count // 4:
                before, size = Belongings.now(), rss_mib()
        assert not left_since(before)
        assert rss_mib() - size < 8


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("graph", ["in-process", "workers"])
@pytest.mark.parametrize("scene", [many_epochs, many_epochs_by_for])
def test_m1_a_thousand_epochs_grow_nothing(scene, graph, tmp_path):
    play(tmp_path, scene, graph, 1000)


#: In an epoch without an end. What was kept of one that died would be its channel, with
#: 256 KiB to read from it, and all of its memory. Frames that wait to be opened keep the last
#: of them for a while.
DEATHS = 8
MOST_FDS = MOST_MAPPINGS = 20
MOST_BYTES = 2 << 20


def small(number: int) -> torch.Tensor:
    # Scenes without tensors are quicker without torch.
    import torch

    return torch.full((10_000,), number)


async def take_until_one_is_replaced(
    loader: DataLoader2[Any], items: AsyncIterator[torch.Tensor], taken: int
) -> int:
    """Kill a process, and take items until another has its place; return how many were taken."""
    victim = loader.stats().workers[taken % 2].pid
    os.kill(victim, signal.SIGKILL)
    while victim in [worker.pid for worker in loader.stats().workers]:
        assert int((await anext(items))[0]) == taken
        taken += 1
    return taken


def held_now() -> tuple[int, int, int]:
    """How many descriptors and mappings there are, and how much memory, without garbage."""
    now = Belongings.now()
    return now.fds.total(), now.shared_memory.total(), tracemalloc.get_traced_memory()[0]


async def many_deaths_in_an_epoch() -> None:
    logging.getLogger("asyncloader").setLevel(logging.ERROR)
    pipe: Any = IterableWrapper(range(1 << 40))
    # Where items are dealt, all processes are replaced with one that died.
    dealt = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    settings: dict[str, Any] = {"on_worker_death": "restart", "max_restarts": DEATHS}
    async with loader_of(dealt.map(small), 2, worker_prefetch_cnt=2, **settings) as loader:
        items, taken = aiter(loader), 0
        tracemalloc.start()
        for death in range(DEATHS + 3):
            taken = await take_until_one_is_replaced(loader, items, taken)
            if death == 2:
                before = held_now()
        fds, mappings, nbytes = (now - then for now, then in zip(held_now(), before, strict=True))
    assert fds <= MOST_FDS
    assert mappings <= MOST_MAPPINGS
    assert nbytes <= MOST_BYTES


@pytest.mark.soak
def test_m1_an_epoch_without_an_end_holds_nothing_for_those_that_died_in_it(tmp_path):
    play(tmp_path, many_deaths_in_an_epoch, imports="torch")
