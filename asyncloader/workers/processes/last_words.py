"""The last words of a process that hangs.

This file is about a signal upon which a process writes where its threads stand to a file
in memory, and ends. The interpreter's fault handler does that without the GIL, so a call
into C that keeps it does not stand in the way; only a process that is stopped, or stuck
in the kernel, has no last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol

from asyncloader.errors import WorkerTimeout
from asyncloader.memory import memory_file
from asyncloader.workers.processes.pidfd import signal_pidfd

#: How long a process that was asked may take to end.
PATIENCE_SECONDS = 0.5

_FILE = "asyncloader last words"
_MOST_BYTES = 1 << 20


def asking_signal() -> int:
    """The signal that asks: one of the real-time signals, which nobody uses by accident."""
    return signal.SIGRTMIN + 9


def leave_last_words_when_asked() -> None:
    """Let this process answer; to be called in its main thread."""
    if sys.platform != "linux":
        return
    number = asking_signal()
    # A forked process may have inherited somebody's use of the signal.
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_DFL)
    # Where there is no such file there are no last words.
    with contextlib.suppress(OSError):
        fd = memory_file(_FILE)
        # The signal is passed on to its default, which ends the process: so whoever asked
        # knows when all has been written.
        faulthandler.register(number, file=fd, all_threads=True, chain=True)


class Hanging(Protocol):
    """What is asked of a process for its last words."""

    pid: int
    pidfd: int

    async def wait(self) -> int: ...


class Named(Protocol):
    """What is known of a process that hangs."""

    name: str

    @property
    def process(self) -> Hanging: ...


async def last_words(process: Hanging) -> str | None:
    """Ask a process that hangs to end; return where its threads stood, None if it is silent."""
    file = _file_of(process.pid)
    if file is None:
        return None
    try:
        with contextlib.suppress(OSError, TimeoutError):
            signal_pidfd(process.pidfd, asking_signal())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()
        return os.pread(file, _MOST_BYTES, 0).decode(errors="replace") or None
    finally:
        os.close(file)


async def add_last_words(failure: WorkerTimeout, links: Sequence[Named]) -> None:
    """Ask processes that hang to end, and say in a failure where their threads stood."""
    words = await asyncio.gather(*(last_words(link.process) for link in links))
    known = [(link.name, text) for link, text in zip(links, words, strict=True) if text]
    if known:
        failure.stack = "\n".join(f"{name} stood here:\n{text}" for name, text in known)
        failure.add_note(failure.stack)


def _file_of(pid: int) -> int | None:
    """Open the file of a process that lives; its end takes the name away."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _FILE in os.readlink(f"{folder}/{name}"):
                return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    return None
