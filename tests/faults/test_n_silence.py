"""Rows N9 and N10: processes that are silent for too long."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import WorkerTimeout
from asyncloader.worker_info import get_worker_info
from asyncloader.workers import worker_stream
from asyncloader.workers.process import process as child_process
from tests.eyes import Seen
from tests.faults.child import collected, loader_of, numbers, play, play_each
from tests.needs import HAS_LAST_WORDS

#: Longer than a machine that is shared keeps a process that has something to say.
SILENCE_SECONDS = 2.0
COUNT = 300
#: More than workers, and who deals to them, may be ahead.
MANY = 5000

HANGS: dict[str, Callable[[], Any]] = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "in C with the GIL": lambda: ctypes.PyDLL(None).sleep(1000),
    "sleeping": lambda: time.sleep(1000),
}


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("asyncloader")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def once_at(flag: str, at: int, how: str, number: int) -> int:
    """A function for map that hangs once in all."""
    if number == at and not os.path.exists(flag):
        open(flag, "x").close()
        HANGS[how]()
    return number


def dealt(source: IterDataPipe[Any]) -> IterDataPipe[Any]:
    return source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def increment(number: int) -> int:
    return number + 1


def pid_of_dispatcher(loader: DataLoader2[Any]) -> int:
    (pid,) = [process.pid for process in loader.stats().workers if process.is_dispatcher]
    return pid


async def the_dispatching_process_is_stopped(death: str) -> None:
    graph = dealt(IterableWrapper(range(MANY))).map(increment)
    settings: dict[str, Any] = {"timeout": SILENCE_SECONDS, "on_worker_death": death}
    async with loader_of(graph, 2, worker_prefetch_cnt=1, **settings) as loader:
        items = aiter(loader)
        first = [await anext(items)]
        stopped = pid_of_dispatcher(loader)
        innocent = [each.pid for each in loader.stats().workers if not each.is_dispatcher]
        seen = [Seen.of(pid) for pid in (stopped, *innocent)]
        os.kill(stopped, signal.SIGSTOP)
        with told() as lines:
            try:
                first += [item async for item in items]
            except WorkerTimeout as error:
                check_it_is_named(error, stopped)
                assert death == "raise"
                assert first == list(range(1, len(first) + 1))
                assert seen[0].dies_within(10.0), "it was killed"
                assert not any(each.is_dead() for each in seen[1:]), "nobody else was"
            else:
                assert death == "restart"
                assert first == list(range(1, MANY + 1))
                assert f"the dispatching process (pid {stopped})" in "\n".join(lines)
                assert loader.stats().restarts == 1
        assert [item async for item in loader] == list(range(1, MANY + 1)), "the next epoch works"


def check_it_is_named(error: WorkerTimeout, pid: int) -> None:
    assert f"the dispatching process (pid {pid})" in str(error)
    assert f"timeout={SILENCE_SECONDS:g}" in str(error)
    assert error.worker is None


@pytest.mark.soak
def test_n9_a_dispatching_process_that_is_stopped_is_named_killed_and_replaced(tmp_path):
    play_each(tmp_path, the_dispatching_process_is_stopped, [("raise",), ("restart",)])


def slowly(number: int) -> int:
    time.sleep(0.3)
    return number


async def a_busy_dispatching_process_is_stopped() -> None:
    # Where it is stopped it has spoken since the worker has.
    graph = dealt(IterableWrapper(range(16)).map(slowly)).batch(16)
    async with loader_of(graph, 1, timeout=SILENCE_SECONDS * 2) as loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(SILENCE_SECONDS)
        stopped = pid_of_dispatcher(loader)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match=rf"the dispatching process \(pid {stopped}\)"):
            await first


@pytest.mark.soak
def test_n9_a_busy_dispatching_process_that_is_stopped_is_named(tmp_path):
    play(tmp_path, a_busy_dispatching_process_is_stopped)


async def a_program_stands_still_while_a_worker_hangs() -> None:
    graph = dealt(IterableWrapper([7])).map(hang_for_ever)
    async with loader_of(graph, 1, timeout=SILENCE_SECONDS) as loader:
        item = asyncio.ensure_future(anext(aiter(loader)))
        # Long enough for the dispatching process to be asked, and to answer.
        await asyncio.sleep(SILENCE_SECONDS / 4)
        # As Ctrl-Z does it, and then `fg`.
        time.sleep(SILENCE_SECONDS * 1.5)  # noqa: ASYNC251
        with pytest.raises(WorkerTimeout, match=r"^worker 0 \(pid"):
            await item


def hang_for_ever(number: int) -> int:
    time.sleep(1000)
    return number


@pytest.mark.soak
def test_n9_a_dispatching_process_that_answered_before_a_standstill_is_not_named(tmp_path):
    play(tmp_path, a_program_stands_still_while_a_worker_hangs)


async def somebody_hangs_behind_a_dispatching_process(who: str, flag: str, death: str) -> None:
    child_process.DUMP_SECONDS = 10.0
    hang = partial(once_at, flag, 150, "sleeping")
    source = IterableWrapper(range(COUNT))
    graph = dealt(source).map(hang) if who == "worker" else dealt(source.map(hang))
    name = "worker 0" if who == "worker" else "the dispatching process"
    settings: dict[str, Any] = {"timeout": SILENCE_SECONDS, "on_worker_death": death}
    async with loader_of(graph, 2, **settings) as loader:
        with told() as lines:
            taken, error = await collected(loader)
        if death == "restart":
            assert taken == list(range(COUNT))
            assert f"{name} (pid" in "\n".join(lines)
            assert "in once_at" in "\n".join(lines) or not HAS_LAST_WORDS, "where it stood"
            assert loader.stats().restarts == 1
            return
        assert taken == list(range(len(taken)))
        assert isinstance(error, WorkerTimeout), error
        assert str(error).startswith(name), error
        assert error.worker == (0 if who == "worker" else None)
        assert "in once_at" in (error.stack or "") or not HAS_LAST_WORDS


@pytest.mark.soak
def test_n9_whoever_hangs_is_named_and_not_who_waits_for_it(tmp_path):
    cases = [(who, death) for who in ("worker", "dealer") for death in ("raise", "restart")]
    flags = [(who, str(tmp_path / f"{who} {death}"), death) for who, death in cases]
    play_each(tmp_path, somebody_hangs_behind_a_dispatching_process, flags)


async def the_dispatching_process_is_stopped_without_a_timeout() -> None:
    worker_stream.WARN_SECONDS = 0.3
    graph = dealt(IterableWrapper(range(MANY))).map(increment)
    async with loader_of(graph, 2, worker_prefetch_cnt=1) as loader:
        items = aiter(loader)
        taken = [await anext(items)]
        stopped = pid_of_dispatcher(loader)
        os.kill(stopped, signal.SIGSTOP)
        with told() as lines:
            logging.getLogger("asyncloader").addFilter(partial(go_on_once_named, stopped))
            taken += [item async for item in items]
        assert taken == list(range(1, MANY + 1))
        assert any("waiting for the dispatching process" in line for line in lines)


def go_on_once_named(pid: int, record: logging.LogRecord) -> bool:
    if "waiting for the dispatching process" in record.getMessage():
        os.kill(pid, signal.SIGCONT)
    return True


def test_n9_without_a_timeout_a_warning_names_it(tmp_path):
    play(tmp_path, the_dispatching_process_is_stopped_without_a_timeout)


async def a_worker_hangs_and_is_replaced(how: str, flag: str, in_order: bool) -> None:
    child_process.DUMP_SECONDS = 0.5 if how == "stopped" else 10.0
    graph = numbers(COUNT).map(partial(once_at, flag, 21, how))
    settings: dict[str, Any] = {"timeout": SILENCE_SECONDS, "on_worker_death": "restart"}
    async with loader_of(graph, 2, in_order=in_order, **settings) as loader:
        with told() as lines:
            taken = [item async for item in loader]
        assert (taken if in_order else sorted(taken)) == list(range(COUNT))
        assert "worker 1 (pid" in "\n".join(lines)
        assert "it is replaced" in "\n".join(lines)
        assert loader.stats().restarts == 1
        assert sorted([item async for item in loader]) == list(range(COUNT)), "the next epoch"


@pytest.mark.soak
def test_n10_a_worker_that_is_silent_is_replaced_and_every_item_comes_once(tmp_path):
    cases = [(how, str(tmp_path / f"{how} {order}"), order) for how in HANGS for order in (1, 0)]
    play_each(tmp_path, a_worker_hangs_and_is_replaced, cases)


def workers_are_stopped_and_read_by_for() -> None:
    settings: dict[str, Any] = {"timeout": SILENCE_SECONDS, "on_worker_death": "restart"}
    with told(), loader_of(numbers(MANY), 3, worker_prefetch_cnt=1, **settings) as loader:
        items = iter(loader)
        taken = [next(items)]
        for process in loader.stats().workers:
            os.kill(process.pid, signal.SIGSTOP)
        taken += list(items)
        assert taken == list(range(MANY))
        assert loader.stats().restarts == 3


@pytest.mark.soak
def test_n10_all_workers_are_silent_and_all_are_replaced(tmp_path):
    play(tmp_path, workers_are_stopped_and_read_by_for)


def always_at(folder: str, at: int, number: int) -> int:
    if number == at:
        info = get_worker_info()
        assert info is not None
        with open(f"{folder}/tries", "a") as file:
            file.write(f"{info.worker_id}\n")
        time.sleep(1000)
    return number


async def an_item_hangs_every_time(folder: str, is_dealt: bool) -> None:
    child_process.DUMP_SECONDS = 10.0
    hang = partial(always_at, folder, 21)
    # The other worker always finds something to do.
    graph = (dealt(IterableWrapper(range(1_000_000))) if is_dealt else numbers(COUNT)).map(hang)
    settings: dict[str, Any] = {"timeout": SILENCE_SECONDS, "on_worker_death": "restart"}
    async with loader_of(graph, 2, max_restarts=1, **settings) as loader:
        with told():
            taken, error = await collected(loader)
        assert taken == list(range(21))
        assert isinstance(error, WorkerTimeout), error
        assert error.worker == 1
        assert "in always_at" in (error.stack or "") or not HAS_LAST_WORDS


@pytest.mark.soak
def test_n10_an_item_that_hangs_every_time_is_a_timeout_in_the_end(tmp_path):
    for is_dealt in (False, True):
        folder = tmp_path / str(is_dealt)
        folder.mkdir()
        play(folder, an_item_hangs_every_time, str(folder), is_dealt)
        tries = (folder / "tries").read_text().split()
        assert set(tries) == {"1"}
        # The first came after items that were delivered.
        assert 3 <= len(tries) <= 4, tries
