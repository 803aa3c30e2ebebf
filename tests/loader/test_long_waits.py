"""Whoever waits long is told what for, and nobody else is told anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.needs import needs_last_words

#: Longer than any scene takes on a busy machine.
LIMIT_SECONDS = 60.0

#: What the report of each scene says.
CULPRITS = {
    "a_call_that_never_ends": r"async_map\(ask_forever\): item 5, for .*in ask_forever.*Event.wait",
    "a_call_on_the_consumers_loop": r"async_map\(ask_forever.*item 5, for .*in ask_forever",
    "a_call_that_is_tried_again": r"item 5, attempt 3, for .*in .*ask_again.*in ask_forever",
    "a_lock": r"for item 5 .*map\(never\): thread 'MainThread'.*in never",
    "a_lock_on_the_way_to_a_loop": r"for item 5 .*map\(never\): thread 'asyncloader.*in never",
    "a_lock_in_a_thread": r"thread_map\(never.*item 5, thread 'asyncloader.*in never",
    "a_dead_server_behind_a_pool": r"async_map\(fetch\): item 0, .*in StreamReader.readexactly",
    "a_worker_in_c": r"a call that keeps the GIL: worker 1 \(pid \d+\).*in in_c",
    "a_stopped_worker": r"stopped by a signal \(SIGSTOP\): worker 1 \(pid \d+\)",
    "a_call_in_a_worker": r"async_map\(ask_forever\): item 2, worker 1 \(pid.*in ask_forever",
    "a_thread_in_a_worker": r"thread_map\(never.*item 2, worker 1 \(pid .*thread .*in never",
    "a_dispatching_process": r"map\(never\): the dispatching process \(pid \d+\).*in never",
    "a_worker_that_never_gets_ready": r"worker 0 \(pid .*to get ready.*in get_ready_never",
    "an_exhausted_semaphore": r"async_map\(take_a_token\): item 5, .*in Semaphore.acquire",
    "a_cycle_of_two_pipes": r"map\(first\): .*in .*first.*map\(second\): .*in .*second",
    "a_loop_that_stands_still": r"async_map\(block\): the event loop of thread .*in .*block",
    "a_source_that_is_silent": r"Silent\(\)\n.*in Silent.__aiter__",
    "a_call_of_a_rollout": r"rollout\(generate.*item 5, attempt 2, for .*in ask_forever",
    "a_trainer_that_does_not_advance": r"rollout\(.* waits for loader\.ack\(\): ",
    "a_request_without_an_answer": r"async_map\(ask_forever\): item 0, .*in ask_forever",
}

QUIET = [
    "a_feed_without_requests",
    "a_feed_of_workers_without_requests",
    "a_paused_loader",
    "a_paused_rollout",
    "a_consumer_that_is_away",
    "a_consumer_of_workers_that_is_away",
    "items_that_wait_for_an_acknowledgement",
]


@contextmanager
def played(*scene: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Play a scene in a process of its own, within a limited time."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.loader.wait_scenes", *scene],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables},
    ) as process:
        timer = threading.Timer(LIMIT_SECONDS, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def reports(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from map(json.loads, process.stdout)


def check_names(pattern: str, *scene: str, **variables: str) -> None:
    """Check that a report names who holds a scene up."""
    with played(*scene, **variables) as process:
        said = []
        for report in reports(process):
            said.append(report)
            if re.search(pattern, report, re.DOTALL):
                return
        assert process.stderr is not None
        pytest.fail(f"nothing says {pattern!r}, but {said} {process.stderr.read()}")


#: Scenes in which a worker is asked.
OF_WORKERS = [scene for scene in CULPRITS if "worker" in scene or "process" in scene]


@pytest.mark.soak
@pytest.mark.parametrize(
    "scene",
    [pytest.param(each, marks=needs_last_words if each in OF_WORKERS else ()) for each in CULPRITS],
)
def test_a_wait_names_who_holds_it_up(scene: str) -> None:
    check_names(CULPRITS[scene], scene)


def test_a_wait_for_the_lock_of_a_cache_names_who_holds_it(tmp_path: Path) -> None:
    pattern = r"end_caching.* waits for the lock .*\.lock, which process 4242 holds"
    check_names(pattern, "a_lock_of_a_cache_on_disk", str(tmp_path))


@pytest.mark.soak
def test_a_wait_for_a_rank_names_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    store = str(tmp_path / "store")
    with played("a_rank_that_left", "1", store):
        check_names(r"for item \d+ .*the loader waits for rank 1", "a_rank_that_left", "0", store)


def test_a_worker_that_cannot_be_asked_is_named() -> None:
    pattern = (
        r"the next item: worker 1 \(pid (\d+)\), which cannot be asked from here"
        r" \(`py-spy dump --pid \1` shows where it stands\), for "
    )
    check_names(pattern, "a_call_in_a_worker", ASYNCLOADER_PORTABLE="1")


def test_what_nobody_may_look_at_is_said_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a Python without the global interpreter lock, where frames of threads must be left.
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    is_asked, may_end = threading.Event(), threading.Event()

    def wait(number: int) -> int:
        is_asked.set()
        may_end.wait(LIMIT_SECONDS)
        return number

    with DataLoader2(IterableWrapper(range(1)).map(wait)) as loader:
        consumer = threading.Thread(target=list, args=(loader,))
        consumer.start()
        assert is_asked.wait(LIMIT_SECONDS)
        found = loader.why()
        may_end.set()
        consumer.join()
    pattern = f"cannot be looked at .* no global .*: `py-spy dump --pid {os.getpid()}` shows"
    assert re.search(pattern, str(found))


@pytest.mark.soak
@pytest.mark.parametrize("scene", QUIET)
def test_who_waits_rightly_is_not_reported(scene: str) -> None:
    with played(scene) as process:
        assert list(reports(process)) == []
        assert process.wait(LIMIT_SECONDS) == 0
