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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from asyncloader.errors import ResourceExhausted, WorkerStartupError
from asyncloader.runtime import (
    CallThread,
    at_exit,
    call_into,
    descriptors_for,
    fill_standard_descriptors,
    process_for,
    uncancellable,
)
from asyncloader.shield import shielded
from asyncloader.system import HAS_WORKERS, channel_pair, in_forked_child, require_workers
from asyncloader.transport.channel import LoopChannel
from asyncloader.transport.parcel import Parcel, pack_code
from asyncloader.workers.process.multiprocessing_start import (
    fork_from_server,
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
from asyncloader.workers.process.template import (
    CarefulHeritage,
    Heritage,
    end_templates,
    expect_fork,
    fork_from_template,
)

T = TypeVar("T")

StartMethod = Callable[[ProcessPlan, socket.socket, float], StartedProcess]

START_METHODS = (None, "fork", "spawn", "forkserver")

# A cancelled start waits this long for what it began to be undone.
_UNDO_SECONDS = 1.0
# And the spawner this long for a killed process to be dead, so that it is reaped.
_REAP_SECONDS = 5.0


async def start_process(
    plan: ProcessPlan,
    *,
    method: str | None = None,
    timeout: float,
    heritage: Heritage | None = None,
) -> Process:
    """Start a child process, without blocking the loop.

    ``method`` is None for the template process, or "fork", "spawn" or "forkserver". Processes that
    are to inherit the same, with "fork" or None, share a ``heritage``.
    Returns as soon as the process exists; whether its main can be imported is not
    known then. Raises WorkerStartupError if it does not exist within ``timeout``
    seconds. If the call fails or is cancelled, nothing is left of the process.
    """
    start = _start_method(method, heritage)
    started = _in_spawner(partial(_start, start, plan, time.monotonic() + timeout))
    waiting = asyncio.wrap_future(started)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(waiting)
    except TimeoutError as error:
        await _undo(started, waiting, partial(_end_started, started))
        raise WorkerStartupError(f"{plan.name} did not start within {timeout} s") from error
    except asyncio.CancelledError:
        await _undo(started, waiting, partial(_end_started, started))
        raise


def check_method(method: str | None) -> None:
    """Raise ValueError for a start method that does not exist."""
    if method not in START_METHODS:
        valid = ", ".join(map(repr, START_METHODS))
        raise ValueError(f"multiprocessing_context must be one of {valid}, got {method!r}")


def _start_method(method: str | None, heritage: Heritage | None) -> StartMethod:
    check_method(method)
    require_workers()
    match method:
        case "fork":
            fork = _fork_alone if heritage is None else heritage.fork
            return partial(fork, asyncio.get_running_loop())
        case "spawn":
            return spawn
        case "forkserver":
            return fork_from_server
        case _ if heritage is not None:
            return partial(heritage.fork, asyncio.get_running_loop())
        case _:
            return fork_from_template


def _fork_alone(
    loop: asyncio.AbstractEventLoop, plan: ProcessPlan, sock: socket.socket, deadline: float
) -> StartedProcess:
    """Fork a process that shares what it inherits with no other."""
    heritage = Heritage()
    try:
        born = heritage.fork(loop, plan, sock, deadline)
    except BaseException:
        heritage.end()
        raise

    def close_status() -> None:
        born.close_status()
        heritage.end()

    return replace(born, close_status=close_status)


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


async def _undo(started: Future[T], waiting: asyncio.Future[T], end: Callable[[], object]) -> None:
    """Never start what has not begun to, and end what has."""
    # The loop may be closed before a slow start is over, and must not hear of it then.
    waiting.cancel()
    if started.cancel():
        return
    undone = asyncio.Event()
    # In the spawner's thread this comes after the start, whether or not it is waited for.
    _in_spawner(partial(_end_and_tell, end, asyncio.get_running_loop(), undone))
    with shielded(), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNDO_SECONDS):
            await undone.wait()


def _end_and_tell(
    end: Callable[[], object], loop: asyncio.AbstractEventLoop, undone: asyncio.Event
) -> None:
    end()
    # A loop that has been closed waits for nothing.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(undone.set)


def _end_started(started: Future[Process]) -> None:
    if started.exception() is None:
        kill_processes_now([started.result()], timeout=_REAP_SECONDS)


@at_exit
def _end_everything() -> None:
    """Leave nothing behind when the interpreter exits."""
    if _spawner is not None:
        _spawner.retire(_UNDO_SECONDS)
    kill_all_now()
    end_templates()


class ProcessEngine:
    """Makes the processes of a pool on this machine; ``method`` is that of ``start_process``."""

    #: A worker that dies is told at once; this is for one that hangs. To import torch and what a
    #: graph's functions need takes minutes where a busy machine or a slow file system is.
    start_seconds = 300.0
    instead_of_sending = (
        ', or pass multiprocessing_context="fork", with which workers inherit the graph as it is'
    )

    def __init__(self, method: str | None) -> None:
        self._method = method
        self._heritage: Heritage | None = None
        #: With None as the method: what the processes inherit if the program is forked.
        self._careful: CarefulHeritage | None = None
        if method == "fork":
            self._heritage = Heritage()
        elif method is None:
            self._heritage = self._careful = CarefulHeritage()
        #: What was packed to be inherited.
        self._packed: list[tuple[Any, Parcel]] = []

    @property
    def why_not_forked(self) -> str:
        return "" if self._careful is None else self._careful.why_not

    def expect(self, plan: ProcessPlan) -> None:
        if self._method is None and HAS_WORKERS:
            # That there can be no thread is said when a child is started.
            with contextlib.suppress(RuntimeError, ResourceExhausted):
                _in_spawner(partial(expect_fork, plan, threading.current_thread()))

    async def begin(self, codes: Sequence[Any]) -> None:
        if self._heritage is None or not HAS_WORKERS:
            return
        self._packed = [(code, self._heritage.add(code)) for code in codes]
        if self._careful is not None:
            deadline = time.monotonic() + self.start_seconds
            begin = partial(self._careful.try_to_begin, asyncio.get_running_loop(), deadline)
            begun = _in_spawner(begin)
            waiting = asyncio.wrap_future(begun)
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                await _undo(begun, waiting, self._careful.end)
                raise

    async def start(self, plan: ProcessPlan) -> Process:
        timeout, heritage = self.start_seconds, self._heritage
        return await start_process(plan, method=self._method, timeout=timeout, heritage=heritage)

    def pack(self, code: Any) -> Parcel:
        inherited = next((parcel for known, parcel in self._packed if known is code), None)
        return pack_code(code) if inherited is None or self.why_not_forked else inherited

    def sent(self, parcel: Parcel) -> Parcel:
        code = next((code for code, known in self._packed if known is parcel), None)
        # The template that was forked may have been killed, and the program cannot be forked now.
        return pack_code(code) if code is not None and self.why_not_forked else parcel

    async def close(self) -> None:
        self._packed = []
        if self._heritage is not None:
            await asyncio.wrap_future(_in_spawner(self._heritage.end, always=True))

    async def why_late(self) -> str:
        return ""

    def shared(self, parcel: Parcel) -> list[int]:
        return parcel.fds()

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[int, int]:
        to_worker, to_dealer = channel_pair()
        return to_worker.detach(), to_dealer.detach()

    def line(self) -> tuple[LoopChannel, int]:
        ours, theirs = channel_pair()
        return LoopChannel(ours), theirs.detach()


_lock = threading.Lock()
_spawner: CallThread | None = None


def _in_spawner(call: Callable[[], T], *, always: bool = False) -> Future[T]:
    """Call a function in the spawner's thread, in turn, unless the future is cancelled before.

    With ``always`` it is called whether or not anybody waits for it.
    """
    global _spawner
    future: Future[T] = uncancellable() if always else Future()
    with _lock:
        if _spawner is None:
            _spawner = CallThread("asyncloader spawner")
        _spawner.submit(partial(call_into if always else _settle, future, call))
    return future


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        call_into(future, call)


@in_forked_child
def _forget() -> None:
    # A forked child has no thread but the one that forked.
    global _spawner, _lock
    _lock = threading.Lock()
    _spawner = None
