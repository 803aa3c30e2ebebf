"""What a loader finds around it.

This file is about ``findings``: what this machine and this process offer, each with what
to do where it is too little.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Descriptors for the loader itself, and for each worker.
_FDS, _FDS_PER_WORKER = 64, 8

_CGROUP_QUOTAS = (
    Path("/sys/fs/cgroup/cpu.max"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its name, what it is, and what to do about it, if anything."""

    name: str
    what: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Look at everything that decides how well a loader can run here."""
    yield Finding("Python", f"{platform.python_version()} on {platform.system()}")
    yield _torch()
    yield _uvloop()
    yield _cores()
    yield _workers()
    yield _threads()
    yield from _descriptors()
    yield from _shared_memory()


def usable_cores() -> int:
    """Return how many cores this process may keep busy at the same time, at least 1."""
    quota = cgroup_cores()
    allowed = _allowed_cores()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_cores(files: tuple[Path, ...] = _CGROUP_QUOTAS) -> float | None:
    """Return how many cores a container may use, of the first file that says it."""
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


def _allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        return Finding("torch", "not installed", "pip install torch")
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return Finding(
            "torch", f"{version}; the graph does not import it, so workers start at once"
        )
    threads = torch.get_num_threads()
    advice = ""
    if threads > usable_cores():
        advice = f"more threads than cores: torch.set_num_threads({usable_cores()})"
    return Finding("torch", f"{version}, {threads} threads here, one in each worker", advice)


def _uvloop() -> Finding:
    version = _version("uvloop")
    if version is None:
        return Finding("uvloop", "not installed", "pip install uvloop, for a faster `for`")
    return Finding("uvloop", version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    what = f"{usable} usable" if usable == there else f"{usable} usable of {there}"
    advice = "workers will take turns with this process" if usable == 1 else ""
    return Finding("cores", what, advice)


def _workers() -> Finding:
    if sys.platform.startswith("linux"):
        return Finding("start method", "forked by a template process of our own")
    return Finding(
        "start method", "none", "worker processes need Linux; here the graph runs in-process"
    )


def _threads() -> Finding:
    others = [thread.name for thread in threading.enumerate() if not _is_ours(thread)]
    if not others:
        return Finding("threads", "none but the main one and ours")
    names = ", ".join(sorted(others))
    return Finding("threads", names, 'multiprocessing_context="fork" is refused while they run')


def _is_ours(thread: threading.Thread) -> bool:
    return thread is threading.main_thread() or thread.name.startswith("asyncloader")


def _descriptors() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS + _FDS_PER_WORKER * usable_cores()
    advice = f"ulimit -n {needed}, for as many workers as cores" if soft < needed else ""
    more = f" ({hard} by ulimit -n {hard})" if soft != hard else ""
    yield Finding("open files", f"at most {soft}{more}", advice)


def _shared_memory(folder: str = "/dev/shm") -> Iterator[Finding]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    yield Finding(folder, f"{usage.free >> 20:,} MiB free; asyncloader uses none of it")
