"""What a rate cost: the CPU time of a process and of all that it started.

This file is about ``Rate`` and ``cpu_seconds``. A loader that is fast because it keeps more
cores busy leaves fewer of them to the training.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path


class Rate(float):
    """How many a second, and the seconds of CPU that one took."""

    cpu: float

    def __new__(cls, rate: float, cpu: float) -> Rate:
        made = super().__new__(cls, rate)
        made.cpu = cpu
        return made

    def __truediv__(self, unit: float) -> Rate:
        """Return the same in a unit that is so many times as large."""
        return Rate(float(self) / unit, self.cpu * unit)


def cpu_seconds() -> float:
    """Return the CPU time of this process, of those below it, and of children that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in _descendants(os.getpid()):
        # It may have ended meanwhile.
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(_cpu_clock(pid))
    return seconds


def _cpu_clock(pid: int) -> int:
    # As clock_getcpuclockid(3) returns it, which Python does not have.
    return (~pid << 3) | 2


def _descendants(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from _descendants(child)


def seconds(number: float) -> str:
    """Return a time with three digits, in a unit that fits."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e-9:.3g} ns"
