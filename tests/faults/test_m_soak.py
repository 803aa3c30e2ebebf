"""Rows M: what runs for long, and dies often, neither grows nor loses anything."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.faults.child import loader_of, numbers, play
from tests.leaks import Belongings, left_since
from tests.processes.scripts import ROOT

#: How many deaths the test suite sees; by hand as many as one likes.
KILLS = 200
#: By far more than they take, which is some 20 seconds.
SOAK_SECONDS = 400


@pytest.mark.timeout(SOAK_SECONDS + 250)
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
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    found = re.search(r"(\d+) deaths", done.stdout)
    assert found
    assert int(found[1]) >= KILLS, done.stdout


def rss_mib() -> float:
    with open("/proc/self/statm") as file:
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


@pytest.mark.parametrize("graph", ["in-process", "workers"])
@pytest.mark.parametrize("scene", [many_epochs, many_epochs_by_for])
def test_m1_a_thousand_epochs_grow_nothing(scene, graph, tmp_path):
    play(tmp_path, scene, graph, 1000)
