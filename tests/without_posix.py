"""A process that has no calls of POSIX, as far as the package can tell, and thinks it is Windows.

This file is about what of the interpreter's modules is not there on Windows. It is no test of
Windows: it finds what the package would use that is missing there. Run it in a process of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import mmap
import os
import select
import signal
import socket
import sys
import time
from typing import Any

#: Imported while all is there: they are not what is looked at.
OTHERS = (
    "asyncio",
    "concurrent.futures",
    "ctypes.util",
    "logging.handlers",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "multiprocessing.util",
    "subprocess",
    "tempfile",
    "aiohttp",
    "cloudpickle",
    "numpy",
    "obstore",
    "PIL.Image",
    "pyarrow.parquet",
    "torch",
    "torch.distributed",
    "tqdm",
)

MISSING_MODULES = ("fcntl", "resource", "_posixshmem", "uvloop", "pwd", "grp")

#: By module, how the names begin that are not there.
MISSING = {
    os: (
        "P_PIDFD CLD_ MFD_ O_CLOEXEC O_NONBLOCK PRIO_ RTLD_ SCHED_ WNOHANG environb eventfd fork"
        " fchmod getegid geteuid getgid getpriority getres getuid killpg memfd nice pidfd posix_"
        " pread pwrite register_at_fork sched_ set_blocking setpriority sysconf uname wait3 waitid"
    ),
    signal: "SIGCHLD SIGHUP SIGKILL SIGRT SIGSTOP SIGUSR SIG_BLOCK SIG_SETMASK pidfd pthread",
    socket: "CMSG MSG_CMSG MSG_DONTWAIT SCM_ SO_PASSCRED SO_PEERCRED recv_fds send_fds",
    select: "epoll poll",
    mmap: "MADV_ MAP_ PROT_",
    time: "tzset",
}


def pretend() -> None:
    """Make this process such a one."""
    for name in OTHERS:
        importlib.import_module(name)
    # From Python 3.14 on asyncio chooses its kind of loop when the first is made.
    asyncio.new_event_loop().close()
    for module, beginnings in MISSING.items():
        for name in dir(module):
            if name.startswith(tuple(beginnings.split())):
                delattr(module, name)
    for name in MISSING_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    real = ctypes.CDLL

    def refuse_none(name: Any, *args: Any, **settings: Any) -> Any:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return real(name, *args, **settings)

    ctypes.CDLL = refuse_none  # type: ignore[assignment, misc]
    sys.platform = "win32"
