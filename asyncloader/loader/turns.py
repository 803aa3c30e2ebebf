"""One after the other, on whatever loop.

This file is about ``Turns``: tasks of several event loops, in several threads, do something
one at a time. A lock of asyncio's own would belong to the first loop on which somebody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future

from asyncloader.runtime import uncancellable


class Turns:
    """Gives turns to those who ask, in the order in which they ask."""

    def __init__(self) -> None:
        # Whoever collects garbage in here may give a turn back.
        self._lock = threading.RLock()
        # Who has its turn, and those behind it.
        self._queue: deque[Future[None]] = deque()

    def is_taken(self) -> bool:
        """Whether somebody has its turn."""
        return bool(self._queue)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the block."""
        turn: Future[None] = uncancellable()
        with self._lock:
            self._queue.append(turn)
            self._let_first_begin()
        try:
            if not turn.done():
                await asyncio.wrap_future(turn)
            yield
        finally:
            with self._lock:
                self._queue.remove(turn)
                self._let_first_begin()

    def _let_first_begin(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)
