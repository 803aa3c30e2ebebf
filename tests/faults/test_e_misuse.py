"""Rows E: loaders that are not closed, or used where they do not belong."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import (
    ConcurrentIterationError,
    ForkedError,
    LoaderClosed,
    LoopMismatchError,
)
from tests.faults.child import (
    CLOSE_SECONDS,
    METHODS,
    SLACK,
    loader_of,
    numbers,
    play,
    play_all,
    within,
)
from tests.leaks import worker_processes
from tests.processes.forks import fork
from tests.processes.scripts import run_script


@contextmanager
def one_resource_warning(says: str) -> Iterator[None]:
    """Expect exactly one warning of something left open in the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    ours = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert len(ours) == 1, ours
    assert says in ours[0], ours


# E1 -------------------------------------------------------------------------------------


async def leave_it_open(loader: DataLoader2[Any]) -> None:
    async for number in loader:
        if number == 5:
            break


def no_workers() -> bool:
    return not worker_processes()


def loop_closed_in_the_middle() -> None:
    with one_resource_warning("event loop was closed"):
        # More than what may have come by then: an epoch that is over has nothing to lose.
        loader = loader_of(numbers(100_000), 2)
        loop, items = asyncio.new_event_loop(), aiter(loader)
        assert loop.run_until_complete(anext(items)) == 0
        loop.close()
        del items
        loader.shutdown()
    assert no_workers()


def loop_closed_and_loader_dropped() -> None:
    with one_resource_warning("use `async with loader`"):
        asyncio.run(leave_it_open(loader_of(numbers(1000), 2)), debug=True)
        gc.collect()
        assert no_workers()


def dropped_between_epochs() -> None:
    async def an_epoch() -> None:
        assert [number async for number in loader_of(numbers(10), 2)] == list(range(10))

    with one_resource_warning("2 workers were still running"):
        asyncio.run(an_epoch(), debug=True)
        gc.collect()
        assert no_workers()


def dropped_in_the_middle_of_a_for() -> None:
    def begin() -> None:
        assert next(iter(loader_of(numbers(1000), 2))) == 0

    with one_resource_warning("2 workers were still running"):
        begin()
        with within(1.0):
            while not no_workers():
                gc.collect()
                time.sleep(0.01)


E1 = [
    loop_closed_in_the_middle,
    loop_closed_and_loader_dropped,
    dropped_between_epochs,
    dropped_in_the_middle_of_a_for,
]


@pytest.mark.parametrize("scene", E1)
def test_e1_a_loader_that_is_not_closed_is_one_warning_and_leaves_nothing(scene, tmp_path):
    play(tmp_path, scene)


# E1b ------------------------------------------------------------------------------------


IN_A_LONG_CALL = threading.Event()


def long_call(number: int) -> int:
    if number == 3:
        IN_A_LONG_CALL.set()
        time.sleep(60)
    return number


async def closed_in_a_long_call() -> None:
    loader = DataLoader2(IterableWrapper(range(10)).map(long_call))
    items = aiter(loader)
    assert [await anext(items) for _ in range(3)] == [0, 1, 2]
    assert IN_A_LONG_CALL.wait(60)
    with one_resource_warning("long_call()"), within(CLOSE_SECONDS):
        await loader.aclose()
    executor = asyncio.get_running_loop()._default_executor  # type: ignore[attr-defined]
    assert executor is None, "its threads would be waited for at the end"
    # What the thread holds is let go of when the interpreter ends.
    os._exit(0)


def test_e1b_a_thread_in_a_long_call_is_left_behind_with_a_warning(tmp_path):
    play(tmp_path, closed_in_a_long_call)


# E2 -------------------------------------------------------------------------------------

EXITS = """
import asyncio, sys, time
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def busy(number):
    if number > 5:
        time.sleep(60)
    return number

def begin():
    graph = IterableWrapper(range(100)).sharding_filter().map(busy)
    return DataLoader2(graph, None, MultiProcessingReadingService(2, {method!r}))

if __name__ == "__main__":
    loader = begin()
    items = iter(loader)
    print(next(items), time.time(), flush=True)
    {end}
"""

ENDS = {"exit": "sys.exit(7)", "error": "raise KeyError(7)", "end": "pass"}


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ENDS)
def test_e2_an_interpreter_exits_at_once_with_busy_workers(end, method, tmp_path):
    done = run_script(tmp_path, EXITS.format(method=method, end=ENDS[end]))
    number, begun = done.stdout.split()
    assert number == "0"
    assert time.time() - float(begun) < CLOSE_SECONDS + SLACK
    assert done.returncode == {"exit": 7, "error": 1, "end": 0}[end]
    if end == "error":
        assert done.stderr.rstrip().endswith("KeyError: 7")
        assert done.stderr.count("Traceback") == 1
    else:
        assert done.stderr == ""


CLOSED_WHILE_EXITING = """
import atexit

def at_the_very_end():
    # This was registered first, so asyncloader has already ended what it can.
    try:
        list(early)
    except LoaderClosed as error:
        print(error)
    early.shutdown()
    try:
        with DataLoader2(numbers.map(str)) as late:
            print(list(late))
    except RuntimeError as error:
        print(error)

atexit.register(at_the_very_end)

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import LoaderClosed
from tests.faults.child import loader_of

numbers = IterableWrapper(range(3)).sharding_filter()

class Owner:
    def __init__(self, loader):
        self.loader = loader
        self.itself = self

    def __del__(self):
        self.loader.shutdown()

def items_of(loader):
    with loader:
        yield from loader

if __name__ == "__main__":
    early = DataLoader2(numbers)
    print(list(early))
    owners = [Owner(loader_of(numbers, 0)), Owner(loader_of(numbers, 2))]
    owners.append(Owner(loader_of(numbers, 2)))
    next(iter(owners[-1].loader))
    generators = [items_of(loader_of(numbers, workers)) for workers in (0, 2)]
    print(*map(next, generators))
"""


def test_e2_loaders_that_are_closed_while_the_interpreter_exits_end_in_silence(tmp_path):
    done = run_script(tmp_path, CLOSED_WHILE_EXITING)
    closed = "the interpreter is exiting, which has ended this loader"
    last = "['0', '1', '2']"
    if sys.version_info[:2] == (3, 12):
        last = "can't create new thread at interpreter shutdown"
    assert done.stdout.splitlines() == ["[0, 1, 2]", "0 0", closed, last]
    assert (done.returncode, done.stderr) == (0, "")


IN_DAEMON_THREADS = """
import asyncio, threading, warnings
from asyncloader import DataLoader2
from tests.faults.child import loader_of
from asyncloader.datapipes.iter import IterableWrapper

warnings.simplefilter("ignore", ResourceWarning)
numbers = IterableWrapper(range(10**9)).sharding_filter()

def by_for(loader, begun):
    for _ in loader:
        begun.set()

async def by_async_for(loader, begun):
    async for _ in loader:
        begun.set()

begun = []
for loader in (loader_of(numbers, 2), DataLoader2(numbers.prefetch(2)), DataLoader2(numbers)):
    begun.append(threading.Event())
    threading.Thread(target=by_for, args=(loader, begun[-1]), daemon=True).start()
for loader in (loader_of(numbers, 1), DataLoader2(numbers.prefetch(2))):
    begun.append(threading.Event())
    threading.Thread(
        target=lambda *args: asyncio.run(by_async_for(*args)), args=(loader, begun[-1]), daemon=True
    ).start()
for each in begun:
    each.wait()
"""


@pytest.mark.soak
def test_e2_daemon_threads_that_iterate_while_the_interpreter_exits_say_nothing(tmp_path):
    done = run_script(tmp_path, IN_DAEMON_THREADS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# E3 -------------------------------------------------------------------------------------


def used_from_another_loop() -> None:
    loader = loader_of(numbers(1000), 2)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    items = aiter(loader)
    assert first.run_until_complete(anext(items)) == 0
    with pytest.raises(LoopMismatchError) as raised:
        second.run_until_complete(anext(items))
    assert repr(second)[:20] in str(raised.value)
    assert str(raised.value).count("EventLoop") == 2, "both are named"
    assert first.run_until_complete(anext(items)) == 1
    first.run_until_complete(loader.aclose())
    first.close(), second.close()


def used_from_another_thread() -> None:
    async def main() -> None:
        async with loader_of(numbers(1000), 2) as loader:
            items = aiter(loader)
            assert await anext(items) == 0
            with pytest.raises(LoopMismatchError):
                await asyncio.to_thread(lambda: asyncio.run(one_of(items)))
            assert await anext(items) == 1

    asyncio.run(main(), debug=True)


async def one_of(items: Any) -> Any:
    return await anext(items)


def test_e3_another_loop_is_refused_and_both_are_named(tmp_path):
    play_all(tmp_path, used_from_another_loop, used_from_another_thread)


# E4 -------------------------------------------------------------------------------------


def slowly(number: int) -> int:
    time.sleep(0.05)
    return number


async def four_tasks() -> None:
    async with loader_of(numbers(40).map(slowly), 2) as loader:
        items = aiter(loader)
        calls = [asyncio.ensure_future(anext(items)) for _ in range(4)]
        with within(0.0):
            await asyncio.wait(calls[1:])
        refused = [call.exception() for call in calls[1:]]
        assert [type(each) for each in refused] == [ConcurrentIterationError] * 3
        assert [await calls[0], *[item async for item in items]] == list(range(40))


def four_threads() -> None:
    with loader_of(numbers(40).map(slowly), 2, worker_prefetch_cnt=0) as loader:
        items = iter(loader)
        taken: list[int] = []
        refused: list[BaseException] = []

        def take() -> None:
            while True:
                try:
                    taken.append(next(items))
                except StopIteration:
                    return
                except ConcurrentIterationError as error:
                    refused.append(error)
                    time.sleep(0.01)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert refused
    assert sorted(taken) == list(range(40))


def test_e4_concurrent_next_is_refused_at_once_and_loses_nothing(tmp_path):
    play_all(tmp_path, four_tasks, four_threads)


# E5 -------------------------------------------------------------------------------------


async def closed_twice_and_during() -> None:
    loader = loader_of(numbers(1000).map(slowly), 2)
    items = aiter(loader)
    await anext(items)
    waiting = asyncio.ensure_future(take_all(items))
    await asyncio.sleep(0)
    with within(CLOSE_SECONDS):
        await asyncio.gather(*(loader.aclose() for _ in range(3)))
    with pytest.raises(LoaderClosed):
        await waiting
    for use in (anext(items), loader.start(), anext(aiter(loader))):
        with pytest.raises(LoaderClosed):
            await use
    await loader.aclose()
    await asyncio.to_thread(loader.shutdown)


async def take_all(items: Any) -> list[Any]:
    return [item async for item in items]


def shut_down_twice_and_during() -> None:
    loader = loader_of(numbers(1000).map(slowly), 2)
    items = iter(loader)
    next(items)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        waiting = threads.submit(list, items)
        with within(CLOSE_SECONDS):
            for done in [threads.submit(loader.shutdown) for _ in range(3)]:
                done.result(10)
        with pytest.raises(LoaderClosed):
            waiting.result(10)
    for use in (lambda: next(items), loader.__enter__, lambda: next(iter(loader))):
        with pytest.raises(LoaderClosed):
            use()
    loader.shutdown()


def test_e5_closing_is_shared_and_what_comes_after_says_so(tmp_path):
    play_all(tmp_path, closed_twice_and_during, shut_down_twice_and_during)


# E6 -------------------------------------------------------------------------------------


def in_a_forked_child(act: Any) -> int:
    pid = fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def used_in_a_forked_child() -> None:
    with loader_of(numbers(1000), 2) as loader:
        items = iter(loader)
        taken = [next(items) for _ in range(10)]

        def steal() -> None:
            with pytest.raises(ForkedError):
                next(items)

        assert in_a_forked_child(steal) == 0
        assert [*taken, *items] == list(range(1000))
        assert len(list(loader)) == 1000


def dropped_in_a_forked_child() -> None:
    with loader_of(numbers(1000), 2) as loader:
        holder = [loader, iter(loader)]
        first = next(holder[1])
        del loader

        def drop() -> None:
            warnings.simplefilter("error")
            holder.clear()
            gc.collect()

        assert in_a_forked_child(drop) == 0
        assert [first, *holder[1]] == list(range(1000))


def begun_anew_and_left_in_a_forked_child() -> None:
    for workers in (0, 2):
        with loader_of(numbers(100), workers) as loader:
            items = iter(loader)
            first = next(items)

            def begin_anew(loader: DataLoader2 = loader) -> None:
                with pytest.raises(ForkedError, match="make a new DataLoader2"), loader:
                    list(loader)
                with pytest.raises(ForkedError):
                    next(iter(loader))
                loader.shutdown()
                asyncio.run(loader.aclose())

            assert in_a_forked_child(begin_anew) == 0
            assert [first, *items] == list(range(100))


def first_begun_in_a_forked_child() -> None:
    loader = loader_of(numbers(100), 2)

    def begin() -> None:
        with loader:
            assert list(loader) == list(range(100))

    assert in_a_forked_child(begin) == 0
    begin()


def test_e6_a_forked_child_is_refused_and_harms_nobody(tmp_path):
    play_all(
        tmp_path,
        used_in_a_forked_child,
        dropped_in_a_forked_child,
        begun_anew_and_left_in_a_forked_child,
        first_begun_in_a_forked_child,
    )
