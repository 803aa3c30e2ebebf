"""Which numbers of workers and prefetched portions a service uses, without a process."""

from __future__ import annotations

import pytest

from asyncloader.services import tuned_workers
from asyncloader.services.tuned_workers import TunedWorkers, room_in_memory
from asyncloader.tuning import Window

PIDS = (11, 12, 13, 14)


@pytest.fixture(autouse=True)
def _plenty(monkeypatch):
    monkeypatch.setattr(tuned_workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(tuned_workers, "available_memory", lambda: 1 << 40)
    monkeypatch.setattr(tuned_workers, "private_memory", lambda pid: 1 << 30)


def run(tuned: TunedWorkers, windows: int, each: float = 100.0, prefetch_helps: bool = False):
    """Let a consumer that always waits take what so many workers make."""
    numbers = set()
    for _ in range(windows):
        rate = each * tuned.workers * (tuned.prefetch if prefetch_helps else 1)
        window = Window(0.4, round(0.4 * rate), waited=1.0)
        tuned.note(window, tuned.workers, room_in_memory(PIDS[: tuned.workers]))
        numbers.add((tuned.workers, tuned.prefetch))
    return numbers


def test_it_begins_with_the_cores_and_ends_with_what_helps():
    tuned = TunedWorkers("auto", 10)
    assert tuned.workers == 4
    run(tuned, 40)
    assert tuned.workers == 8


def test_no_more_workers_are_used_than_max_workers():
    tuned = TunedWorkers("auto", 10, 3)
    assert max(workers for workers, _ in run(tuned, 40)) == 3


def test_no_more_workers_are_used_than_there_is_memory_for(monkeypatch):
    # Each has 1 GiB, and half of what is free may be used.
    monkeypatch.setattr(tuned_workers, "available_memory", lambda: 4 << 30)
    tuned = TunedWorkers("auto", 10, 64)
    assert max(workers for workers, _ in run(tuned, 40)) == 6


def test_workers_that_run_are_kept_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(tuned_workers, "available_memory", lambda: 0)
    tuned = TunedWorkers("auto", 10, 64)
    assert max(workers for workers, _ in run(tuned, 40)) == 4


def test_a_number_that_could_not_be_started_is_not_tried_again():
    tuned = TunedWorkers("auto", 10, 64)
    run(tuned, 4)
    refused = tuned.workers
    assert refused > 4
    tuned.refuse(refused, 4)
    assert tuned.workers == 4
    assert max(workers for workers, _ in run(tuned, 60)) < refused


def test_the_prefetch_is_found_after_the_number_of_workers():
    tuned = TunedWorkers("auto", "auto", 4)
    seen = run(tuned, 80, prefetch_helps=True)
    assert (tuned.workers, tuned.prefetch) == (4, 80)
    assert all(workers == 4 for workers, prefetch in seen if prefetch != 10)
    settings = [choice.partition("=")[0] for choice in tuned.choices()]
    assert settings == ["num_workers", "worker_prefetch_cnt"]


def test_what_is_fixed_stays_as_it_is():
    tuned = TunedWorkers(2, 7)
    assert run(tuned, 40) == {(2, 7)}
    assert tuned.choices() == []
    tuned.resume_with(5)
    assert tuned.workers == 2
