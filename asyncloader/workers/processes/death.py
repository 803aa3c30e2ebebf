"""A worker's death, in words.

This file is about what an exit code says of how a process ended, and whether a lack of
memory may have been the reason.
"""

from __future__ import annotations

import signal

from asyncloader.workers.processes.oom import HINT


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
