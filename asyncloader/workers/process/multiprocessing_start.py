"""Processes started through the standard library.

This file is about the start methods "fork", "spawn" and "forkserver", and about what every
worker shares with the program's own use of ``multiprocessing``, which only this file imports.
All of this runs in the spawner's thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import multiprocessing.util  # its exit function must be registered before ours
import os
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import thread as executors
from functools import partial
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NamedTuple

from asyncloader import system
from asyncloader.errors import ResourceExhausted, WorkerStartupError
from asyncloader.runtime import require_descriptors, require_process, start_thread
from asyncloader.waiting import do_nothing
from asyncloader.workers.process.child import (
    STDIO,
    let_go_of_inherited,
    run_main,
    settle,
)
from asyncloader.workers.process.inherited import Allowance
from asyncloader.workers.process.process import ProcessPlan, StartedProcess
from asyncloader.workers.process.template_process import serve_heirs

OUR_THREADS = "asyncloader"

_FDS_FOR_A_START = 12


def refuse_unsafe_fork(loops_own: threading.Thread) -> None:
    """Raise WorkerStartupError if a thread runs that a forked child would miss.

    ``loops_own`` is the thread of the loop, which stands still.
    """
    until, pause = time.monotonic() + _RETURNS_SECONDS, threading.Event()
    while foreign := _foreign(loops_own):
        if time.monotonic() > until:
            raise WorkerStartupError(
                "fork is not safe while other threads run, which may hold locks: "
                f"{', '.join(foreign)}; leave out multiprocessing_context, or use 'spawn'"
            )
        pause.wait(_RETURNS_SECONDS / 20)


#: A thread of a loop's executor waits again so soon after what it ran has been awaited.
_RETURNS_SECONDS = 0.02


def _foreign(loops_own: threading.Thread) -> list[str]:
    """Return the names of threads that a forked child would miss."""
    known = {threading.main_thread(), threading.current_thread(), loops_own}
    frames = frames_of_others()
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if thread not in known
        and not thread.name.startswith(OUR_THREADS)
        and not is_known_harmless(thread, frames.get(thread.ident or 0))
    )


def frames_of_others() -> dict[int, FrameType]:
    """Return the innermost frame of each thread but this one.

    A caller that kept its own frame would be a circle, which keeps what all these frames hold
    until the next collection: other ranks wait for a group of ours as long as that exists.
    """
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return frames


def is_known_harmless(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Whether a thread of others holds no lock that somebody in a forked child could wait for."""
    # tqdm's monitor, which stays after the first progress bar, holds none but that of
    # ``_free_locks``.
    is_monitor = _full_name(type(thread)) == _MONITOR
    # What a loop runs functions in waits for the next one; nobody in a child gives it any.
    function: Any = getattr(executors, "_worker", None)
    waits = frame is not None and frame.f_code is getattr(function, "__code__", None)
    return is_monitor or (waits and thread.name.startswith("asyncio_"))


_MONITOR = "tqdm._monitor.TMonitor"


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _free_locks() -> None:
    """In a forked child: free the lock that tqdm's monitor may have held."""
    std: Any = sys.modules.get("tqdm.std")
    for lock in getattr(getattr(std, "TqdmDefaultWriteLock", None), "__dict__", {}).values():
        # Only locks of threads know this; that of processes is freed by who holds it.
        getattr(lock, "_at_fork_reinit", do_nothing)()


def fork_template(
    loop: asyncio.AbstractEventLoop,
    heirlooms: list[Any],
    deadline: float,
    refuse: Callable[[threading.Thread], None],
    control_fd: int,
) -> ForkedProcess:
    """Fork this process while the loop stands still; the child is a template for its heirs.

    ``refuse`` is called with the thread of the loop, which stands still, and raises if the fork is
    not safe.
    """
    tracker_fd()
    require_descriptors(_FDS_FOR_A_START)
    context: Any = multiprocessing.get_context("fork")
    lifeline = system.lifeline()
    try:
        process = context.Process(
            target=_forked_main,
            name="asyncloader template",
            args=(control_fd, lifeline, os.getpid(), heirlooms),
            daemon=False,
        )
        # No handler of the loader's may run in the child before it has let go of them.
        held = signals_held(signal.valid_signals())
        with standing_still(loop, deadline) as thread, held, _fork_warning_ignored():
            refuse(thread)
            process.start()
            # It is no process of the program's, which may wait for all of those, or end them.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    finally:
        os.close(lifeline)
    return ForkedProcess(process)


class ForkedProcess:
    """What ``subprocess.Popen`` is for a process that was forked."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self) -> int | None:
        if self.returncode is None:
            self._process.join()
        code = self.poll()
        _close(self._process, self._process.join)
        return code

    def kill(self) -> None:
        self._process.kill()


def spawn(plan: ProcessPlan, sock: socket.socket, deadline: float) -> StartedProcess:
    """Start a fresh interpreter."""
    _require_folder("spawn")
    tracker_fd()
    with sigint_held():
        return _start("spawn", _live, plan, sock, parent=os.getpid())


def fork_from_server(plan: ProcessPlan, sock: socket.socket, deadline: float) -> StartedProcess:
    """Fork the standard library's server process, which is started where necessary."""
    _require_folder("forkserver")
    # By this signal the server learns that a child is dead. It does not unblock it itself, and
    # and who waits to be told of the death would wait for ever.
    with signals_let_through({signal.SIGCHLD}):
        forkserver.ensure_running()
    # The server itself would end by a traceback.
    require_process()
    try:
        return _start("forkserver", _served_main, plan, sock, parent=0)
    except EOFError as error:
        raise WorkerStartupError(
            f"{plan.name} was not started: the fork server ended, as it does where the system"
            " allows no more processes; its own message is on stderr"
        ) from error


def _require_folder(method: str) -> None:
    """Raise WorkerStartupError where the working directory, which is asked for, was removed."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        error.filename = system.removed_folder()
        raise WorkerStartupError(
            f"{method!r} needs the working directory, which was removed: {error}; leave"
            " multiprocessing_context out, or change to another directory by os.chdir"
        ) from error


def tracker_fd() -> int:
    """Return the pipe to the program's resource tracker, which is started where necessary.

    A worker with a tracker of its own would destroy, with its end, what the program owns and
    the worker has only attached to.
    """
    global _tracker_identity
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None and system.identity(tracker._fd) != _tracker_identity is not None:
        # The program has closed it, and the tracker would close what has that number now.
        tracker._fd = None
    # It unblocks signals in this thread when it starts.
    with signals_held(()):
        fd = resource_tracker.getfd()
    assert fd is not None
    _tracker_identity = system.identity(fd)
    return fd


_tracker_identity: tuple[int, int] | None = None


def authkey() -> bytes:
    """Return the key by which a process of this program may talk to the program's managers."""
    return bytes(multiprocessing.current_process().authkey)


class Inherited:
    """A descriptor on its way to a child that the standard library starts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (reduction.DupFd(self.fd),)


def _start(
    method: str,
    main: Callable[..., None],
    plan: ProcessPlan,
    sock: socket.socket,
    *,
    parent: int,
) -> StartedProcess:
    context: Any = multiprocessing.get_context(method)
    # multiprocessing leaks some if it finds out half-way.
    require_descriptors(_FDS_FOR_A_START)
    lifeline = system.lifeline()
    try:
        inherited = Inherited(sock.fileno()), Inherited(lifeline)
        process = context.Process(
            target=main,
            name=plan.name,
            args=(plan, *inherited, parent, Allowance.current()),
            daemon=False,
        )
        process.start()
    finally:
        os.close(lifeline)
    try:
        # A server tells the exit code of its child by the sentinel, when it has reaped it.
        is_told = system.TELLS_DEATHS or method == "forkserver"
        death = _told_death(process) if is_told else _awaited_death(process)
    except BaseException:
        process.kill()
        process.join()
        raise
    return StartedProcess(
        process.pid,
        death.fd,
        status_fd=process.sentinel,
        find_exitcode=lambda: process.exitcode,
        close_status=partial(_close, process, death.join),
    )


class _Death(NamedTuple):
    """What is readable once a process is dead, and what waits until it is reaped."""

    fd: int
    join: Callable[[], object]


def _close(process: BaseProcess, join: Callable[[], object]) -> None:
    try:
        process.close()
    except ValueError:
        # It was killed a moment ago; or another has reaped it, and then nobody waits long.
        if process._parent_pid == os.getpid():  # type: ignore[attr-defined]
            # Whoever cannot start a thread leaves it to the next start, or to its own end.
            with contextlib.suppress(RuntimeError, ResourceExhausted):
                _start_waiter(process, partial(_close_dead, process, join))


def _close_dead(process: BaseProcess, join: Callable[[], object]) -> None:
    join()
    # It refuses if another reaped the process, and the exit code is lost.
    with contextlib.suppress(ValueError):
        process.close()


def _start_waiter(process: BaseProcess, wait: Callable[[], None]) -> threading.Thread:
    name = f"{OUR_THREADS} waits for {process.pid}"
    thread = threading.Thread(target=wait, name=name, daemon=True)
    start_thread(thread)
    return thread


def _told_death(process: BaseProcess) -> _Death:
    return _Death(system.watch_death(process.pid or 0, process.sentinel), process.join)


def _awaited_death(process: BaseProcess) -> _Death:
    """Have a thread wait for the process, which is the only one that does.

    The sentinel does not do: it says nothing while a child of the process has inherited it.
    """
    dead, alive = os.pipe()

    def wait() -> None:
        process.join()
        os.close(alive)

    try:
        # Of two that wait at once, one is not told the exit code, and cannot close the process.
        return _Death(dead, _start_waiter(process, wait).join)
    except BaseException:
        os.close(dead)
        os.close(alive)
        raise


def _forked_main(control_fd: int, lifeline: int, parent: int, heirlooms: list[Any]) -> None:
    let_go_of_inherited({control_fd, lifeline, *_fds_of_output(), *_fds_of_multiprocessing()})
    _free_locks()
    # What the loader does at its end is not for its children to do; what they make, they end.
    atexit._clear()
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    serve_heirs(control_fd, lifeline, parent, heirlooms)


def _served_main(
    plan: ProcessPlan, sock: Inherited, lifeline: Inherited, _: int, allowance: Allowance
) -> None:
    _leave_server()
    _live(plan, sock, lifeline, os.getppid(), allowance)


def _live(
    plan: ProcessPlan, sock: Inherited, lifeline: Inherited, parent: int, allowance: Allowance
) -> None:
    settle(plan.name, parent=parent)
    allowance.apply()
    os.set_inheritable(sock.fd, False)
    run_main(plan.main, socket.socket(fileno=sock.fd), plan.args, lifelines=[lifeline.fd])


def _fds_of_output() -> Iterator[int]:
    for stream in (sys.stdout, sys.stderr):
        # Somebody may have put an object there that is no file, or a closed one, or None.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            yield stream.fileno()


def _fds_of_multiprocessing() -> Iterator[int]:
    parent = multiprocessing.parent_process()
    if parent is not None:
        yield parent.sentinel
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    if tracker is not None:
        yield tracker


def _leave_server() -> None:
    """Close the descriptor by which every child keeps the server, and itself, alive."""
    server: Any = forkserver._forkserver
    fd = getattr(server, "_forkserver_alive_fd", None)
    if fd is not None:
        os.close(fd)
        server._forkserver_alive_fd = None
        server._forkserver_address = None


def _arrived(dup: Any) -> Inherited:
    fd = dup.detach()
    assert fd not in STDIO
    return Inherited(fd)


@contextlib.contextmanager
def _fork_warning_ignored() -> Iterator[None]:
    if sys.version_info < (3, 12):
        yield
        return
    # It warns of the very threads that were looked at before.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def standing_still(loop: asyncio.AbstractEventLoop, deadline: float) -> Iterator[threading.Thread]:
    """Keep the running loop between two of its callbacks while the block runs.

    Yields the loop's thread; to be used in another one. Raises WorkerStartupError if the loop is
    in one callback until the deadline.
    """
    arrived, leave = threading.Event(), threading.Event()
    standing: list[threading.Thread] = []

    def stand() -> None:
        standing.append(threading.current_thread())
        arrived.set()
        leave.wait(max(0.0, deadline - time.monotonic()))

    try:
        loop.call_soon_threadsafe(stand)
        if not arrived.wait(max(0.0, deadline - time.monotonic())):
            raise WorkerStartupError("fork has to wait for the event loop, which was busy too long")
        yield standing[0]
    finally:
        leave.set()


def signals_held(numbers: Iterable[int]) -> contextlib.AbstractContextManager[None]:
    """Block signals in this thread and in the processes it starts, which unblock them."""
    return _masked(signal.SIG_BLOCK, numbers)


def signals_let_through(numbers: Iterable[int]) -> contextlib.AbstractContextManager[None]:
    """Unblock signals in this thread and in the processes it starts."""
    return _masked(signal.SIG_UNBLOCK, numbers)


def sigint_held() -> contextlib.AbstractContextManager[None]:
    """Ctrl-C during the start of an interpreter would be a traceback on the terminal."""
    return signals_held({signal.SIGINT})


@contextlib.contextmanager
def _masked(how: int, numbers: Iterable[int]) -> Iterator[None]:
    before = signal.pthread_sigmask(how, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
