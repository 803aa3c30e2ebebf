"""What is around the user's code in a worker that is a thread.

This file is about ``OwnThread``: the process's random generators are everybody's, so such a worker
has generators of its own. What can be said for one thread alone is said as in a process: torch
computes in this thread, beside as many others as there are workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from asyncloader.datapipes.mapping import collate_in_own_memory
from asyncloader.datapipes.running.run_place import Home
from asyncloader.generators import OwnGenerators
from asyncloader.system import keep_freed_memory
from asyncloader.waiting import do_nothing
from asyncloader.worker_info import WorkerInfo, set_worker_here
from asyncloader.workers.process.setup import when_imported
from asyncloader.workers.process.torch_workers import answer_torch, data_set_here, data_set_of


class OwnThread:
    """A thread of a process that does other things too."""

    def __init__(self) -> None:
        self.generators = OwnGenerators()
        self._is_torch_settled = False
        #: Returns the home of the epoch that the items are for, while there is one.
        self.beyond: Callable[[], Home | None] = do_nothing

    def settle(self, info: WorkerInfo) -> None:
        set_worker_here(info, self.generators)
        # For the whole process: what a large item leaves behind is to become the next one.
        keep_freed_memory()
        when_imported("torch", _tell_torch)
        self._settle_torch()

    def know(self, ends: Sequence[Any]) -> None:
        data_set_here.set(data_set_of(ends, is_shared=True))

    def seed(self, seeds: Sequence[int]) -> None:
        self.generators.seed(seeds)
        # Somebody may have imported it since the last epoch.
        self._settle_torch()

    def _settle_torch(self) -> None:
        if not self._is_torch_settled and hasattr(sys.modules.get("torch"), "get_num_threads"):
            self._is_torch_settled = True
            _let_torch_have_this_thread()


def _tell_torch(torch: ModuleType) -> None:
    answer_torch()
    # Now that it knows of a worker, torch's default_collate would ask for shared memory.
    collate_in_own_memory()


def _let_torch_have_this_thread() -> None:
    """Let torch compute in the present thread alone when it is called here; not elsewhere."""
    import torch

    # Its first look at the number would set it for this thread anew.
    torch.get_num_threads()
    # Where torch was built without OpenMP it has one pool for all threads.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(torch._C.__file__).omp_set_num_threads(1)
