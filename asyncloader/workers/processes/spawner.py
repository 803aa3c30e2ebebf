"""The one thread from which processes are started.

This file is about a thread that never ends. The kernel's parent-death signal
fires when the *thread* that created a process ends, so a process started from a
short-lived thread would be killed with it; and starting blocks, which an event
loop must not.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from asyncloader.runtime import start_thread

R = TypeVar("R")


class Spawner:
    """Runs calls one after the other, in the order they were submitted."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._turn = threading.Lock()
        # A daemon: it waits for the next job when the interpreter exits.
        start_thread(threading.Thread(target=self._run, name="asyncloader spawner", daemon=True))

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Run ``call`` after all that was submitted before, unless the future is cancelled."""
        future: Future[R] = Future()
        self._jobs.put((future, call))
        return future

    def retire(self, timeout: float) -> None:
        """Begin no other call; wait for the one that runs, for ``timeout`` seconds at most."""
        # The thread stays, for ever waiting for its turn: its end would kill its children.
        self._turn.acquire(timeout=timeout)

    def _run(self) -> None:
        while True:
            self._do(*self._jobs.get())

    def _do(self, future: Future[Any], call: Callable[[], Any]) -> None:
        # A method of its own, so that an idle thread keeps no job's result alive.
        with self._turn:
            self._settle(future, call)

    @staticmethod
    def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  the caller is told
            future.set_exception(error)
        else:
            future.set_result(result)


_lock = threading.Lock()
_spawner: Spawner | None = None


def spawner() -> Spawner:
    """This process' spawner, started at the first call."""
    global _spawner
    with _lock:
        if _spawner is None:
            _spawner = Spawner()
        return _spawner


def retire_spawner(timeout: float) -> None:
    """Start nothing more in this process, which is exiting."""
    if _spawner is not None:
        _spawner.retire(timeout)


def _forget() -> None:
    # A forked child has no thread but the one that forked.
    global _spawner, _lock
    _lock = threading.Lock()
    _spawner = None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
