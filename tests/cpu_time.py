"""How much a family of processes computes.

This file is about ``share_of_a_core``, which tells a loader that waits from one that polls.
"""

from __future__ import annotations

import os
import time

from tests.leaks import descendants

#: A loader that polls does so for ever; on a crowded machine one that settles takes a while.
_TRIES = 50
_SECONDS = 0.6
_CPUCLOCK_SCHED = 2


def share_of_a_core(enough: float) -> float:
    """Return how much of a core this process and its descendants use while nothing happens.

    That is the least of several tries, or the first that is less than ``enough``: buffers
    may still be filling, and garbage be collected.
    """
    least = 1.0
    for _ in range(_TRIES):
        least = min(least, _share())
        if least < enough:
            break
    return least


def _share() -> float:
    family = [os.getpid(), *descendants()]
    before, began = cpu_seconds(family), time.monotonic()
    time.sleep(_SECONDS)
    return (cpu_seconds(family) - before) / (time.monotonic() - began)


def cpu_seconds(family: list[int]) -> float:
    """Return for how long these processes have computed."""
    # The clock of a process, as clock_getcpuclockid() gives it, counts nanoseconds.
    return sum(time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) for pid in family)
