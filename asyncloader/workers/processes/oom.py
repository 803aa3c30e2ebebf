"""Whether the system killed somebody for lack of memory.

This file is about the counter that the kernel keeps of such kills in the control
group of this process and of its children. It cannot say who was killed, so it makes
a hint and no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")

HINT = (
    "; the system has killed for lack of memory meanwhile: use fewer workers, smaller batches or"
    " a smaller prefetch_bytes, or raise the container's memory limit"
)


def oom_kills(groups: Path = _GROUPS, root: Path = _ROOT) -> int:
    """Return how many processes of this control group were killed so; 0 where nobody counts."""
    return max((_count_in(file) for file in _counters(groups, root)), default=0)


def _counters(groups: Path, root: Path) -> Iterator[Path]:
    try:
        lines = os.fsdecode(groups.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the path may be that of the world outside, and the root the group's own.
        for folder in (path.lstrip("/"), ""):
            if not controllers:
                yield root / folder / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / folder / "memory.oom_control"


def _count_in(file: Path) -> int:
    try:
        words = file.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0
