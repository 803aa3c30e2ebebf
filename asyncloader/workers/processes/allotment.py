"""What a process may use of its machine.

This file is about ``Allotment``: the CPUs, the nice value and the limits of a loader, which
its children keep to. A child is not forked by the thread that was told of the first two, and
perhaps by a process that was started before any of them were changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

if sys.platform != "win32":
    import resource


@dataclass(frozen=True)
class Allotment:
    """How much of the machine a process may use, in values that any process can read."""

    cpus: frozenset[int]
    nice: int
    limits: dict[int, tuple[int, int]]

    @classmethod
    def present(cls) -> Allotment:
        """Return that of this process: of its main thread, where each thread has its own."""
        return cls(
            cpus=frozenset(os.sched_getaffinity(os.getpid())),
            nice=os.getpriority(os.PRIO_PROCESS, os.getpid()),
            limits={number: resource.getrlimit(number) for number in _limits()},
        )

    def take_on(self) -> None:
        """Make it that of this process and thread, as far as they may have so much."""
        # The CPUs may have been taken from both since.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.cpus)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        for number in self.limits:
            self._take_on(number)

    def take_on_processes(self) -> None:
        """Make the limit of processes and threads that of this process, as far as it may."""
        self._take_on(resource.RLIMIT_NPROC)

    def _take_on(self, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, self.limits[number])


def _limits() -> set[int]:
    return {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
