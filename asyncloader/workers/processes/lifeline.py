"""Dying with those one works for.

This file is about what binds a child process to its parent and to the loader.
Two ties are needed. The kernel's parent-death signal reaches a process that is
stopped or keeps the GIL, but it only knows the parent. The lifeline thread knows
the loader, whoever the parent is, but it needs the GIL to act.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import NoReturn

from asyncloader.runtime import start_thread
from asyncloader.workers.processes.pidfd import is_readable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NAME_BYTES = 15


def die_with_parent(parent: int) -> None:
    """Be SIGKILLed when the thread of ``parent`` that created this process ends.

    If the parent has gone already, the process ends here.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that died before the call above sends nothing any more.
    if os.getppid() != parent:
        end_now()


def die_with_loader(loader_fd: int) -> None:
    """End this process, from a thread, when the process behind the pidfd is gone."""
    thread = threading.Thread(
        target=_outlive_nobody, args=(loader_fd,), name="asyncloader lifeline", daemon=True
    )
    start_thread(thread)


def show_name(name: str) -> None:
    """Let top, ps and py-spy show the name, of which the kernel keeps 15 bytes.

    ``asyncloader worker 12`` is shown as ``asyncloader w12``.
    """
    if sys.platform == "linux":
        shown = name.replace(" worker ", " w").encode()[:_NAME_BYTES]
        ctypes.CDLL(None).prctl(_PR_SET_NAME, shown, 0, 0, 0)


def end_now() -> NoReturn:
    """End without running, flushing or waiting for anything."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _outlive_nobody(loader_fd: int) -> None:
    while not is_readable(loader_fd, timeout=3600.0):
        pass
    end_now()
