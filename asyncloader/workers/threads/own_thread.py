"""What is around the user's code in a worker that is a thread.

This file is about ``OwnThread``: the process's random generators are everybody's, so such a worker
has generators of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncloader.generators import OwnGenerators
from asyncloader.system import keep_freed_memory
from asyncloader.worker_info import WorkerInfo, set_worker_here
from asyncloader.workers.process.setup import when_imported
from asyncloader.workers.process.torch_workers import answer_torch


class OwnThread:
    """A thread of a process that does other things too."""

    def __init__(self) -> None:
        self.generators = OwnGenerators()

    def settle(self, info: WorkerInfo) -> None:
        set_worker_here(info, self.generators)
        # For the whole process: what a large item leaves behind is to become the next one.
        keep_freed_memory()
        when_imported("torch", lambda _: answer_torch())

    def seed(self, seeds: Sequence[int]) -> None:
        self.generators.seed(seeds)
