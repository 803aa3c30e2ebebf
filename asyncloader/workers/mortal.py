"""What ends once, and whom that is told.

This file is about ``Mortal``, the part that the workers have in common of which no descriptor says
when they have died.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial

from asyncloader.datapipes.running.run_place import Home
from asyncloader.memory import Segment
from asyncloader.waiting import call_soon, release


class Mortal:
    """Something that works for a loader until it is dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._owner = os.getpid()
        self._lock = threading.RLock()
        #: What is called on which loop when it is dead.
        self._watches: dict[Callable[[], None], asyncio.AbstractEventLoop] = {}
        self._dead = threading.Event()
        self._how = ""

    def on_death(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
    ) -> Callable[[], object]:
        """Have the loop call ``callback`` once at its death, unless what this returns is called."""

        def tell() -> None:
            # Somebody may have lost interest meanwhile.
            if self._watches.pop(tell, None) is not None:
                callback()

        with self._lock:
            self._watches[tell] = loop
            if self._dead.is_set():
                call_soon(loop, tell)
        return partial(self._watches.pop, tell, None)

    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self._dead.is_set()

    def how_it_ended(self) -> str:
        """Say how it ended."""
        return self._how

    def new_memory(self, nbytes: int) -> Segment | None:
        """Return no memory that it shares with its loader and that outlives it."""
        return None

    def work_for(self, home: Home | None) -> None:
        """Learn in which home of this process it is to work: elsewhere it has no use for one."""

    async def wait(self) -> None:
        """Wait for it to end."""
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()
        unwatch = self.on_death(loop, partial(release, dead))
        try:
            await dead
        finally:
            unwatch()

    def wait_now(self, timeout: float) -> None:
        """Block until it has ended, for ``timeout`` seconds at most."""
        self._dead.wait(timeout)

    def is_ours(self) -> bool:
        """False in a forked copy of the loader, whose worker this is not."""
        return self._owner == os.getpid()

    def _settle(self) -> None:
        """Do what has to be done before anybody hears of its end."""

    def _die(self, how: str) -> bool:
        """Tell everybody; return whether this was its end, and not an earlier one."""
        with self._lock:
            if self._dead.is_set() or not self.is_ours():
                return False
            self._how = how
            # Within the lock: another thread that finds it dead may give it up at once.
            self._settle()
            self._dead.set()
        for tell, loop in list(self._watches.items()):
            call_soon(loop, tell)
        return True
