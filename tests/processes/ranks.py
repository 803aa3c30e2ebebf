"""Ranks of a distributed run, each in a process of its own.

This file is about playing scenes on ranks: a scene is a function that runs on every rank
and returns what it found there, as plain data. All scenes of a module are played in one
run, since starting a rank takes seconds. A run that does not end in time fails with the
stacks of its threads.

    python -m tests.processes.ranks MODULE RANK SIZE FOLDER
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import inspect
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120

Scene = Callable[[], Any]
_scenes: list[Scene] = []


def scene(function: Scene) -> Scene:
    """Have a function played on every rank, after those that were given before it."""
    _scenes.append(function)
    return function


class Played:
    """What the scenes of a run found, by scene and rank."""

    def __init__(self, folder: Path, outputs: list[str], exitcodes: list[int]) -> None:
        self.outputs = outputs
        self.exitcodes = exitcodes
        self._found = [_lines(folder / f"found-{rank}") for rank in range(len(outputs))]

    def found(self, name: str, *, without: int | None = None) -> list[Any]:
        """Return what a scene found on each rank; fail if it failed on one."""
        ranks = [rank for rank in range(len(self.outputs)) if rank != without]
        missing = {"failed": "it was never played\n"}
        by_rank = {rank: self._found[rank].get(name, missing) for rank in ranks}
        failed = [
            f"on rank {rank}: {found['failed']}{self.outputs[rank]}"
            for rank, found in by_rank.items()
            if "failed" in found
        ]
        assert not failed, "\n".join(failed)
        return [found["found"] for found in by_rank.values()]


def _lines(path: Path) -> dict[str, Any]:
    text = path.read_text() if path.exists() else ""
    return dict(map(json.loads, text.splitlines()))


def play(module: str, size: int, folder: Path) -> Played:
    """Play all scenes of a module on so many ranks."""
    ranks = [_start(module, rank, size, folder) for rank in range(size)]
    try:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS + 10)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return Played(folder, outputs, [rank.returncode for rank in ranks])


def _start(module: str, rank: int, size: int, folder: Path) -> subprocess.Popen[str]:
    told = [module, str(rank), str(size), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", __name__, *told],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )


def main(module: str, rank: int, size: int, folder: str) -> None:
    """Be a rank: play the scenes one by one, all ranks the same at a time."""
    import torch.distributed as dist

    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    importlib.import_module(module)
    with open(f"{folder}/found-{rank}", "w", buffering=1) as found:
        for each in _scenes:
            found.write(json.dumps([each.__name__, _played(each)]) + "\n")
            # The last scene may be one that not all ranks survive.
            if each is not _scenes[-1]:
                dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


def _played(each: Scene) -> dict[str, Any]:
    try:
        if inspect.iscoroutinefunction(each):
            return {"found": asyncio.run(each(), debug=True)}
        return {"found": each()}
    except Exception:  # noqa: BLE001 - the test that asks for it fails
        return {"failed": traceback.format_exc()}


if __name__ == "__main__":
    # Scenes register with the module of this name, and not with __main__.
    importlib.import_module("tests.processes.ranks").main(
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    )
