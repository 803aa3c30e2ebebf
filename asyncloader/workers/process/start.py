"""How a child process is started.

This file is about ``start_process``, which starts one in one of four ways, always from the same
thread:

    start_process ──▶ spawner's thread ──▶ template │ fork │ spawn │ forkserver
         ▲                                              │
         └────────── Process(sock, death, exitcode) ◀───┘
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from asyncloader.errors import WorkerStartupError
from asyncloader.runtime import (
    at_exit,
    descriptors_for,
    fill_standard_descriptors,
    process_for,
    start_thread,
)
from asyncloader.shield import shielded
from asyncloader.system import channel_pair, in_forked_child, require_workers
from asyncloader.transport.code import Parcel
from asyncloader.workers.process.multiprocessing_start import (
    fork,
    fork_from_server,
    refuse_unsafe_fork,
    spawn,
)
from asyncloader.workers.process.process import (
    Process,
    ProcessPlan,
    StartedProcess,
    WorkerProcess,
    kill_all_now,
    kill_processes_now,
)
from asyncloader.workers.process.template import end_templates, fork_from_template

StartMethod = Callable[[ProcessPlan, socket.socket, float], StartedProcess]

START_METHODS = (None, "fork", "spawn", "forkserver")

# A cancelled start waits this long for what it began to be undone.
_UNDO_SECONDS = 1.0
# And the spawner this long for a killed process to be dead, so that it is reaped.
_REAP_SECONDS = 5.0


async def start_process(plan: ProcessPlan, *, method: str | None = None, timeout: float) -> Process:
    """Start a child process, without blocking the loop.

    ``method`` is None for the template process, or "fork", "spawn" or "forkserver".
    Returns as soon as the process exists; whether its main can be imported is not
    known then. Raises WorkerStartupError if it does not exist within ``timeout``
    seconds. If the call fails or is cancelled, nothing is left of the process.
    """
    start = _start_method(method)
    started = spawner().submit(partial(_start, start, plan, time.monotonic() + timeout))
    waiting = asyncio.wrap_future(started)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(waiting)
    except TimeoutError as error:
        await _undo(started, waiting)
        raise WorkerStartupError(f"{plan.name} did not start within {timeout} s") from error
    except asyncio.CancelledError:
        await _undo(started, waiting)
        raise


def check_method(method: str | None) -> None:
    """Raise ValueError for a start method that does not exist."""
    if method not in START_METHODS:
        valid = ", ".join(map(repr, START_METHODS))
        raise ValueError(f"multiprocessing_context must be one of {valid}, got {method!r}")


def _start_method(method: str | None) -> StartMethod:
    check_method(method)
    require_workers()
    match method:
        case "fork":
            refuse_unsafe_fork()
            return partial(fork, asyncio.get_running_loop())
        case "spawn":
            return spawn
        case "forkserver":
            return fork_from_server
        case _:
            return fork_from_template


def _start(start: StartMethod, plan: ProcessPlan, deadline: float) -> Process:
    if time.monotonic() > deadline:
        raise WorkerStartupError(f"{plan.name} was not started: others before it took too long")
    with contextlib.ExitStack() as undo:
        try:
            with descriptors_for("its process"), process_for("it"):
                fill_standard_descriptors()
                ours, theirs = channel_pair()
                undo.callback(ours.close)
                with theirs:
                    born = start(plan, theirs, deadline)
        except WorkerStartupError:
            raise
        except Exception as error:
            raise WorkerStartupError(f"{plan.name} was not started: {error}") from error
        undo.pop_all()
    return Process(plan.name, ours, born)


async def _undo(started: Future[Process], waiting: asyncio.Future[Process]) -> None:
    """Never start what has not begun to, and end what has."""
    # The loop may be closed before a slow start is over, and must not hear of it then.
    waiting.cancel()
    if started.cancel():
        return
    undone = asyncio.Event()
    # In the spawner's thread this comes after the start, whether or not it is waited for.
    spawner().submit(partial(_end_started, started, asyncio.get_running_loop(), undone))
    with shielded(), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNDO_SECONDS):
            await undone.wait()


def _end_started(
    started: Future[Process], loop: asyncio.AbstractEventLoop, undone: asyncio.Event
) -> None:
    if started.exception() is None:
        kill_processes_now([started.result()], timeout=_REAP_SECONDS)
    # A loop that has been closed waits for nothing.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(undone.set)


@at_exit
def _end_everything() -> None:
    """Leave nothing behind when the interpreter exits."""
    retire_spawner(_UNDO_SECONDS)
    kill_all_now()
    end_templates()


R = TypeVar("R")


class ProcessEngine:
    """Makes the processes of a pool on this machine; ``method`` is that of ``start_process``."""

    start_seconds = 60.0

    def __init__(self, method: str | None) -> None:
        self._method = method

    async def start(self, plan: ProcessPlan) -> Process:
        return await start_process(plan, method=self._method, timeout=self.start_seconds)

    async def why_late(self) -> str:
        return ""

    def shared(self, parcel: Parcel) -> list[int]:
        return parcel.fds()

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[int, int]:
        to_worker, to_dealer = channel_pair()
        return to_worker.detach(), to_dealer.detach()


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


@in_forked_child
def _forget() -> None:
    # A forked child has no thread but the one that forked.
    global _spawner, _lock
    _lock = threading.Lock()
    _spawner = None
