"""How a process ended.

This file is about the exit code of a process that nobody has reaped, and about what an exit
code says, and whether a lack of memory may have been the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from asyncloader.workers.processes.oom import HINT


def exitcode_of_unreaped(pid: int) -> int | None:
    """Return the exit code of a dead process, whosever child it is; None if that is not known.

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
    hint = HINT if exitcode == -signal.SIGKILL and memory_was_short else ""
    return f"was killed by {_signal_name(-exitcode)}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
