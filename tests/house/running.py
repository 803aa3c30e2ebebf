"""What an item and an epoch pass through, counted while they run.

This file is about runs of a checkout in processes of its own, in which a profile hook records
every function of asyncloader's that is entered, in every thread. The graph is
``IterableWrapper(range(n)).shuffle().sharding_filter().map(function)``.

A *way* is what is entered between item n and item n + 1, in the middle of an epoch of one
worker. On the worker's side it begins and ends in the mapped function, on the loader's side in
the body of the loop; it is the same cycle wherever it is cut. Each item takes 20 ms and
``worker_prefetch_cnt`` is 1, so that each has a frame of its own, a place that goes with it for
states, and a grant that answers it. What a clock starts now and then, as statistics do, is no
part of the way: a function belongs to it if two of three items passed it.
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_INSIDE = Path(__file__).parent / "inside"
_TIMEOUT = 120.0

#: Items of a way's epoch that are not counted: its beginning and its end.
_FIRST, _LAST = 5, 2


class Entry(NamedTuple):
    """A function that was entered, and the file of asyncloader's that called it, or ""."""

    file: str
    function: str
    caller: str


Window = Sequence[Entry]


@dataclass(frozen=True)
class Way:
    """What one item passes on one side."""

    functions: frozenset[tuple[str, str]]
    #: How many calls lead from a function into one of another file, for one item.
    jumps: float

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {file for file, _ in self.functions}


@dataclass(frozen=True)
class Ways:
    """The ways of an item on both sides, and the calls of one epoch of 100 tiny items."""

    worker: Way
    loader: Way
    async_loader: Way
    epoch_in_loader: float
    epoch_in_worker: float
    #: What ``load_state_dict`` passes, from the first function to the last.
    resume: Way


def run(root: Path) -> Ways:
    """Measure a checkout, which may be of another version than this file."""
    loader, workers = _run(root, "items")
    async_loader, _ = _run(root, "async_items")
    epochs, epochs_in_workers = _run(root, "epochs")
    resume, _ = _run(root, "resume")
    return Ways(
        worker=_way(workers[0]),
        loader=_way(loader),
        async_loader=_way(async_loader),
        epoch_in_loader=_calls(epochs, 100),
        epoch_in_worker=statistics.mean(_calls(each, 50) for each in epochs_in_workers),
        resume=_walk(resume[-1]),
    )


def _run(root: Path, job: str) -> tuple[list[Window], list[list[Window]]]:
    """Return the windows of the loader's process and those of each worker's."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, _INSIDE / "job.py", job],
            env=os.environ
            | {
                # The first folder has the recorder, which every process imports when it starts.
                "PYTHONPATH": os.pathsep.join([str(_INSIDE), str(root)]),
                "HOUSE_PACKAGE": str(root / "asyncloader"),
                "HOUSE_FOLDER": folder,
            },
            cwd=folder,
            stdout=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=True,
        )
        told = [each.read_text() for each in sorted(Path(folder).glob("*.json"))]
    return _windows(done.stdout), [_windows(each) for each in told]


def _windows(written: str | bytes) -> list[Window]:
    return [[Entry(*entry) for entry in window] for window in json.loads(written)]


def _way(windows: Sequence[Window]) -> Way:
    steady = windows[_FIRST:-_LAST]
    passed = collections.Counter(
        function for window in steady for function in {entry[:2] for entry in window}
    )
    functions = frozenset(each for each, count in passed.items() if 3 * count >= 2 * len(steady))
    jumps = sum(
        entry.file != entry.caller and entry[:2] in functions
        for window in steady
        for entry in window
    )
    return Way(functions, jumps / len(steady))


def _walk(window: Window) -> Way:
    """Return all that was entered, once."""
    functions = frozenset(entry[:2] for entry in window)
    return Way(functions, sum(entry.file != entry.caller for entry in window))


def _calls(windows: Sequence[Window], items: int) -> float:
    """Return the calls from an epoch's first item to that of the next; not of the first epoch."""
    counts = [len(window) for window in windows]
    epochs = [sum(counts[each : each + items]) for each in range(items, len(counts), items)]
    return statistics.median(epochs[:-1])
