"""Processes that die when nobody expects it.

This file is about ``Reaper``: a thread that ends one process of a loader after another,
in a random way at a random moment, also while they start, write, or have nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncloader.workers.process.process import Process
from tests.eyes import PROC

#: What a function in the graph is ordered to do; the rest is done from outside.
ORDERS = ("os._exit in a function", "channel closed")
KINDS = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP, then SIGKILL", *ORDERS)

#: So often in a row processes die that had no time to deliver anything.
_MOST_IN_VAIN = 2
_PATIENCE_SECONDS = 20.0


class Reaper(threading.Thread):
    """Strikes at the processes of the loader that it was given."""

    def __init__(self, luck: random.Random, folder: Path) -> None:
        super().__init__(name="reaper", daemon=True)
        self.kills: Counter[str] = Counter()
        self._luck = luck
        self._folder = folder
        self._pause = 1.0
        self._loader: Any = None
        self._is_ended = threading.Event()
        self._has_delivered = threading.Event()
        self._in_vain = 0

    @contextlib.contextmanager
    def set_on(self, loader: Any, pause: float) -> Iterator[None]:
        """Strike at this loader's processes every ``pause`` s or so, for the block's length."""
        self._loader, self._pause = loader, pause
        try:
            yield
        finally:
            self._loader = None

    def delivered(self) -> None:
        """Take note that the loader has handed something out."""
        self._has_delivered.set()

    def end(self) -> None:
        """Stop striking."""
        self._is_ended.set()
        self.join()

    def run(self) -> None:
        while not self._is_ended.wait(min(0.5, self._luck.expovariate(1 / self._pause))):
            self._wait_for_an_item()
            victims = _processes_of(self._loader)
            if victims:
                self._strike(self._luck.choice(victims), self._luck.choice(KINDS))

    def _wait_for_an_item(self) -> None:
        if self._has_delivered.is_set():
            self._has_delivered.clear()
            self._in_vain = 0
        elif self._in_vain >= _MOST_IN_VAIN:
            self._has_delivered.wait(_PATIENCE_SECONDS)
        self._in_vain += 1

    def _strike(self, process: Process, kind: str) -> None:
        if kind in ORDERS:
            if self._ordered(process, kind):
                self.kills[kind] += 1
            return
        is_struck = False
        for name in kind.split(", then "):
            is_struck = signalled(process, signal.Signals[name])
            if name == "SIGSTOP":
                self._is_ended.wait(self._luck.uniform(0, 0.05))
        self.kills[kind] += is_struck

    def _ordered(self, process: Process, kind: str) -> bool:
        """Order a process to end itself; whether it heard of it before it had to."""
        order = self._folder / str(process.pid)
        order.write_text(kind)
        deadline = time.monotonic() + 0.2
        while order.exists() and time.monotonic() < deadline and not process.is_dead():
            self._is_ended.wait(0.005)
        is_obeyed = not order.exists()
        order.unlink(missing_ok=True)
        return is_obeyed


def signalled(process: Process, number: signal.Signals) -> bool:
    """Signal a process, if it has not died meanwhile; whether it was there."""
    # Once it is reaped, its number may become that of any other process: its lock keeps it from
    # being released now.
    with process._lock:
        is_there = not process.is_dead()
        if is_there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        return is_there


class Obedient:
    """A function for ``map`` that does what the Reaper ordered its process to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: Any) -> Any:
        order = self.folder / str(os.getpid())
        if os.path.exists(order):
            with contextlib.suppress(FileNotFoundError):
                what = order.read_text()
                order.unlink()
                obey(what)
        return item


def obey(order: str) -> None:
    """End this process, or its channels."""
    if order == "os._exit in a function":
        os._exit(7)
    for name in os.listdir(f"{PROC}/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as channel:
                    channel.shutdown(socket.SHUT_RDWR)


def _processes_of(loader: Any) -> list[Process]:
    """The processes of a loader, also those that are starting to replace others."""
    pool = getattr(getattr(loader, "reading_service", None), "_pool", None)
    # The first start is not made again: a death in it is an error.
    if pool is None or not (pool.handles or pool.restarts):
        return []
    return [process for process in list(pool._starter.processes) if not process.is_dead()]
