"""What this machine, or this container, lets a program use.

This file is about cores and memory, with the limits of a container; and about what another
process has of its own.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from asyncloader import system

_CGROUP_QUOTAS = (
    Path("/sys/fs/cgroup/cpu.max"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
)
#: The limit of a container's memory, and what it uses of that.
_CGROUP_MEMORY = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def usable_cores() -> int:
    """Return how many cores this process may use at the same time, at least 1."""
    quota = cgroup_cores()
    allowed = _allowed_cores()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_cores(files: tuple[Path, ...] = _CGROUP_QUOTAS) -> float | None:
    """Return how many cores this container may use, from the first file that says so."""
    for file in files:
        try:
            quota, *period = file.read_text().split()
            if not period:
                period = file.with_name("cpu.cfs_period_us").read_text().split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal():
            return int(quota) / int(period[0])
    return None


def available_memory(folder: Path = system.PROC) -> int | None:
    """Return how many bytes a program may still use, or None if the system does not say."""
    free = _kibibytes(folder / "meminfo", "MemAvailable:")
    if free is None:
        return None
    for most, used in _CGROUP_MEMORY:
        try:
            free = min(free, max(0, int(most.read_text()) - int(used.read_text())))
        except (OSError, ValueError):
            continue
    return free


def private_memory(pid: int, folder: Path = system.PROC) -> int | None:
    """Return how many bytes a process shares with no other, or None if that is not known."""
    file = folder / str(pid) / "smaps_rollup"
    parts = [_kibibytes(file, f"Private_{kind}:") for kind in ("Clean", "Dirty")]
    return None if None in parts else sum(filter(None, parts))


def anonymous_memory() -> int | None:
    """Return how much memory this process has that is of no file, or None if not known."""
    return _kibibytes(system.PROC / "self/status", "RssAnon:")


def _kibibytes(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
    except (OSError, ValueError, StopIteration):
        return None


def _allowed_cores() -> int:
    return len(system.allowed_cpus()) or os.cpu_count() or 1
