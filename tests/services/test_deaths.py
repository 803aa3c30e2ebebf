"""What is said of a worker that died: which one, how, and at which of its items."""

from __future__ import annotations

import os
import signal
import time

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import WorkerDied
from tests.processes.scripts import run_script


def dies_at(signal_: int, fatal: int):
    def slow(number: int) -> int:
        # So long that what was made before is sent first.
        time.sleep(0.02)
        if number == fatal:
            os.kill(os.getpid(), signal_)
        return number

    return slow


@pytest.mark.parametrize("died_by", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_death_says_how_many_items_of_the_worker_came_before_it(workers, died_by):
    fatal = 7 * workers + workers - 1
    graph = IterableWrapper(range(40)).sharding_filter().map(dies_at(died_by, fatal))
    with DataLoader2(graph, None, MultiProcessingReadingService(workers)) as loader:
        with pytest.raises(WorkerDied) as first:
            list(loader)
        with pytest.raises(WorkerDied) as second:
            list(loader)
    for death in (first.value, second.value):
        assert (death.worker, death.signal, death.items) == (workers - 1, died_by, 7)
        assert death.__notes__[-1].startswith(f"7 items of worker {workers - 1} had arrived")


def test_a_death_at_the_first_item_says_so():
    graph = IterableWrapper(range(4)).sharding_filter().map(dies_at(signal.SIGKILL, 0))
    loader = DataLoader2(graph, None, MultiProcessingReadingService(1))
    with loader, pytest.raises(WorkerDied) as died:
        list(loader)
    assert died.value.items == 0


def test_items_that_came_before_a_replacement_count():
    graph = IterableWrapper(range(40)).sharding_filter().map(dies_at(signal.SIGKILL, 9))
    service = MultiProcessingReadingService(1, on_worker_death="restart", max_restarts=1)
    with DataLoader2(graph, None, service) as loader, pytest.raises(WorkerDied) as died:
        list(loader)
    assert died.value.items == 9


CRASH = """
import ctypes
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def parse(number):
    ctypes.string_at(0)

graph = IterableWrapper(range(4)).sharding_filter().map(parse)
with DataLoader2(graph, None, MultiProcessingReadingService(1)) as loader:
    list(loader)
"""


def test_a_crash_in_native_code_prints_the_function_and_line_that_called_it(tmp_path):
    ended = run_script(tmp_path, CRASH)
    line = CRASH.splitlines().index("    ctypes.string_at(0)") + 2
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert f'script.py", line {line} in parse' in ended.stderr
    assert "was killed by SIGSEGV" in ended.stderr
    # That of the worker's other threads says nothing.
    assert "sampler" not in ended.stderr
