"""The birth and death of worker processes.

This file is about a child process as its loader sees it: a socket to talk over, a
pidfd that says when it died, and an exit code. What is said over the socket is not
known here.

    start_process ──▶ spawner's thread ──▶ template │ fork │ spawn │ forkserver
         ▲                                              │
         └────────── Process(sock, pidfd, exitcode) ◀───┘
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

import anyio

from asyncloader.deadline import time_left
from asyncloader.errors import WorkerStartupError
from asyncloader.runtime import fill_standard_descriptors
from asyncloader.workers.contexts import fork, fork_from_server, refuse_unsafe_fork, spawn
from asyncloader.workers.deathwatch import DeathWatch
from asyncloader.workers.pidfd import is_readable, kill_pidfd, require_pidfds
from asyncloader.workers.plan import Born, ProcessPlan
from asyncloader.workers.spawner import retire_spawner, spawner
from asyncloader.workers.template_client import end_templates, fork_from_template

StartMethod = Callable[[ProcessPlan, socket.socket, float], Born]

START_METHODS = (None, "fork", "spawn", "forkserver")

# What asyncio reports, too, of a child whose status another part of the program took.
UNKNOWN_EXITCODE = 255

# What is kept of a close for those that have to be killed.
_KILL_SECONDS = 0.5

# A cancelled start waits this long for what it began to be undone.
_UNDO_SECONDS = 1.0


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


class Process:
    """A child process, from its start until ``release``.

    ``sock`` is the loader's end of a stream socketpair, and ``pidfd`` is readable
    from the moment the process is dead. Both belong to this object. In a forked
    copy of the loader, the methods leave the process alone.
    """

    def __init__(self, name: str, sock: socket.socket, born: Born) -> None:
        self.name = name
        self.pid = born.pid
        self.sock = sock
        self.pidfd = born.pidfd
        self._status = born.status
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._exitcode: int | None = None
        self._released = False
        self._watches: set[DeathWatch] = set()
        _alive.add(self)

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else f"exit code {self.exitcode}"
        return f"<{type(self).__name__} {self.name!r} pid {self.pid} {state}>"

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while that is not known."""
        with self._lock:
            if self._exitcode is None and not self._released and is_readable(self.pidfd):
                self._exitcode = self._status.collect()
            return self._exitcode

    def is_dead(self) -> bool:
        """Whether the process has ended, be its exit code known already or not."""
        return self._released or is_readable(self.pidfd)

    @property
    def status_fd(self) -> int:
        """Readable when the exit code of the dead process is known."""
        return self._status.fd

    async def wait(self) -> int:
        """Wait for the process to end, on any loop; return its exit code."""
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()
        watch = self.on_death(loop, partial(_resolve, dead))
        try:
            await dead
        finally:
            watch.detach()
        return self._settled()

    def on_death(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> DeathWatch:
        """Have the loop call ``callback`` once, when the exit code is known.

        To be called in the loop's thread. Any number of watches, on any number of
        loops, may be held; each ends with its call or its ``detach``.
        """
        with self._lock:
            watch = DeathWatch(loop, self, partial(self._settled_then, callback))
            self._watches = {each for each in self._watches if each.is_attached()} | {watch}
            if self._released:
                watch.finish()
            else:
                watch.watch()
            return watch

    def is_ours(self) -> bool:
        """False in a forked copy of the loader, whose process this is not."""
        return self._owner == os.getpid()

    def kill(self) -> None:
        """SIGKILL the process, if it is running. It is dead a little later."""
        with self._lock:
            if self.is_ours() and not self._released and self.exitcode is None:
                # Its server may have reaped it already, in which case there is no pidfd of it.
                with contextlib.suppress(OSError):
                    kill_pidfd(self.pidfd)

    def release(self) -> None:
        """Close the descriptors, of a process that is dead or is killed now; idempotent."""
        with self._lock:
            if self._released:
                return
            self.kill()
            self._settled()
            self._released = True
            _alive.discard(self)
            for watch in self._watches:
                watch.finish()
            self.sock.close()
            os.close(self.pidfd)
            self._status.close()

    def wait_now(self, timeout: float) -> None:
        """Block until the exit code is known, for ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        if not self._released and is_readable(self.pidfd, timeout):
            is_readable(self.status_fd, max(0.0, deadline - time.monotonic()))

    def disown(self) -> None:
        """In a forked child of the loader: close this copy of the descriptors."""
        # The lock may have been held by a thread that is not in this process.
        self._lock = threading.RLock()
        self._released = True
        self.sock.close()
        os.close(self.pidfd)
        self._status.close()

    def _settled_then(self, callback: Callable[[], None]) -> None:
        self._settled()
        callback()

    def _settled(self) -> int:
        with self._lock:
            if self.exitcode is None:
                self._exitcode = UNKNOWN_EXITCODE
            assert self._exitcode is not None
            return self._exitcode


async def close_processes(
    processes: Iterable[Process], *, grace: float = 2.0, total: float = 3.0
) -> None:
    """Wait for processes that were asked to end, end those that do not, and release all.

    Those alive after ``grace`` seconds are SIGKILLed. Takes ``total`` seconds at
    most, for all of them together, or what the close of a whole loader has left. A
    cancellation is raised when that is done.
    """
    total = time_left(total)
    grace = min(grace, max(0.0, total - _KILL_SECONDS))
    closing = asyncio.ensure_future(_close(list(processes), grace, total))
    cancelled: asyncio.CancelledError | None = None
    # The shield keeps anyio from cancelling over and over; the loop stands a task's own cancel.
    with anyio.CancelScope(shield=True):
        while not closing.done():
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError as error:
                cancelled = error
    closing.result()
    if cancelled is not None:
        raise cancelled


def kill_processes_now(processes: Iterable[Process], *, timeout: float = 1.0) -> None:
    """Kill, reap and release processes without a loop, for finalizers; blocks for ``timeout``."""
    doomed = [process for process in processes if process.is_ours()]
    deadline = time.monotonic() + timeout
    for process in doomed:
        process.kill()
    for process in doomed:
        process.wait_now(max(0.0, deadline - time.monotonic()))
        process.release()


def check_method(method: str | None) -> None:
    """Raise ValueError for a start method that does not exist."""
    if method not in START_METHODS:
        valid = ", ".join(map(repr, START_METHODS))
        raise ValueError(f"multiprocessing_context must be one of {valid}, got {method!r}")


def _start_method(method: str | None) -> StartMethod:
    check_method(method)
    require_pidfds()
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
            fill_standard_descriptors()
            ours, theirs = socket.socketpair()
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
    with anyio.CancelScope(shield=True), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNDO_SECONDS):
            await undone.wait()


def _end_started(
    started: Future[Process], loop: asyncio.AbstractEventLoop, undone: asyncio.Event
) -> None:
    if started.exception() is None:
        kill_processes_now([started.result()])
    # A loop that has been closed waits for nothing.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(undone.set)


async def _close(processes: list[Process], grace: float, total: float) -> None:
    deadline = time.monotonic() + total
    try:
        await _all_dead(processes, grace)
        for process in processes:
            process.kill()
        await _all_dead(processes, deadline - time.monotonic())
    finally:
        # A loop that is torn down cancels every task, this one too.
        kill_processes_now(processes, timeout=max(0.0, deadline - time.monotonic()))


async def _all_dead(processes: list[Process], timeout: float) -> None:
    waits = [asyncio.ensure_future(p.wait()) for p in processes if p.exitcode is None]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=max(0.0, timeout))
    for wait in late:
        wait.cancel()
    await asyncio.gather(*late, return_exceptions=True)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_alive: set[Process] = set()


def _end_everything() -> None:
    """Leave nothing behind when the interpreter exits."""
    retire_spawner(_UNDO_SECONDS)
    kill_processes_now(list(_alive))
    end_templates()


def _forget() -> None:
    while _alive:
        _alive.pop().disown()


atexit.register(_end_everything)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
