"""A command that runs a module where Linux's own calls are refused.

    python -m tests.without_linux pytest tests/faults

This file is about taking away what a Mac has not: the kernel refuses memfds, pidfds, eventfds and
prctl to the module and to all processes that it starts, ``/proc`` has nothing of processes, and
``/dev/shm`` takes nothing. Tests themselves look at processes through a copy of ``/proc`` elsewhere
(``tests/eyes.py``). The package goes the portable way, as with ``ASYNCLOADER_PORTABLE=1``.

Who may have no mounts of its own keeps ``/proc`` and ``/dev/shm``, and is told so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

#: The calls that are refused, by the numbers of each architecture.
REFUSED = {
    "x86_64": {
        "memfd_create": 319,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pidfd_getfd": 438,
        "eventfd": 284,
        "eventfd2": 290,
        "prctl": 157,
    },
    "aarch64": {
        "memfd_create": 279,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pidfd_getfd": 438,
        "eventfd2": 19,
        "prctl": 167,
    },
}
_SECCOMP = {"x86_64": 317, "aarch64": 277}

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    if not arguments:
        raise SystemExit(f"{(__doc__ or '').strip()}\n\nName the module to run.")
    os.environ["ASYNCLOADER_PORTABLE"] = "1"
    try:
        os.environ["ASYNCLOADER_TESTS_PROC"] = take_folders_away()
    except OSError as error:
        print(f"/proc and /dev/shm stay, for want of mounts: {error}", file=sys.stderr)  # noqa: T201
    refuse(REFUSED[platform.machine()].values())
    check_refusals()
    os.execv(sys.executable, [sys.executable, "-m", *arguments])


# Folders --------------------------------------------------------------------------------

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 0x4000, 1 << 18


def take_folders_away() -> str:
    """Cover /proc and /dev/shm, for this process and its children; return a copy of /proc."""
    _unshare()
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    eyes = tempfile.mkdtemp(prefix="tests-proc-")
    _mount("none", eyes, "tmpfs", 0)
    copy = f"{eyes}/proc"
    os.mkdir(copy)
    _mount("/proc", copy, None, _MS_BIND | _MS_REC)
    _mount("none", "/proc", "tmpfs", 0)
    # Some builds of torch complain where they cannot read of the processor.
    Path("/proc/cpuinfo").write_text(Path(copy, "cpuinfo").read_text(encoding="utf-8"))
    _mount("none", "/proc", None, _MS_REMOUNT | _MS_RDONLY)
    _mount("none", "/dev/shm", "tmpfs", _MS_RDONLY)
    return copy


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWNS) == 0:
        return
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    encoded = None if kind is None else kind.encode()
    done = _libc.mount(source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), None)
    _check(done, target)


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


# Calls ----------------------------------------------------------------------------------

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse(numbers: Iterable[int]) -> None:
    """Have the kernel answer system calls with ENOSYS, for this process and its children."""
    refused = list(numbers)
    code = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for left, number in zip(range(len(refused), 0, -1), refused, strict=True):
        code.append(struct.pack("HBBI", _JUMP_IF_EQUAL, left, 0, number))
    code.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    code.append(struct.pack("HBBI", _RETURN, 0, 0, _FAIL | errno.ENOSYS))
    memory = ctypes.create_string_buffer(b"".join(code))
    program = _Program(len(code), ctypes.addressof(memory))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    number = _SECCOMP[platform.machine()]
    _check(_libc.syscall(number, _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(program)), "seccomp")


def check_refusals() -> None:
    """Raise RuntimeError if something that should be refused is there."""
    calls: dict[str, Callable[[], object]] = {
        "memfd": lambda: os.memfd_create("x"),
        "pidfd": lambda: os.pidfd_open(os.getpid()),
        "eventfd": lambda: os.eventfd(0),
        "prctl": lambda: _check(_libc.prctl(15, b"x", 0, 0, 0), "prctl"),
    }
    if "ASYNCLOADER_TESTS_PROC" in os.environ:
        calls["/proc"] = lambda: os.stat("/proc/self")
        calls["/dev/shm"] = lambda: Path("/dev/shm/asyncloader-test").touch()
    for name, call in calls.items():
        with contextlib.suppress(OSError):
            call()
            raise RuntimeError(f"{name} is still there")


if __name__ == "__main__":
    main(sys.argv[1:])
