"""Holding on to a process by a file descriptor.

This file is about pidfds. A pid may be given to a stranger as soon as its
process is reaped; a pidfd never is, and it turns readable when the process dies,
which any event loop can wait for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys

from asyncloader.errors import WorkerStartupError

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
