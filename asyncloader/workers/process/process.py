"""A child process, as its loader sees it.

This file is about ``Process``, from its start to its end: a socket to talk over, a descriptor that
says when it died, and an exit code; and about ``WorkerProcess`` and ``WorkerEngine``, which are all
that a loader asks of a process, wherever it runs, and of those who start one. What is said over
the socket is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from asyncloader.datapipes.running.run_place import Home
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.deadline import time_left
from asyncloader.errors import ResourceExhausted
from asyncloader.memory import Segment
from asyncloader.runtime import begin_closing, begin_task, holding_interrupts, released
from asyncloader.shield import shielded
from asyncloader.system import (
    answer_of,
    ask_for_last_words,
    can_be_asked,
    exitcode_of_unreaped,
    in_forked_child,
    is_readable,
    is_readable_or_hung_up,
    oom_kills,
    open_last_words,
    send_signal,
    stacks_of,
    state_of,
)
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.channel import LoopChannel
from asyncloader.transport.codec import Decoder, Opener
from asyncloader.transport.ends import LoopEnd
from asyncloader.transport.parcel import Parcel
from asyncloader.waiting import Patience, release

# What asyncio reports, too, of a child whose status another part of the program took.
UNKNOWN_EXITCODE = 255

# What is kept of a close for those that have to be killed.
_KILL_SECONDS = 0.5

#: How long a process that was asked for its last words may take to end.
DUMP_SECONDS = 0.5
_MOST_BYTES = 1 << 20


class Process:
    """A child process, from its start until ``release``.

    ``sock`` is the loader's end of a stream socketpair, and ``death_fd`` is readable
    from the moment the process is dead. Both belong to this object. In a forked
    copy of the loader, the methods leave the process alone.
    """

    #: The node of a cluster: none.
    node: Final = ""
    when_silent: Final = "it was killed"

    def __init__(self, name: str, sock: socket.socket, born: StartedProcess) -> None:
        self.name = name
        self.pid = born.pid
        self.sock = sock
        self.death_fd = born.death_fd
        self._born = born
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._exitcode: int | None = None
        self._released = False
        self._watches: set[DeathWatch] = set()
        self._oom_kills = oom_kills()
        _alive.add(self)

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else f"exit code {self.exitcode}"
        return f"<{type(self).__name__} {self.name!r} pid {self.pid} {state}>"

    @property
    def place(self) -> str:
        """Which process this is, for messages."""
        return f"pid {self.pid}"

    def open_channel(self) -> LoopChannel:
        """Return the loader's end of the channel to the process."""
        return LoopChannel(self.sock)

    def open_items(self, wake: Callable[[], None], *, copy_beyond: int) -> Decoder:
        """Return what makes items of what the process sends, in its shared memory."""
        return Decoder(ArenaView(wake, copy_beyond=copy_beyond))

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while that is not known."""
        with self._lock:
            if self._exitcode is None and not self._released and is_readable(self.death_fd):
                self._exitcode = self._born.find_exitcode()
            return self._exitcode

    def is_dead(self) -> bool:
        """Whether the process has ended, be its exit code known already or not."""
        if self._released or self._exitcode is not None:
            return True
        # Whoever has to reap it may not have done so yet.
        return is_readable_or_hung_up(self.death_fd, self.sock.fileno())

    def how_it_ended(self) -> str:
        """Say how the dead process ended."""
        return how_it_ended(self.exitcode, oom_kills() > self._oom_kills)

    def new_memory(self, nbytes: int) -> Segment | None:
        """Return memory to be shared with the process, which outlives it; None without room.

        Where a file takes its place, a second descriptor is needed for a moment.
        """
        try:
            return Segment.create(nbytes)
        except (ResourceExhausted, OSError):
            return None

    def work_for(self, home: Home | None) -> None:
        """Learn in which home an epoch runs: a process of its own has no use for it."""

    async def hang_dump(self) -> str | None:
        """Ask a process that hangs to end; return where its threads stood, if it can answer."""
        file = open_last_words(self.pid)
        if file is None:
            return None
        try:
            with contextlib.suppress(OSError, TimeoutError):
                ask_for_last_words(self.pid, self.death_fd)
                async with asyncio.timeout(DUMP_SECONDS):
                    await self.wait()
            return os.pread(file, _MOST_BYTES, 0).decode(errors="replace") or None
        finally:
            os.close(file)

    def holding_up(self) -> list[UnderWay]:
        """Ask the process what holds it up; in a thread that may wait for a second or two."""
        if self.is_dead() or not self.is_ours():
            return []
        if (state := state_of(self.pid)) in _STATES:
            return [UnderWay(_STATES[state])]
        if not can_be_asked(self.pid):
            return [UNKNOWN]
        answer = answer_of(self.pid, self.death_fd, _ANSWER_SECONDS)
        if found := _told(answer):
            return found
        dump = stacks_of(self.pid, self.death_fd, _ANSWER_SECONDS).decode(errors="replace")
        what = "its main thread" if answer else "a call that keeps the GIL"
        if stack := _main_stack(dump):
            return [UnderWay(what, stack=stack)]
        return [] if answer else [UnderWay("no answer")]

    @property
    def status_fd(self) -> int:
        """Readable when the exit code of the dead process is known."""
        return self._born.status_fd

    def expects_exitcode(self, read: Callable[[int], None]) -> bool:
        """Have ``read`` watch ``status_fd`` and return True, unless the exit code is known."""
        # Another thread may release the process at any moment, which closes that.
        with self._lock:
            if self.exitcode is not None:
                return False
            read(self.status_fd)
            return True

    async def wait(self) -> int:
        """Wait for the process to end, on any loop; return its exit code."""
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()
        unwatch = self.on_death(loop, partial(release, dead))
        try:
            await dead
        finally:
            unwatch()
        return self._settled()

    def on_death(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Have the loop call ``callback`` once, when the exit code is known.

        To be called in the loop's thread. Returns a function after which nothing is called any
        more; any number of callbacks, on any number of loops, may wait.
        """
        with self._lock:
            watch = DeathWatch(loop, self, partial(self._settled_then, callback))
            self._watches = {each for each in self._watches if each.is_attached()} | {watch}
            if self._released:
                watch.finish()
            else:
                watch.watch()
            return watch.detach

    def is_ours(self) -> bool:
        """False in a forked copy of the loader, whose process this is not."""
        return self._owner == os.getpid()

    def kill(self) -> None:
        """SIGKILL the process, if it is running. It is dead a little later."""
        with self._lock:
            if self.is_ours() and not self._released and self.exitcode is None:
                # This ends a stopped one too.
                send_signal(self.pid, self.death_fd, signal.SIGKILL)

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
            os.close(self.death_fd)
            self._born.close_status()

    def wait_now(self, timeout: float) -> None:
        """Block until the exit code is known, for ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        if not self._released and is_readable(self.death_fd, timeout):
            is_readable(self.status_fd, max(0.0, deadline - time.monotonic()))

    def disown(self) -> None:
        """In a forked child of the loader: close this copy of the descriptors."""
        # The lock may have been held by a thread that is not in this process.
        self._lock = threading.RLock()
        self._released = True
        self.sock.close()
        os.close(self.death_fd)
        self._born.close_status()

    def _settled_then(self, callback: Callable[[], None]) -> None:
        self._settled()
        callback()

    def _settled(self) -> int:
        with self._lock:
            if self.exitcode is None:
                # Whoever is to reap it and tell is stopped itself, say.
                code = exitcode_of_unreaped(self.pid)
                self._exitcode = UNKNOWN_EXITCODE if code is None else code
            assert self._exitcode is not None
            return self._exitcode


async def close_processes(
    processes: Iterable[WorkerProcess], *, grace: float = 2.0, total: float = 3.0
) -> None:
    """Wait for processes that were asked to end, end those that do not, and release all.

    Those alive after ``grace`` seconds are SIGKILLed. Takes ``total`` seconds at
    most, for all of them together, or what the close of a whole loader has left. A
    cancellation is raised when that is done.
    """
    total = time_left(total)
    grace = min(grace, max(0.0, total - _KILL_SECONDS))
    closing = begin_closing(_close, list(processes), grace, total)
    cancelled: asyncio.CancelledError | None = None
    # The loop stands a task's own cancellation.
    with shielded():
        while not closing.done():
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError as error:
                cancelled = error
    released(closing.result())
    if cancelled is not None:
        raise cancelled


def how_it_ended(exitcode: int | None, memory_was_short: bool) -> str:
    """Say how a process ended, during whose life the system may have killed for memory."""
    if exitcode is None:
        return "ended in an unknown way"
    if exitcode >= 0:
        return f"exited with code {exitcode} before its work was done"
    hint = _HINT if exitcode == -signal.SIGKILL and memory_was_short else ""
    return f"was killed by {_signal_name(-exitcode)}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_HINT = (
    "; the system has killed for lack of memory meanwhile: use fewer workers, smaller batches or"
    " a smaller prefetch_bytes, or raise the container's memory limit"
)


def kill_processes_now(processes: Iterable[WorkerProcess], *, timeout: float = 1.0) -> None:
    """Kill, reap and release processes without a loop, for finalizers; blocks for ``timeout``."""
    doomed = [process for process in processes if process.is_ours()]
    deadline = time.monotonic() + timeout
    for process in doomed:
        process.kill()
    for process in doomed:
        process.wait_now(max(0.0, deadline - time.monotonic()))
        process.release()


async def _close(processes: list[WorkerProcess], grace: float, total: float) -> None:
    deadline = time.monotonic() + total
    try:
        await _all_dead(processes, grace)
        for process in processes:
            process.kill()
        await _all_dead(processes, deadline - time.monotonic())
    finally:
        # A loop that is torn down cancels every task, this one too.
        kill_processes_now(processes, timeout=max(0.0, deadline - time.monotonic()))


async def _all_dead(processes: list[WorkerProcess], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    waits = [
        begin_task(loop, holding_interrupts(each.wait), "asyncloader waiting for a process")
        for each in processes
        if each.exitcode is None
    ]
    if not waits:
        return
    ended, late = await asyncio.wait(waits, timeout=max(0.0, timeout))
    for wait in late:
        wait.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for wait in ended:
        released(wait.result())


_alive: set[Process] = set()


def kill_all_now() -> None:
    """Kill every process that was started from here and is not released."""
    kill_processes_now(list(_alive))


@in_forked_child
def _forget() -> None:
    while _alive:
        _alive.pop().disown()


# What is told of a death ----------------------------------------------------------------

# A server that is itself stopped does not tell any more.
TOLD_SECONDS: Final = 0.5


class DeathWatch:
    """Calls ``callback`` once, in its loop, unless detached before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: Process, callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._process = process
        self._callback = callback
        self._fds: list[int] = []
        self._calls: list[Patience] = []
        self._attached = True

    def watch(self) -> None:
        """Begin; to be called in the loop's thread before the process is released."""
        self._read(self._process.death_fd, self._died)

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
        if self._process.expects_exitcode(lambda fd: self._read(fd, self._finish)):
            self._calls.append(Patience(self._loop, TOLD_SECONDS, self._finish))
        else:
            self._finish()

    def _finish(self) -> None:
        self._let_go()
        if self._attached:
            self._attached = False
            self._callback()

    def _read(self, fd: int, ready: Callable[[], None]) -> None:
        # A copy, since a loop knows one reader for each descriptor.
        copy = os.dup(fd)
        self._fds.append(copy)
        # A loop keeps the context in which it is told to call something, and so all that an
        # epoch has in it; the watch outlasts the epoch.
        contextvars.Context().run(self._loop.add_reader, copy, ready)

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


# What a loader asks ---------------------------------------------------------------------


#: How long a process may take to answer.
_ANSWER_SECONDS = 1.0

#: What is said of a process that nobody can ask.
UNKNOWN = UnderWay("the next item")

#: What is said of a process that cannot answer, by its state.
_STATES = {
    "T": "stopped by a signal (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "a wait in the kernel, for a disk or a file system",
}


def _told(answer: bytes) -> list[UnderWay]:
    """Return what a process has answered."""
    if not answer:
        return []
    try:
        return [UnderWay(**{**each, "stack": tuple(each["stack"])}) for each in json.loads(answer)]
    except (ValueError, TypeError, LookupError):
        return []


def _main_stack(dump: str) -> tuple[str, ...]:
    """Return the stack of the thread that works, of those that the fault handler shows."""
    threads = (_FRAME.findall(part) for part in dump.split("\n\n"))
    # The innermost function comes first.
    main = next((each for each in threads if any(map(_serves, each))), [])
    inner = main[: next((n for n, each in enumerate(main) if _serves(each)), 0)]
    shown = [f"{file}:{line} in {name}" for file, line, name in inner if _PACKAGE not in file]
    return tuple(reversed(shown))


def _serves(frame: tuple[str, str, str]) -> bool:
    file, _, name = frame
    return name == "serve" and _PACKAGE in file


_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_PACKAGE = f"{os.sep}asyncloader{os.sep}"


class WorkerProcess(Protocol):
    """A process that works for a loader, on this machine or elsewhere."""

    @property
    def pid(self) -> int:
        """The process's number, on its machine."""
        ...

    @property
    def node(self) -> str:
        """The node of a cluster on which it runs; empty on the loader's own machine."""
        ...

    @property
    def place(self) -> str:
        """Which process this is, and on which machine, for messages."""
        ...

    @property
    def when_silent(self) -> str:
        """What is done about it where it owes an item and is silent, for messages."""
        ...

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while that is not known."""
        ...

    def open_channel(self) -> LoopEnd:
        """Return the loader's end of the channel to the process; call this once."""
        ...

    def open_items(self, wake: Callable[[], None], *, copy_beyond: int) -> Opener:
        """Return what makes items of what the process sends; call this once."""
        ...

    def on_death(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
    ) -> Callable[[], object]:
        """Have the loop call ``callback`` once at its death, unless what this returns is called."""
        ...

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        ...

    def how_it_ended(self) -> str:
        """Say how the dead process ended."""
        ...

    def holding_up(self) -> list[UnderWay]:
        """Ask the process what holds it up; nothing where nobody can ask."""
        ...

    def work_for(self, home: Home | None) -> None:
        """Learn in which home of this process the next epoch runs."""
        ...

    def new_memory(self, nbytes: int) -> Segment | None:
        """Return memory to be shared with it, which outlives it; None where there is none."""
        ...

    async def hang_dump(self) -> str | None:
        """Ask a process that hangs where its threads stand; None if it cannot answer."""
        ...

    def kill(self) -> None:
        """End the process, without waiting for it."""
        ...

    async def wait(self) -> object:
        """Wait for the process to end."""
        ...

    def wait_now(self, timeout: float) -> None:
        """Block until the process has ended, for ``timeout`` seconds at most."""
        ...

    def release(self) -> None:
        """Give up what is held for the process, which is killed if it lives; idempotent."""
        ...

    def is_ours(self) -> bool:
        """False in a forked copy of the loader, whose process this is not."""
        ...


class WorkerEngine(Protocol):
    """Who starts the processes of one pool."""

    @property
    def start_seconds(self) -> float:
        """How long the processes may take to be ready."""
        ...

    @property
    def instead_of_sending(self) -> str:
        """What to do where a graph cannot be sent well, in words after others; or nothing."""
        ...

    @property
    def why_not_forked(self) -> str:
        """Why the processes do not inherit the graph, where they could; or nothing."""
        ...

    def expect(self, plan: ProcessPlan) -> None:
        """Begin, in the background, what takes long before such a process can be started."""
        ...

    async def begin(self, codes: Sequence[Any]) -> None:
        """Get ready to start processes that run these; call this before they are packed."""
        ...

    async def start(self, plan: ProcessPlan) -> WorkerProcess:
        """Start a process, without blocking the loop; if this fails, nothing is left of it."""
        ...

    async def why_late(self) -> str:
        """Say more of why processes were not ready in time, after a semicolon; or nothing."""
        ...

    def pack(self, code: Any) -> Parcel:
        """Return what the processes unpack code from; call this before the first is started."""
        ...

    def sent(self, parcel: Parcel) -> Parcel:
        """Return what is sent for a parcel to processes that were just started."""
        ...

    async def close(self) -> None:
        """Give up what is held for the processes, which have ended; idempotent."""
        ...

    def shared(self, parcel: Parcel) -> list[Any]:
        """Return what is sent to one process beside a parcel, for its shared memory."""
        ...

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[Any, Any]:
        """Return what is sent to each of two processes for a channel between them."""
        ...

    def line(self) -> tuple[LoopEnd, Any]:
        """Return one end of a channel to a process, and what is sent to it for the other."""
        ...


# Before and at its start ----------------------------------------------------------------


@dataclass(frozen=True)
class ProcessPlan:
    """What a child process is to be.

    ``main`` is ``"package.module:function"``, imported in the child and called as
    ``function(sock, *args)``. ``args`` is plain data. ``preload`` names modules
    that a template process imports once, before it forks; plans that name the same
    ones share a template process. An actor calls the module's ``work`` with its channel.
    """

    name: str
    main: str
    args: tuple[Any, ...] = ()
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedProcess:
    """A process that was just started. The receiver owns ``death_fd`` and the status."""

    pid: int
    #: Readable when it is dead.
    death_fd: int
    #: Readable when ``find_exitcode`` has an answer.
    status_fd: int
    #: Returns the exit code of the dead process (negative: the signal), or None if it is not
    #: known yet.
    find_exitcode: Callable[[], int | None]
    #: Releases what is held for the status; after death only.
    close_status: Callable[[], None]
