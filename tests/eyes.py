"""How tests look at processes.

This file is about looking at a process from outside, in ``/proc``, which the code under test may be
without (``python -m tests.without_linux``).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from asyncloader import system

#: Where the system shows its processes to tests.
PROC = os.environ.get("ASYNCLOADER_TESTS_PROC", "/proc")


@dataclass(frozen=True)
class Seen:
    """A process that was seen alive. Its pid may be given to another, its beginning is its own."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> Seen:
        return cls(pid, facts_of(pid)[19])

    def is_dead(self) -> bool:
        try:
            facts = facts_of(self.pid)
        except OSError:
            return True
        # Its first thread may be dead while another still holds what the process has open.
        has_others = int(facts[17]) > 1
        return (facts[0] in "ZX" and not has_others) or facts[19] != self.began

    def dies_within(self, seconds: float) -> bool:
        """Wait for the death, which the system tells only some of us."""
        end = time.monotonic() + seconds
        while not self.is_dead():
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True


def alive_after(family: dict[Seen, str], seconds: float) -> list[str]:
    """Wait until all are dead; return the names of those that are not in time."""
    end = time.monotonic() + seconds
    return [what for each, what in family.items() if not each.dies_within(end - time.monotonic())]


def facts_of(pid: int) -> list[str]:
    """What the system tells of a process behind its name: state, parent, and so on."""
    return stat_of(pid)[1]


def parent_of(pid: int) -> int:
    """Return the parent of a process; quickly, since who looks for children asks every process."""
    fd = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split(maxsplit=2)[1])
    finally:
        os.close(fd)


def stat_of(pid: int) -> tuple[str, list[str]]:
    """Return the name of a process and what the system tells besides."""
    # The kernel cuts off the name of a process after 15 bytes, also within a character.
    with open(f"{PROC}/{pid}/stat", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    return head.partition("(")[2], tail.split()


def name_of(pid: int) -> str:
    """Return the name of a process, by which tests know ours; also where they cannot show one."""
    name, facts = stat_of(pid)
    if not system.PORTABLE:
        return name
    own, parents = _command(pid), _command(int(facts[1]))
    if TEMPLATE in own:
        return "asyncloader tem" if own != parents else "asyncloader w0"
    is_forked = bool(own) and own == parents
    return "asyncloader w0" if is_forked or b"multiprocessing.spawn" in own else name


TEMPLATE = b"template_process import serve"


def _command(pid: int) -> bytes:
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
