"""What a test may leave behind: nothing.

This file is about counting what this process holds of the system, before and
after. It only reports what is left; others share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from asyncloader.runtime import new_event_loop
from tests.eyes import PROC, facts_of, name_of, parent_of

#: What the system calls a worker process, or one that deals.
WORKER = re.compile(r"asyncloader (w\d|dis)")

_MOMENT_SECONDS = 10.0


@dataclass(frozen=True)
class Belongings:
    """What is held at one moment: things that can be counted, in words."""

    fds: Counter[str]
    threads: Counter[str]
    tasks: Counter[str]
    processes: Counter[str]
    shared_memory: Counter[str]

    @classmethod
    def now(cls) -> Belongings:
        gc.collect()
        fds = Counter(_fds())
        return cls(
            fds=fds,
            threads=Counter(f"thread {each.name}" for each in threading.enumerate()),
            tasks=Counter(_tasks()),
            processes=Counter(f"process {pid}: {what}" for pid, what in descendants().items()),
            shared_memory=Counter(_maps()),
        )

    def beyond(self, before: Belongings) -> list[str]:
        """What is held here and was not before."""
        pairs = zip(vars(self).values(), vars(before).values(), strict=True)
        return sorted(text for now, then in pairs for text in (now - then).elements())


@contextlib.contextmanager
def leaves_nothing() -> Iterator[None]:
    """Fail with a list of the fds, threads, tasks, processes and memfds that the block left."""
    _open_what_stays()
    before = Belongings.now()
    yield
    left = left_since(before)
    assert not left, "left behind:\n" + "\n".join(left)


@functools.cache
def _open_what_stays() -> None:
    # The first loop of uvloop makes a pipe for signals, which is the process' from then on.
    new_event_loop().close()


def left_since(before: Belongings) -> list[str]:
    """What is held now and was not before, given a moment for what is at its end."""
    # A thread's last deed is to say that it is done: it lives on for a moment after that,
    # and on a busy machine the moment is long.
    end = time.monotonic() + _MOMENT_SECONDS
    for thread in threading.enumerate():
        if f"thread {thread.name}" not in before.threads:
            thread.join(max(0.0, end - time.monotonic()))
    left = Belongings.now().beyond(before)
    while any(map(_goes_by_itself, left)) and time.monotonic() < end:
        time.sleep(0.01)
        left = Belongings.now().beyond(before)
    return left


def _goes_by_itself(line: str) -> bool:
    # A process that is dead waits for the one that started it, as long as that is kept waiting.
    # The spawner's thread, which stays, looks whether it may fork, also for a loader that is gone.
    return line.endswith(" (Z)") or line.startswith(f"fd to {PROC}/")


def descendants(root: int | None = None) -> dict[int, str]:
    """The processes, zombies among them, that descend from ``root`` (by default this one)."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir(PROC)):
        with contextlib.suppress(OSError):
            parents[int(name)] = parent_of(int(name))
    found: dict[int, str] = {}
    ancestors = {os.getpid() if root is None else root}
    while ancestors:
        ancestors = {pid for pid, parent in parents.items() if parent in ancestors}
        for pid in ancestors:
            with contextlib.suppress(OSError):
                found[pid] = _name_and_state(pid)
    return found


def worker_processes() -> list[str]:
    """The names of the worker processes, and of those that deal, which this process has alive."""
    # The dead are buried by their template, when it comes to that; leaves_nothing looks at them.
    names = descendants().values()
    return [name for name in names if WORKER.match(name) and not name.endswith("(Z)")]


def _name_and_state(pid: int) -> str:
    return f"{name_of(pid)} ({'Z' if facts_of(pid)[0] == 'Z' else 'alive'})"


def _fds() -> Iterator[str]:
    for name in os.listdir(f"{PROC}/self/fd"):
        # The listing's own descriptor is gone.
        with contextlib.suppress(OSError):
            yield f"fd to {os.readlink(f'{PROC}/self/fd/{name}')}"


def _maps() -> Iterator[str]:
    with open(f"{PROC}/self/maps", errors="replace") as file:
        for line in file:
            if "/dev/shm/" in line or "(deleted)" in line:
                yield f"mapping {line.split(maxsplit=5)[-1].strip()}"


def _tasks() -> Iterator[str]:
    with contextlib.suppress(RuntimeError):
        for task in asyncio.all_tasks():
            yield f"task {task.get_name()}: {task.get_coro()}"
