"""Row N7: what the program owns by ``multiprocessing`` lives as long as the program wants."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.child import METHODS
from tests.needs import needs_dev_shm
from tests.processes.scripts import run_script, running_script

pytestmark = needs_dev_shm

HEAD = """
import os, signal, sys
from multiprocessing import Manager, shared_memory
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

# The tracker takes these over, and would raise its warnings instead of printing them.
sys.warnoptions.clear()
METHOD = {method!r}
NAME = f"of-a-program-{{os.environ['OWNER']}}"

def loader_of(function, count=20):
    graph = IterableWrapper(range(count)).sharding_filter().map(function)
    return DataLoader2(graph, None, MultiProcessingReadingService(2, METHOD))

def shared(size=100):
    return shared_memory.SharedMemory(NAME, create=True, size=size)

class Attached:
    # Attaches once in each worker, as a dataset does that finds its memory by name.
    def __init__(self):
        self.memory = None

    def __call__(self, number):
        if self.memory is None:
            self.memory = shared_memory.SharedMemory(NAME)
        self.memory.buf[number] += 1
        return number

def attached_and_left(number):
    memory = shared_memory.SharedMemory(NAME)
    memory.buf[number] += 1
    memory.close()
    return number
"""

LOADERS_IN_A_ROW = """
if __name__ == "__main__":
    memory = shared()
    for function in [Attached(), attached_and_left, Attached()]:
        with loader_of(function) as loader:
            for epoch in range(2):
                assert list(loader) == list(range(20))
    assert bytes(memory.buf[:20]) == bytes([6] * 20)
    again = shared_memory.SharedMemory(NAME)
    again.close()
    memory.close()
    memory.unlink()
"""

MADE_WHILE_WORKERS_RUN = """
if __name__ == "__main__":
    with loader_of(lambda number: number, count=2) as loader:
        list(loader)
    with loader_of(attached_and_left) as loader:
        memory = shared()
        assert list(loader) == list(range(20))
    with loader_of(attached_and_left) as loader:
        assert list(loader) == list(range(20))
    assert bytes(memory.buf[:20]) == bytes([2] * 20)
    memory.close()
    memory.unlink()
"""

KILLED_WORKERS = """
import asyncloader

if __name__ == "__main__":
    memory = shared()
    for _ in range(2):
        try:
            with loader_of(Attached(), count=2000) as loader:
                items = iter(loader)
                next(items)
                os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
                list(items)
        except (asyncloader.WorkerDied, IndexError):
            pass
    shared_memory.SharedMemory(NAME).close()
    memory.close()
    memory.unlink()
"""

MANAGED = """
def used(lock, queue, numbers, event):
    def use(number):
        assert event.is_set()
        with lock:
            numbers[number] = numbers.get(number, 0) + 1
        queue.put(number)
        return number
    return use

if __name__ == "__main__":
    with Manager() as manager:
        lock, queue, numbers, event = (
            manager.Lock(), manager.Queue(), manager.dict(), manager.Event()
        )
        event.set()
        for _ in range(2):
            with loader_of(used(lock, queue, numbers, event)) as loader:
                assert list(loader) == list(range(20))
        assert dict(numbers) == {number: 2 for number in range(20)}
        assert sorted(queue.get() for _ in range(40)) == sorted([*range(20), *range(20)])
"""

OF_A_WORKER = """
def makes_memory(number):
    if number == 0:
        shared()
        if {kills}:
            os.kill(os.getpid(), signal.SIGKILL)
    return number

if __name__ == "__main__":
    try:
        with loader_of(makes_memory) as loader:
            list(loader)
    except Exception as error:
        print(type(error).__name__)
    print("closed", flush=True)
"""


@pytest.fixture
def owner(monkeypatch, tmp_path):
    """The name in /dev/shm of what the script makes."""
    number = f"{os.getpid()}-{tmp_path.parent.name}-{tmp_path.name}"
    monkeypatch.setenv("OWNER", number)
    path = Path(f"/dev/shm/of-a-program-{number}")
    yield path
    path.unlink(missing_ok=True)


def run(folder: Path, method: str | None, body: str) -> None:
    done = run_script(folder, HEAD.format(method=method) + body)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("body", [LOADERS_IN_A_ROW, MADE_WHILE_WORKERS_RUN, KILLED_WORKERS])
@pytest.mark.parametrize("method", METHODS)
def test_n7_shared_memory_of_the_program_outlives_its_loaders(method, body, owner, tmp_path):
    run(tmp_path, method, body)
    assert not owner.exists()


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_n7_what_a_manager_of_the_program_keeps_is_used_in_workers(method, owner, tmp_path):
    run(tmp_path, method, MANAGED)


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize(
    ("method", "kills"), [(None, True), *((method, False) for method in METHODS)]
)
def test_n7_what_a_worker_made_and_left_is_gone_after_the_program(method, kills, owner, tmp_path):
    source = HEAD.format(method=method) + OF_A_WORKER.format(kills=kills)
    with running_script(tmp_path, source) as script:
        stdout, stderr = script.communicate(timeout=90)
    assert stdout == ("WorkerDied\nclosed\n" if kills else "closed\n"), stdout + stderr
    assert stderr.count("1 leaked shared_memory objects") == 1, stderr
    assert not owner.exists()


def test_n7_the_tracker_ends_with_a_program_that_is_killed(owner, tmp_path):
    body = """
if __name__ == "__main__":
    memory = shared()
    loader = loader_of(Attached())
    loader.__enter__()
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with running_script(tmp_path, HEAD.format(method=None) + body) as script:
        # The tracker outlives the program and its workers by a moment, and has its stderr.
        stdout, stderr = script.communicate(timeout=90)
    assert (script.returncode, stdout) == (-signal.SIGKILL, "ready\n"), stdout + stderr
    assert stderr.count("1 leaked shared_memory objects") == 1, stderr
    assert not owner.exists()
