"""Main functions of child processes, for tests."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings

from tests.eyes import PROC, name_of
from tests.processes.forks import fork


def echo(sock: socket.socket) -> None:
    """Send back what comes, until the other end is closed."""
    while data := sock.recv(1 << 16):
        sock.sendall(data)


def leave(sock: socket.socket, how: str, what: object) -> None:
    """End in one of the ways that a process can, when told to."""
    sock.recv(1)
    match how:
        case "exit":
            sys.exit(what)  # type: ignore[arg-type]
        case "_exit":
            os._exit(int(str(what)))
        case "signal":
            signal.raise_signal(signal.Signals(int(str(what))))
        case "raise":
            raise RuntimeError(what)
        case "return":
            return


def be_busy(sock: socket.socket, how: str) -> None:
    """Say "b", then do one thing for longer than any test."""
    sock.sendall(b"b")
    match how:
        case "idle":
            sock.recv(1)
            time.sleep(1000)
        case "python":
            sum(1 for _ in iter(int, 1))
        case "sleeping":
            time.sleep(1000)
        case "holding the GIL":
            ctypes.PyDLL(None).sleep(1000)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "writing":
            sock.sendall(bytes(1 << 26))


def leave_a_child(sock: socket.socket) -> None:
    """Fork a child that lives on with all that it inherits, send its pid, and wait."""
    child = fork()
    if child == 0:
        time.sleep(1000)
    sock.sendall(b"%d\n" % child)
    time.sleep(1000)


def describe(sock: socket.socket) -> None:
    """Send what this process finds itself to be, and say it on stdout and stderr, too."""
    sys.stdout.write(f"to stdout {os.getpid()}\n")
    sys.stderr.write(f"to stderr {os.getpid()}\n")
    sock.sendall(json.dumps(_description(sock)).encode() + b"\n")
    sock.recv(1)


def tell_allotment(sock: socket.socket) -> None:
    """Send which CPUs this process may use, its nice value, and some of its limits."""
    limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA)
    found = (
        sorted(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
        *map(resource.getrlimit, limits),
    )
    sock.sendall(json.dumps(found).encode() + b"\n")
    sock.recv(1)


def _description(sock: socket.socket) -> dict[str, object]:
    comm = name_of(os.getpid())
    return {
        "pid": os.getpid(),
        "comm": comm,
        "cwd": os.getcwd(),
        "path": sys.path,
        "argv": sys.argv,
        "greeting": os.environ.get("GREETING"),
        "umask": os.umask(0),
        "hour of the epoch": time.localtime(0).tm_hour,
        "recursion limit": sys.getrecursionlimit(),
        "log level": logging.root.level,
        "disabled logs": logging.root.manager.disable,
        "threads": [thread.name for thread in threading.enumerate()],
        "loop": asyncio._get_running_loop() is not None,
        "gc": gc.isenabled(),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "sigterm_default": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "main_imported": any(
            getattr(sys.modules.get(name), "__file__", None) == os.environ.get("SCRIPT")
            for name in ("__main__", "__mp_main__")
        ),
        "torch": "torch" in sys.modules,
        "inheritable": [fd for fd in (sock.fileno(),) if os.get_inheritable(fd)],
        "sockets": sum(
            os.path.exists(path) and "socket:" in os.readlink(path)
            for path in (f"{PROC}/self/fd/{name}" for name in os.listdir(f"{PROC}/self/fd"))
            if os.path.islink(path)
        ),
        "ignores_user_warnings": any(
            entry[0] == "ignore" and entry[2] is UserWarning for entry in warnings.filters
        ),
        "mp_child": multiprocessing.parent_process() is not None,
    }


def run_asyncio(sock: socket.socket) -> None:
    """Answer from within an event loop of one's own."""

    async def answer() -> None:
        await asyncio.sleep(0)
        sock.sendall(b"from a loop")

    asyncio.run(answer())
    sock.recv(1)


def list_modules(sock: socket.socket) -> None:
    """Send the names of the modules that are imported when a child begins."""
    sock.sendall(json.dumps(sorted(sys.modules)).encode() + b"\n")
    sock.recv(1)
