"""Being a user that has no other processes.

This file is about ``become_nobody``, for what root is exempt from.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CAPABILITIES = (1, 2)  # to read every file, as the interpreter may be where only root may look
_VERSION_3 = 0x20080522
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT = 4, 8, 47
_AMBIENT_RAISE = 2


def become_nobody() -> int:
    """Give up root for a user that nobody else is; return its number."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> None:
        if getattr(libc, function)(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), function)

    user = 1_000_000 + os.getpid()
    kept = sum(1 << number for number in _CAPABILITIES)
    os.setgroups([])
    call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    header = struct.pack("2I", _VERSION_3, 0)
    call("capset", header, struct.pack("6I", kept, kept, kept, 0, 0, 0))
    for number in _CAPABILITIES:
        # Programs that are executed keep them.
        call("prctl", _PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0)
    call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    return user


def threads_of(user: int) -> int:
    """Count the threads of all processes of a user."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass  # it has ended meanwhile
    return count
