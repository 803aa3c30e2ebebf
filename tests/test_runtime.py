"""Tests of asyncloader.runtime: waiting for threads."""

import asyncio
import threading

import pytest

from asyncloader.runtime import LoopThread, in_thread


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


def test_a_loop_that_is_told_to_stop_while_it_winds_up_does_so_to_the_end():
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
            ended.set()

    thread = LoopThread()
    asyncio.run_coroutine_threadsafe(work(), thread.loop)
    assert begun.wait(60)
    thread.close(60)
    assert ended.is_set()
    assert thread.loop.is_closed()
