"""An event loop that stands still for a fork.

This file is about where the loop's thread is while the spawner forks. A lock that
it holds in that moment, of a stream or of some library, would be held for ever in
the child, so it is brought to a place where it holds none.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from asyncloader.errors import WorkerStartupError


@contextlib.contextmanager
def standing_still(loop: asyncio.AbstractEventLoop, deadline: float) -> Iterator[None]:
    """Keep the running loop between two of its callbacks while the block runs.

    To be used in another thread. Raises WorkerStartupError if the loop is in one
    callback until the deadline.
    """
    arrived, leave = threading.Event(), threading.Event()

    def stand() -> None:
        arrived.set()
        leave.wait(max(0.0, deadline - time.monotonic()))

    try:
        loop.call_soon_threadsafe(stand)
        if not arrived.wait(max(0.0, deadline - time.monotonic())):
            raise WorkerStartupError("fork has to wait for the event loop, which was busy too long")
        yield
    finally:
        leave.set()
