"""An event loop that is told of a death.

This file is about waiting, in any asyncio loop and any thread, for a process to be
dead and its exit code to be known. The pidfd says the first; where a server reaps
the process, the second follows a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final, Protocol

from asyncloader.waiting import Patience

# A server that is itself stopped does not tell any more.
PATIENCE_SECONDS: Final = 0.5


class Mortal(Protocol):
    """What a watch asks of a process."""

    @property
    def pidfd(self) -> int: ...

    @property
    def status_fd(self) -> int: ...

    @property
    def exitcode(self) -> int | None: ...


class DeathWatch:
    """Calls ``callback`` once, in its loop, unless detached before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: Mortal, callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._process = process
        self._callback = callback
        self._fds: list[int] = []
        self._calls: list[Patience] = []
        self._attached = True

    def watch(self) -> None:
        """Begin; to be called in the loop's thread while the process holds its pidfd."""
        self._read(self._process.pidfd, self._died)

    def finish(self) -> None:
        """Call soon: the process is known to be dead. Safe in any thread."""
        # A loop that is closed is told nothing any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish)
            return
        self._let_go()

    def is_attached(self) -> bool:
        return self._attached

    def detach(self) -> None:
        """Let go of the loop; nothing is called any more. Idempotent, and safe in any thread."""
        self._attached = False
        if self._is_elsewhere():
            # A loop that is closed in this moment has let go by itself.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._let_go)
                return
        self._let_go()

    def _died(self) -> None:
        self._let_go()
        if not self._attached:
            return
        if self._process.exitcode is not None:
            self._finish()
            return
        self._read(self._process.status_fd, self._finish)
        self._calls.append(Patience(self._loop, PATIENCE_SECONDS, self._finish))

    def _finish(self) -> None:
        self._let_go()
        if self._attached:
            self._attached = False
            self._callback()

    def _read(self, fd: int, ready: Callable[[], None]) -> None:
        # A copy, since a loop knows one reader for each descriptor.
        copy = os.dup(fd)
        self._fds.append(copy)
        self._loop.add_reader(copy, ready)

    def _let_go(self) -> None:
        while self._calls:
            self._calls.pop().cancel()
        while self._fds:
            fd = self._fds.pop()
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            os.close(fd)

    def _is_elsewhere(self) -> bool:
        return self._loop.is_running() and asyncio._get_running_loop() is not self._loop
