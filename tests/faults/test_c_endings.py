"""Rows C: the loader's process is killed or interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.eyes import Seen, alive_after
from tests.faults.child import CLOSE_SECONDS, SLACK, within
from tests.leaks import WORKER, descendants
from tests.processes.scripts import running_script

#: What each worker does after its first item.
STATES = {
    "idle": "lambda n: n",
    "in a long call": "lambda n: n if n < 3 else time.sleep(1000)",
    "in C with the GIL": "lambda n: n if n < 3 else ctypes.PyDLL(None).sleep(1000)",
    "writing": "lambda n: list(range(1_000_000))",
}

SCRIPT = """
import asyncio, ctypes, os, sys, time
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

graph = IterableWrapper(range(10**12)).sharding_filter().map({work})
loader = DataLoader2(graph, None, MultiProcessingReadingService(3))

async def main():
    async with loader:
        items = aiter(loader)
        for _ in range(3):
            await anext(items)
        print("ready", flush=True)
        {then}

def main_sync():
    with loader:
        items = iter(loader)
        for _ in range(3):
            next(items)
        print("ready", flush=True)
        while True:
            next(items)

{call}
"""

ASYNC = {"then": "await asyncio.sleep(1000)", "call": "asyncio.run(main())"}
BLOCKED = {"then": "time.sleep(1000)", "call": "asyncio.run(main())"}
SYNC = {"then": "pass", "call": "main_sync()"}


def started(folder: Path, work: str, how: dict[str, str]):
    return running_script(folder, SCRIPT.format(work=work, **how))


def family_of(pid: int) -> dict[Seen, str]:
    return {Seen.of(each): what for each, what in descendants(pid).items()}


@pytest.mark.parametrize("state", STATES)
def test_c1_when_the_loader_is_killed_all_workers_are_gone(state, tmp_path):
    # In the blocked state nobody reads, so that the workers' sockets fill up.
    with started(tmp_path, STATES[state], BLOCKED) as script:
        assert script.stdout.readline() == "ready\n", script.communicate()
        family = family_of(script.pid)
        assert sum(bool(WORKER.match(what)) for what in family.values()) == 3
        before = named_memory()
        script.kill()
        assert alive_after(family, 2.0 + SLACK) == []
    # Others on this machine may be between making theirs and taking its name away.
    left = named_memory() - before
    end = time.monotonic() + SLACK
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left &= named_memory()
    assert not left


def named_memory() -> set[str]:
    """The shared memory of this library that has a name, as it has for a moment without memfd."""
    folder = Path("/dev/shm")
    return {each.name for each in folder.glob("al-*")} if folder.is_dir() else set()


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("how", [ASYNC, SYNC], ids=["async for", "for"])
@pytest.mark.parametrize("state", ["idle", "in a long call", "in C with the GIL"])
def test_c2_sigterm_ends_everything(state, how, tmp_path):
    with started(tmp_path, STATES[state], how) as script:
        assert script.stdout.readline() == "ready\n", script.communicate()
        family = family_of(script.pid)
        with within(2.0):
            script.terminate()
            script.wait(30)
        assert alive_after(family, 2.0 + SLACK) == []
        assert script.stderr.read() == ""


@pytest.mark.sweep
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", [ASYNC, SYNC], ids=["async for", "for"])
@pytest.mark.parametrize("state", ["in a long call", "in C with the GIL"])
def test_c2_ctrl_c_is_one_traceback_and_a_quick_exit(state, how, times, tmp_path):
    with started(tmp_path, STATES[state], how) as script:
        assert script.stdout.readline() == "ready\n", script.communicate()
        family = family_of(script.pid)
        begun = time.monotonic()
        for _ in range(times):
            # As a terminal does it: to the whole group.
            os.killpg(script.pid, signal.SIGINT)
            next(iter(family)).dies_within(0.3)
        _, stderr = script.communicate(timeout=30)
        took = time.monotonic() - begun
        assert took <= CLOSE_SECONDS + SLACK
        assert alive_after(family, 0.5) == []
    assert script.returncode == -signal.SIGINT, stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt"), stderr
    # asyncio.run chains the cancellation it made of it; a second Ctrl-C may chain once more.
    assert stderr.count("Traceback") <= 1 + times, stderr
    assert "worker" not in stderr.lower().replace("asyncloader/workers", ""), stderr
