"""Ranks of a distributed run, each in a process of its own.

This file is about a company of ranks that plays scenes: a scene is a function that runs on
every rank and returns what it found there, as plain data. The processes are started once
and play one scene after the other. They are forked from an interpreter that has imported
torch, which takes seconds. A scene that does not end in time fails with the stacks of its
threads.

    test ── the scene's name ──▶ stdin of each rank
    test ◀── what it found ── stdout
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.processes.scripts import ROOT
from tests.processes.stage import ForkedProcess, start_forked

LIMIT_SECONDS = 240
#: What a rank need not import itself.
IMPORTED = ("torch", "numpy", "uvloop", "asyncloader.datapipes.iter", "tests.samples")

Scene = Callable[..., Any]
_scenes: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    """Let a function be played on ranks."""
    _scenes[function.__name__] = function
    return function


# The test's side ------------------------------------------------------------------------


class Company:
    """Processes that are the ranks of one run after the other; to be entered."""

    def __init__(self, module: str, folder: Path) -> None:
        self.module = module
        self.folder = folder
        self._errors = folder / "errors"
        #: Those that live; the first are the ranks of the present run, in this order.
        self._processes: list[ForkedProcess] = []
        self._runs = 0
        self._size = 0

    def __enter__(self) -> Company:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes:
            process.end()

    def start(self, size: int) -> None:
        """Start so many processes, so that all of them make themselves ready at once."""
        self._processes += [self._started() for _ in range(len(self._processes), size)]

    def play(self, name: str, size: int, *given: Any, ends: int | None = None) -> list[Any]:
        """Return what a scene finds on each rank of a run of this size.

        Fail if it fails on one. The rank ``ends`` is killed in it or stopped, and finds None.
        """
        self._gather(size)
        store = str(self.folder / f"store-{self._runs}")
        ranks = self._processes[:size]
        for rank, process in enumerate(ranks):
            run = {"rank": rank, "size": size, "store": store}
            _tell(process, {"scene": name, "given": given, "run": run})
        answers = [
            {"found": None} if rank == ends else self._answer(rank, process)
            for rank, process in enumerate(ranks)
        ]
        if ends is not None:
            self._end(ranks[ends])
        failed = [answer["failed"] for answer in answers if "failed" in answer]
        assert not failed, "\n".join(failed)
        return [answer["found"] for answer in answers]

    def _gather(self, size: int) -> None:
        """Let the ranks be those of a run of this size, a new one if need be."""
        self.start(size)
        if size != self._size:
            self._runs, self._size = self._runs + 1, size

    def _end(self, process: ForkedProcess) -> None:
        """Go on without a process, in another run."""
        process.end()
        self._processes.remove(process)
        self._size = 0

    def _started(self) -> ForkedProcess:
        call = f"{main.__module__}:{main.__name__}"
        settings = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with contextlib.chdir(ROOT), open(self._errors, "a") as errors:
            return start_forked(
                call, self.module, stderr=errors, imported=IMPORTED, environ=settings
            )

    def _answer(self, rank: int, process: ForkedProcess) -> dict[str, Any]:
        line = process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
        else:
            answer = {"failed": f"it ended with exit code {process.wait()}\n"}
            self._end(process)
        if "failed" in answer:
            answer["failed"] = f"on rank {rank}: {answer['failed']}{self._errors.read_text()}"
        return answer


def _tell(process: ForkedProcess, command: dict[str, Any]) -> None:
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()


# The ranks' side ------------------------------------------------------------------------


def main(module: str) -> None:
    """Be a rank: play scenes as long as there are any."""
    # Nothing but answers goes the way of the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    importlib.import_module(module)
    run = Run()
    for line in sys.stdin:
        command = json.loads(line)
        faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
        run.enter(**command["run"])
        answers.write(json.dumps(_played(_scenes[command["scene"]], command["given"])) + "\n")
        faulthandler.cancel_dump_traceback_later()


class Run:
    """The distributed run that this process takes part in."""

    def __init__(self) -> None:
        self.store = ""

    def enter(self, store: str, rank: int, size: int) -> None:
        """Take part in the run of this store, if that is another one than now."""
        import torch.distributed as dist

        if store == self.store:
            return
        if self.store:
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        self.store = store
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )


def _played(each: Scene, given: list[Any]) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            if inspect.iscoroutinefunction(each):
                return {"found": asyncio.run(each(*given), debug=True)}
            return {"found": each(*given)}
    except Exception:  # noqa: BLE001 - the test that asks for it fails
        return {"failed": traceback.format_exc()}
