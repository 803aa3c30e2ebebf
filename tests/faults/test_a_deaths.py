"""Rows A: workers that die, hang or run out of memory."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import WorkerDied, WorkerTimeout
from asyncloader.runtime import new_event_loop
from asyncloader.worker_info import get_worker_info
from asyncloader.workers import worker_stream
from asyncloader.workers.process import process as child_process
from tests.eyes import PROC, Seen, facts_of
from tests.faults.child import (
    CLOSE_SECONDS,
    DETECT_SECONDS,
    SLACK,
    collected,
    loader_of,
    numbers,
    play,
    play_each,
    within,
)
from tests.needs import HAS_LAST_WORDS, needs_last_words


def die_of(signal_number: int) -> None:
    signal.signal(signal_number, signal.SIG_DFL) if signal_number != signal.SIGKILL else None
    os.kill(os.getpid(), signal_number)
    time.sleep(1000)


def in_the_first_epoch(flag: str, act: Callable[[], Any]) -> Callable[[int], int]:
    """A function for map that acts once in all, in the middle of worker 1's items."""

    def maybe(number: int) -> int:
        info = get_worker_info()
        if info is not None and info.worker_id == 1 and number > 20 and not os.path.exists(flag):
            open(flag, "x").close()
            act()
        return number

    return maybe


WAYS: dict[str, tuple[Callable[[], Any], int]] = {
    "SIGKILL": (lambda: die_of(signal.SIGKILL), -signal.SIGKILL),
    "SIGTERM": (lambda: die_of(signal.SIGTERM), -signal.SIGTERM),
    "SIGSEGV": (lambda: die_of(signal.SIGSEGV), -signal.SIGSEGV),
    "_exit 0": (lambda: os._exit(0), 0),
    "exit 3": (lambda: sys.exit(3), 3),
    "in a thread": (lambda: in_a_thread(lambda: os._exit(4)), 4),
}


def in_a_thread(act: Callable[[], Any]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(1000)


async def a_worker_dies(way: str, flag: str) -> None:
    act, exitcode = WAYS[way]
    graph = numbers(1000).map(in_the_first_epoch(flag, act))
    async with loader_of(graph, 2) as loader:
        with within(DETECT_SECONDS):
            taken, error = await collected(loader)
        assert taken == list(range(len(taken)))
        assert len(taken) <= 23
        check_death(error, exitcode)
        assert [item async for item in loader] == list(range(1000)), "the next epoch works"


def check_death(error: BaseException | None, exitcode: int) -> None:
    assert isinstance(error, WorkerDied), error
    assert (error.worker, error.exitcode) == (1, exitcode)
    assert error.pid is not None
    assert error.signal == (-exitcode if exitcode < 0 else None)
    told = signal.Signals(-exitcode).name if exitcode < 0 else f"code {exitcode}"
    assert told in str(error)
    assert str(error.pid) in str(error)


def test_a1_a_worker_that_is_killed_mid_batch_is_a_death(tmp_path):
    play(tmp_path, a_worker_dies, "SIGKILL", str(tmp_path / "flag"))


def test_a2_a_worker_that_ends_early_is_a_death_with_its_code(tmp_path):
    ways = ["SIGTERM", "SIGSEGV", "_exit 0", "exit 3", "in a thread"]
    play_each(tmp_path, a_worker_dies, [(way, str(tmp_path / way)) for way in ways])


def a_worker_dies_under_uvloop(flag: str) -> None:
    with asyncio.Runner(loop_factory=new_event_loop, debug=True) as runner:
        runner.run(a_worker_dies("SIGKILL", flag))


def test_a1_under_uvloop(tmp_path):
    play(tmp_path, a_worker_dies_under_uvloop, str(tmp_path / "flag"))


def a_worker_dies_and_a_thread_reads(flag: str) -> None:
    graph = numbers(1000).map(in_the_first_epoch(flag, lambda: die_of(signal.SIGKILL)))
    found: list[Any] = []

    def read() -> None:
        with loader_of(graph, 2) as loader:
            items = iter(loader)
            for _ in range(2):
                try:
                    found.extend(items)
                except WorkerDied as error:
                    found.append(error)
            found.append(list(loader))

    thread = threading.Thread(target=read)
    thread.start()
    with within(DETECT_SECONDS + CLOSE_SECONDS):
        thread.join(20)
    *items, error, again, whole = found
    assert items == list(range(len(items)))
    check_death(error, -signal.SIGKILL)
    assert again is error
    assert whole == list(range(1000))


def test_a1_read_by_for_in_a_thread(tmp_path):
    play(tmp_path, a_worker_dies_and_a_thread_reads, str(tmp_path / "flag"))


def with_pid(number: int) -> tuple[int, int]:
    return number, os.getpid()


def large_with_pid(number: int) -> tuple[int, int, list[int]]:
    # Many small objects stay in band: the socket is full of them.
    return number, os.getpid(), list(range(100_000))


async def a_worker_is_killed_while(what: str) -> None:
    # More than the frames that a worker may be ahead hold.
    count = 200 if what == "writing" else 50_000
    graph = numbers(count).map(large_with_pid if what == "writing" else with_pid)
    async with loader_of(graph, 2, worker_prefetch_cnt=2) as loader:
        items = aiter(loader)
        pids = [(await anext(items))[1] for _ in range(2)]
        if what == "writing":
            # The loop is busy, and the socket fills up.
            time.sleep(0.5)  # noqa: ASYNC251
        else:
            # Out of credits, or between epochs, a worker waits for a command.
            await asyncio.sleep(0.3)
        if what == "between epochs":
            await items.aclose()
        killed = Seen.of(pids[1])
        os.kill(pids[1], signal.SIGKILL)
        assert killed.dies_within(DETECT_SECONDS + SLACK)
        if what != "between epochs":
            taken, error = [], None
            with within(DETECT_SECONDS):
                try:
                    taken = [number async for number, *_ in items]
                except WorkerDied as death:
                    error = death
            assert taken == list(range(2, 2 + len(taken)))
            check_death(error, -signal.SIGKILL)
        assert [number async for number, *_ in loader] == list(range(count))


@pytest.mark.soak
@pytest.mark.parametrize("what", ["idle", "between epochs", "writing"])
def test_a1_a_worker_that_is_killed_while(what, tmp_path):
    play(tmp_path, a_worker_is_killed_while, what)


async def a_worker_dies_while_its_parent_is_stopped() -> None:
    async with loader_of(numbers(3000).map(with_pid), 2, worker_prefetch_cnt=1) as loader:
        items = aiter(loader)
        pids = [(await anext(items))[1] for _ in range(2)]
        template = int(facts_of(pids[1])[1])
        os.kill(template, signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        try:
            with within(DETECT_SECONDS), pytest.raises(WorkerDied, match="worker 1"):
                [item async for item in items]
        finally:
            os.kill(template, signal.SIGCONT)


def test_a1_a_death_is_told_while_the_template_process_is_stopped(tmp_path):
    play(tmp_path, a_worker_dies_while_its_parent_is_stopped)


HANGS: dict[str, Callable[[], Any]] = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "in C with the GIL": lambda: ctypes.PyDLL(None).sleep(1000),
    "sleeping": lambda: time.sleep(1000),
}


#: Longer than a machine that is shared keeps a worker that has something to say.
SILENCE_SECONDS = 3.0


async def a_worker_hangs(how: str, flag: str) -> None:
    is_silent = how == "stopped"
    child_process.DUMP_SECONDS = 0.5 if is_silent else 10.0
    graph = numbers(100).map(in_the_first_epoch(flag, HANGS[how]))
    async with loader_of(graph, 2, timeout=SILENCE_SECONDS) as loader:
        with within(SILENCE_SECONDS + DETECT_SECONDS):
            taken, error = await collected(loader)
        assert taken == list(range(len(taken)))
        assert isinstance(error, WorkerTimeout | TimeoutError), error
        assert error.worker == 1
        assert "worker 1" in str(error)
        assert "timeout=3" in str(error)
        stack = error.stack or ""
        if is_silent or not HAS_LAST_WORDS:
            assert error.stack is None
        else:
            assert stack.startswith("worker 1 stood here"), stack
            assert "in maybe" in stack
            assert stack in error.__notes__
        assert [item async for item in loader] == list(range(100))


@pytest.mark.soak
def test_a3_a_worker_that_is_silent_for_too_long_is_killed_and_says_where(tmp_path):
    play_each(tmp_path, a_worker_hangs, [(how, str(tmp_path / how)) for how in HANGS])


def once_in_all(flag: str, number: int) -> int:
    if number == 20 and not os.path.exists(flag):
        open(flag, "x").close()
        time.sleep(1000)
    return number


async def the_dispatching_process_hangs(flag: str) -> None:
    child_process.DUMP_SECONDS = 10.0
    slow = IterableWrapper(range(100)).map(partial(once_in_all, flag))
    graph = slow.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    async with loader_of(graph, 2, timeout=SILENCE_SECONDS) as loader:
        taken, error = await collected(loader)
        assert taken == list(range(len(taken)))
        assert isinstance(error, WorkerTimeout), error
        _, _, stack = (error.stack or "").partition("the dispatching process stood here")
        assert "in once_in_all" in stack
        assert [item async for item in loader] == list(range(100))


@pytest.mark.soak
@needs_last_words
def test_a3_a_dispatching_process_that_hangs_says_where(tmp_path):
    play(tmp_path, the_dispatching_process_hangs, str(tmp_path / "flag"))


async def a_worker_hangs_without_a_timeout(flag: str) -> None:
    worker_stream.WARN_SECONDS = 0.3
    told: list[str] = []
    told_twice = asyncio.Event()

    def note(record: logging.LogRecord) -> None:
        told.append(record.getMessage())
        # Another may have been waited for on its way there.
        if sum("waiting for worker 1" in each for each in told) == 2:
            told_twice.set()

    handler = logging.Handler()
    handler.emit = note  # type: ignore[method-assign]
    logging.getLogger("asyncloader").addHandler(handler)
    graph = numbers(100).map(in_the_first_epoch(flag, HANGS["sleeping"]))
    async with loader_of(graph, 2) as loader:
        items = asyncio.ensure_future(collected(loader))
        await told_twice.wait()
        assert not items.done()
        assert "waiting for worker 1" in told[-1], told
    await items


def test_a3_without_a_timeout_a_warning_names_it_again_and_again(tmp_path):
    assert worker_stream.WARN_SECONDS == 30.0
    play(tmp_path, a_worker_hangs_without_a_timeout, str(tmp_path / "flag"))


def hang_in_three_ways(folder: str, number: int) -> int:
    if number >= 3:
        # A process that is stopped, or keeps the GIL, sends nothing: not even what it has made.
        while not os.path.exists(f"{folder}/received"):
            time.sleep(0.01)
        info = get_worker_info()
        assert info is not None
        open(f"{folder}/{info.worker_id} hangs", "x").close()
        list(HANGS.values())[info.worker_id]()
    return number


def workers_hang_at_close(folder: str) -> None:
    loader = loader_of(numbers(100).map(partial(hang_in_three_ways, folder)), 3)
    items = iter(loader)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    open(f"{folder}/received", "x").close()
    while sum(name.endswith("hangs") for name in os.listdir(folder)) < 3:
        time.sleep(0.01)
    with within(CLOSE_SECONDS):
        loader.shutdown()


def test_a3_closing_is_quick_whatever_they_hang_in(tmp_path):
    play(tmp_path, workers_hang_at_close, str(tmp_path))


def limited(pipe: Any, info: Any) -> Any:
    with open(f"{PROC}/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    return pipe


def greedy(number: int) -> tuple[int, int]:
    return number, len(bytearray(1 << 40 if number == 7 else 10)) and os.getpid()


async def a_worker_asks_for_too_much() -> None:
    async with loader_of(numbers(20).map(greedy), 2, worker_init_fn=limited) as loader:
        pids = []
        for _ in range(2):
            taken, error = await collected(loader)
            assert [number for number, _ in taken] == list(range(7))
            assert isinstance(error, MemoryError), error
            pids.append({pid for _, pid in taken})
        assert pids[0] == pids[1], "the workers live on"


def test_a4_memory_that_is_not_there_is_the_items_error(tmp_path):
    play(tmp_path, a_worker_asks_for_too_much)


async def a_worker_is_killed_for_memory(flag: str) -> None:
    # The kernel's counter, which rises when it kills, is the flag: without a control group
    # of one's own nobody can be brought to the end of its memory.
    child_process.oom_kills = lambda: int(os.path.exists(flag))
    graph = numbers(1000).map(in_the_first_epoch(flag, lambda: die_of(signal.SIGKILL)))
    async with loader_of(graph, 2) as loader:
        _, error = await collected(loader)
        assert isinstance(error, WorkerDied), error
        assert "the system has killed for lack of memory meanwhile" in str(error)
        os.unlink(flag)
        child_process.oom_kills = lambda: 1
        _, error = await collected(loader)
        assert isinstance(error, WorkerDied), error
        assert "memory" not in str(error), "nobody was killed so meanwhile"


def test_a4_a_kill_hints_at_memory_where_the_kernels_count_rose(tmp_path):
    play(tmp_path, a_worker_is_killed_for_memory, str(tmp_path / "flag"))
