"""The machine and the versions that the numbers are of."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime

from tests.benchmarks.environments import ROOT

PACKAGES = ["torch", "uvloop", "numpy", "pillow", "torchdata", "spdl-core", "grain", "webdataset"]

NOT_MEASURED = """\
What this does not measure: copies to a device; disks and networks other than loopback;
more cores than this machine has; what other programs on the machine do at the same time;
first epochs (each case warms up, but for W6); memory bandwidth taken from others; peers in
settings that their documentation does not name. A number stands for the machine, a ratio of
the same round for the programs."""


def facts() -> dict[str, str]:
    """Return what one has to know of the machine, in the order of the header."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}, {_cpu()}",
        "load average": _load(),
        "memory": f"{_memory() >> 30} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "loops": "asyncio, and uvloop where a case says so",
        **{package: _version(package) for package in PACKAGES},
    }


def _load() -> str:
    load = os.getloadavg()[0]
    busy = load > (os.cpu_count() or 1) / 2
    return f"{load:.1f}{': busy, so that not even ratios are worth much' if busy else ''}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
