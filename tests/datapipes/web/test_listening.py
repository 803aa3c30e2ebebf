"""Requests that are given up when nothing comes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from time import monotonic

import pytest

from asyncloader.datapipes.web.listening import Listeners, Listening

HOUR = 3600.0


async def hears(listening: Listening, what: asyncio.Event | asyncio.StreamReader) -> object:
    """Wait for an event, or for a byte, for as long as may be listened."""
    with listening:
        return await (what.wait() if isinstance(what, asyncio.Event) else what.readexactly(1))


async def begun(listening: Listening, what: asyncio.Event | asyncio.StreamReader) -> asyncio.Task:
    task = asyncio.create_task(hears(listening, what))
    await asyncio.sleep(0)
    return task


async def test_one_that_hears_nothing_is_given_up_and_one_that_heard_is_not():
    with contextlib.closing(Listeners(0.02)) as listeners:
        silent, heard = Listening(listeners), Listening(listeners)
        answer = asyncio.Event()
        waiting = await begun(heard, answer)
        heard.heard_at = monotonic() + HOUR
        with pytest.raises(TimeoutError, match=r"nothing came for 0\.02 s"):
            await hears(silent, asyncio.Event())
        answer.set()
        assert await waiting is True
        assert listeners.all == set()


async def test_one_that_begins_when_all_were_over_is_watched_too():
    with contextlib.closing(Listeners(0.02)) as listeners:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await hears(Listening(listeners), asyncio.Event())


async def test_who_was_given_up_is_not_cancelled_any_more():
    with contextlib.closing(Listeners(0.02)) as listeners:
        with pytest.raises(TimeoutError):
            await hears(Listening(listeners), asyncio.Event())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_who_is_cancelled_by_others_too_is_cancelled():
    with contextlib.closing(Listeners(HOUR)) as listeners:
        listening = Listening(listeners)
        waiting = await begun(listening, asyncio.Event())
        waiting.cancel()
        listening.give_up()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_what_came_while_the_loop_was_held_is_heard():
    ours, theirs = socket.socketpair()
    with theirs, contextlib.closing(Listeners(0.02)) as listeners:
        reader, writer = await asyncio.open_connection(sock=ours)
        waiting = await begun(Listening(listeners), reader)
        theirs.send(b"x")
        # As a consumer does that computes for longer than a server may be silent.
        time.sleep(0.1)  # noqa: ASYNC251
        assert await waiting == b"x"
        writer.close()
        await writer.wait_closed()


async def test_no_timer_is_left_behind():
    listeners = Listeners(HOUR)
    with contextlib.closing(listeners):
        answer = asyncio.Event()
        answer.set()
        assert await hears(Listening(listeners), answer)
    loop = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
