"""What a loader can learn of a child process.

This file is about holding on to a process by a pidfd, and about how an event loop is told of its
death, how the process ended, whether a lack of memory may have been the reason, and where the
threads of one stood that hangs.

A pid may be given to a stranger as soon as its process is reaped. A pidfd never is, and it turns
readable when the process dies, which any event loop can wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import faulthandler
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from asyncloader.errors import WorkerStartupError
from asyncloader.memory import memory_file

# The same on every architecture that Linux numbers by the common table.
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434


def open_pidfd(pid: int) -> int:
    """Open a close-on-exec pidfd; ProcessLookupError if there is no such process."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _syscall(_SYS_PIDFD_OPEN, pid, 0)


def kill_pidfd(pidfd: int) -> None:
    """SIGKILL the process, which ends a stopped one too. A dead one is left in peace."""
    with contextlib.suppress(ProcessLookupError):
        signal_pidfd(pidfd, signal.SIGKILL)


def signal_pidfd(pidfd: int, number: int) -> None:
    """Send the process a signal; ProcessLookupError if it is dead."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)


def is_readable(fd: int, timeout: float = 0.0) -> bool:
    """Whether ``fd`` is readable within ``timeout`` seconds; of a pidfd: whether it is dead."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def require_pidfds() -> None:
    """Raise WorkerStartupError where worker processes cannot be held on to."""
    if sys.platform != "linux":
        raise WorkerStartupError(
            f"worker processes need Linux, this is {sys.platform}; load in-process instead "
            "(InProcessReadingService, or num_workers=0)"
        )
    try:
        os.close(open_pidfd(os.getpid()))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return  # there are pidfds, and the start itself will say that none is left
        raise WorkerStartupError(
            f"worker processes need pidfds (Linux 5.3 or newer), which fail here: {error}"
        ) from error


def _syscall(number: int, *arguments: int) -> int:
    # Interpreters built against old kernel headers lack the functions of os and signal.
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# How a process ended --------------------------------------------------------------------


def exitcode_of_unreaped(pid: int) -> int | None:
    """Return the exit code of a dead process, whose parent may be another; None if unknown.

    The pid is its own as long as nobody has reaped it.
    """
    with contextlib.suppress(OSError, ValueError):
        # Behind the name, which may hold anything: the state, and last of all the status.
        state, *_, status = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if state == b"Z":
            return os.waitstatus_to_exitcode(int(status))
    return None


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


# The kernel counts such kills in the control group of this process and of its children. It cannot
# say who was killed, so that is a hint and no more.
_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")

_HINT = (
    "; the system has killed for lack of memory meanwhile: use fewer workers, smaller batches or"
    " a smaller prefetch_bytes, or raise the container's memory limit"
)


def oom_kills(groups: Path = _GROUPS, root: Path = _ROOT) -> int:
    """Return how many processes of this control group were killed so; 0 where nobody counts."""
    return max((_count_in(file) for file in _counters(groups, root)), default=0)


def _counters(groups: Path, root: Path) -> Iterator[Path]:
    try:
        lines = os.fsdecode(groups.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the path may be that of the world outside, and the root the group's own.
        for folder in (path.lstrip("/"), ""):
            if not controllers:
                yield root / folder / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / folder / "memory.oom_control"


def _count_in(file: Path) -> int:
    try:
        words = file.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


# Where a process hangs ------------------------------------------------------------------
#
# Upon a signal a process writes where its threads stand to a file in memory, and ends. The
# interpreter's fault handler does that without the GIL, so a call into C that keeps it does not
# stand in the way; only a process that is stopped, or stuck in the kernel, cannot answer.

#: How long a process that was asked may take to end.
DUMP_SECONDS = 0.5

_FILE = "asyncloader hang dump"
_MOST_BYTES = 1 << 20


def _dump_signal() -> int:
    """The signal that asks: one of the real-time signals, which nobody uses by accident."""
    return signal.SIGRTMIN + 9


def dump_when_asked() -> None:
    """Let this process answer; to be called in its main thread."""
    if sys.platform != "linux":
        return
    number = _dump_signal()
    # A forked process may have inherited somebody's use of the signal.
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_DFL)
    # Where there is no such file there is no answer.
    with contextlib.suppress(OSError):
        fd = memory_file(_FILE)
        # The signal is passed on to its default, which ends the process: so the one who asked
        # knows when all has been written.
        faulthandler.register(number, file=fd, all_threads=True, chain=True)


class Hanging(Protocol):
    """The little that is asked of a process that hangs."""

    pid: int
    pidfd: int

    async def wait(self) -> int: ...


async def hang_dump(process: Hanging) -> str | None:
    """Ask a process that hangs to end; return where its threads stood, None if it cannot answer."""
    file = _file_of(process.pid)
    if file is None:
        return None
    try:
        with contextlib.suppress(OSError, TimeoutError):
            signal_pidfd(process.pidfd, _dump_signal())
            async with asyncio.timeout(DUMP_SECONDS):
                await process.wait()
        return os.pread(file, _MOST_BYTES, 0).decode(errors="replace") or None
    finally:
        os.close(file)


def _file_of(pid: int) -> int | None:
    """Open the file of a process that lives; its end takes the name away."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _FILE in os.readlink(f"{folder}/{name}"):
                return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    return None
