"""No test passes by telling a loop something from another thread."""

from __future__ import annotations

import asyncio

import pytest


async def test_a_loop_refuses_what_another_thread_tells_it():
    loop = asyncio.get_running_loop()
    for tell in (lambda: loop.call_soon(print), lambda: loop.call_later(1, print)):
        with pytest.raises(RuntimeError, match="Non-thread-safe"):
            await asyncio.to_thread(tell)
    heard = asyncio.Event()
    await asyncio.to_thread(loop.call_soon_threadsafe, heard.set)
    await heard.wait()
