"""Tests of asyncloader.runtime: waiting for threads, and loops in threads."""

import asyncio
import contextlib
import gc
import itertools
import sys
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from asyncloader import runtime
from asyncloader.datapipes.running.watch.watching import Sampler
from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import LoopThread, begin_closing, begin_task, in_thread
from tests.descriptors import only_free
from tests.leaks import leaves_nothing


async def test_a_task_of_ours_begins_at_the_next_turn_whatever_the_users_task_factory_does():
    begun = []

    async def work():
        begun.append(True)

    def at_once(loop, coroutine, **_):
        # As an eager factory, which Python has since 3.12.
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
        return loop.create_future()

    loop = asyncio.get_running_loop()
    loop.set_task_factory(at_once)
    try:
        task = begin_task(loop, work(), "asyncloader test")
        assert not begun
        await task
    finally:
        loop.set_task_factory(None)
    assert begun
    assert task.get_name() == "asyncloader test"


async def test_who_stops_waiting_for_a_thread_does_not_disturb_its_end():
    entered, leave = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    def work() -> None:
        entered.set()
        leave.wait()

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(entered.wait)
    (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "asyncloader work")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    leave.set()
    # Had its end failed, the thread would have an unhandled exception, which fails the test.
    await asyncio.to_thread(thread.join)


async def test_what_a_function_in_a_thread_raises_is_raised_here():
    def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await in_thread(fail)


def test_a_loop_that_is_told_twice_to_stop_ends_what_runs_on_it():
    thread, begun, ended = LoopThread(), threading.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            thread.loop.stop()
            for _ in range(3):
                await asyncio.sleep(0)
            ended.append(True)

    asyncio.run_coroutine_threadsafe(work(), thread.loop)
    assert begun.wait(10)
    thread.close()
    assert ended == [True]
    assert thread.loop.is_closed()


def test_a_call_that_is_interrupted_at_any_line_leaves_no_coroutine_that_nobody_awaits(recwarn):
    thread = LoopThread()
    thread.call(partial(asyncio.sleep, 0))
    ended = 0
    for line in itertools.count(1):
        made = []

        async def work(made=made) -> None:
            made.append(asyncio.current_task())

        lines = itertools.count(1)

        def interrupt(frame, event, _, lines=lines, line=line):
            if frame.f_code.co_filename != runtime.__file__:
                return None
            if event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            thread.call(work)
        except KeyboardInterrupt:
            continue
        else:
            ended += bool(made)
            break
        finally:
            sys.settrace(None)
            # What was begun has ended before this has.
            thread.call(partial(asyncio.sleep, 0))
            gc.collect()
            assert all(task.done() for task in made)
    thread.close()
    assert (line > 3, ended, [str(warning.message) for warning in recwarn]) == (True, 1, [])


async def test_what_closes_something_does_so_even_if_its_loop_ends_before_its_turn_has_come():
    async def close(what):
        await asyncio.sleep(0)
        return f"{what} closed"

    closing = begin_closing(close, "workers")
    # As a loop that ends cancels all of its tasks.
    closing.cancel()
    assert await closing == "workers closed"
    assert not closing.cancelling()


def test_a_thread_that_cannot_be_started_leaves_nothing(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    looked = SimpleNamespace(resting_since=1.0)
    sampler = Sampler()
    with leaves_nothing():
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ResourceExhausted, match="can't start new thread"):
            LoopThread().start()
        with pytest.raises(ResourceExhausted, match="can't start new thread"):
            sampler.watch(looked)
        sampler.forget(looked)
        monkeypatch.undo()


@pytest.mark.parametrize("free", [0, 1, 4, 7])
def test_a_loop_without_descriptors_is_resource_exhausted_and_leaves_nothing(free, capfd):
    with leaves_nothing():
        with only_free(free), pytest.raises(ResourceExhausted, match=r"event loop .*ulimit -n"):
            LoopThread().start()
        gc.collect()
    assert capfd.readouterr() == ("", "")
