"""What is said of a worker that died: which one, how, and at which of its items."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.watch.watching import SAMPLER
from asyncloader.errors import WorkerDied
from asyncloader.workers.whereabouts import MORE_BITS, Whereabouts
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
        assert death.__notes__[-1].startswith(
            f"7 items of worker {workers - 1} had arrived in this epoch; it was making item 7,"
            " counted from 0, "
        )
        assert death.making == range(7, 8)


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
    assert died.value.making == range(9, 10)


def crash() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ENDINGS = [kill_itself, crash]


def death_of(graph: Any, method: str | None = None) -> WorkerDied:
    """Return the error of a loader whose only worker dies."""
    service = MultiProcessingReadingService(1, multiprocessing_context=method)
    with DataLoader2(graph, None, service) as loader, pytest.raises(WorkerDied) as died:
        list(loader)
    return died.value


def says(death: WorkerDied, item: int) -> None:
    """Check that a death names few items, this one among them, and no others."""
    making = death.making
    assert making is not None
    assert item in making
    assert len(making) <= 256
    named = f"item {item}," if len(making) == 1 else f"items {making[0]} to {making[-1]},"
    assert named in death.__notes__[-1]


@pytest.mark.parametrize("method", [None, "fork"])
@pytest.mark.parametrize("end", ENDINGS)
def test_a_death_among_many_tiny_items_names_few_and_the_right_one_is_among_them(end, method):
    def fast(number: int) -> int:
        if number == 54_321:
            end()
        return number

    graph = IterableWrapper(range(100_000)).sharding_filter().map(fast)
    says(death_of(graph, method), 54_321)


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("kind", [set, str])
def test_a_death_between_items_of_other_kinds_names_few(kind, end):
    def made(number: int) -> Any:
        if number == 4_321:
            end()
        return {number} if kind is set else str(number)

    graph = IterableWrapper(range(10_000)).sharding_filter().map(made)
    death = death_of(graph)
    says(death, 4_321)
    if kind is set:
        assert death.making == range(4_321, 4_322), "each is looked at by itself"


@pytest.mark.parametrize("method", [None, "fork"])
@pytest.mark.parametrize("end", ENDINGS)
def test_a_death_in_flatmap_names_the_item_that_it_would_yield(end, method):
    def parts(number: int) -> list[int]:
        if number == 1_234:
            end()
        return [number] * 10

    graph = IterableWrapper(range(2_000)).sharding_filter().flatmap(parts)
    says(death_of(graph, method), 12_340)


class Fatal:
    """A data set that ends its worker when it is asked for one key."""

    def __init__(self, key: int, end: Any) -> None:
        self.key, self.end = key, end

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, key: int) -> int:
        if key == self.key:
            self.end()
        return key


@pytest.mark.sweep
@pytest.mark.parametrize("method", [None, "fork"])
@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("where", ["data set", "collate"])
def test_a_death_in_a_data_set_or_its_collate_names_the_batch(where, end, method):
    def collate(batch: list[int]) -> list[int]:
        if where == "collate" and batch[0] == 2_468:
            end()
        return batch

    data = Fatal(2_470 if where == "data set" else -1, end)
    loader = DataLoader2.from_dataset(
        data, batch_size=4, num_workers=1, collate_fn=collate, multiprocessing_context=method
    )
    with loader, pytest.raises(WorkerDied) as died:
        list(loader)
    says(died.value, 617)


def await_looks() -> None:
    """Return when the sampler of this process has looked twice at the thread that makes items."""
    thread = SAMPLER._looked[0]
    seen = sum(thread.looks.values())
    while sum(thread.looks.values()) < seen + 4:
        pass


@pytest.mark.parametrize("end", ENDINGS)
def test_a_death_names_the_pipe_in_which_the_worker_was_seen_meanwhile(end):
    def slow(number: int) -> int:
        if number == 3:
            await_looks()
            end()
        return number

    graph = IterableWrapper(range(9)).sharding_filter().map(slow).map(lambda number: number)
    death = death_of(graph)
    says(death, 3)
    assert death.pipe == "map(slow)"
    assert death.__notes__[-1].endswith(", counted from 0, and was seen in map(slow)")


def test_a_pipe_in_which_a_worker_was_seen_at_an_earlier_item_is_not_named():
    def slow(number: int) -> int:
        if number == 3:
            await_looks()
        if number == 4:
            kill_itself()
        return number

    death = death_of(IterableWrapper(range(9)).sharding_filter().map(slow))
    says(death, 4)
    assert death.pipe == ""
    assert death.__notes__[-1].endswith("sharding_filter() → map(slow)")


def test_what_is_noted_by_one_is_read_by_another():
    memory = bytearray(4096)
    worker, loader = Whereabouts(memory), Whereabouts(memory)
    assert (loader.making(), loader.pipe()) == (None, "")
    at = worker.begin(1, 70)
    assert loader.making() == range(70, 71)
    worker.words[at] = 71 << MORE_BITS | 3
    assert loader.making() == range(71, 75)
    for pipe in ("map(a)", "map(b)", "map(é)"):
        worker.see(worker.now(), pipe)
        assert loader.pipe() == pipe
    worker.words[at] = 72 << MORE_BITS
    assert loader.pipe() == ""
    worker.end()
    assert loader.making() is None
    # Of a stream beyond those that have a word nothing is known.
    worker.words[worker.begin(1000, 5)] = 6 << MORE_BITS
    assert loader.making() is None


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
