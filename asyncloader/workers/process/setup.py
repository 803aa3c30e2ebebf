"""What a worker's process is like for the user's code in it.

This file is about the global random generators, torch's threads, the allocator, and what tells
other libraries that this is a worker. What concerns a module is done now, or by ``when_imported``
as soon as somebody imports it: a worker that needs no torch never imports it, and one that imports
it in the middle of an epoch finds it seeded and set up.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from asyncloader.system import keep_freed_memory
from asyncloader.worker_info import WorkerInfo, is_hidden, set_worker_info


def become_worker(info: WorkerInfo) -> None:
    """Make ``get_worker_info`` answer, ours and torch's, and give torch one thread."""
    set_worker_info(info)
    keep_freed_memory()
    when_imported("torch", partial(_settle_torch, info, None))


def seed_globals(info: WorkerInfo | None, seeds: Sequence[int]) -> None:
    """Seed random, torch and numpy for an epoch, whether imported already or later.

    Each has one of the three seeds.
    """
    random_seed, torch_seed, numpy_seed = seeds
    random.seed(random_seed)
    when_imported("torch", partial(_settle_torch, info, torch_seed))
    # numpy itself imports it only when somebody looks at it.
    when_imported("numpy.random", partial(_seed_numpy, numpy_seed >> 32))


def _settle_torch(info: WorkerInfo | None, seed: int | None, torch: ModuleType) -> None:
    torch.set_num_threads(1)
    if seed is not None:
        _seed_torch(torch, seed)
    if info is not None:
        _tell_torch(info, seed)


def _seed_torch(torch: ModuleType, seed: int) -> None:
    """Do what ``torch.manual_seed`` does."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or accelerator.current_accelerator() is not None:
        torch.manual_seed(seed)
    else:
        # That writes down a stack for each kind of device, also where torch was built for none:
        # 0.2 ms, and 3 ms in a new process.
        torch.default_generator.manual_seed(seed)


def _tell_torch(info: WorkerInfo, seed: int | None) -> None:
    # torch's own get_worker_info reads this variable; other libraries shard by it.
    from torch.utils.data._utils import worker as torch_worker

    from asyncloader.datapipes.mapping import collate_in_own_memory

    worker: Any = torch_worker

    facts: dict[str, Any] = {
        "id": info.worker_id,
        "num_workers": info.num_workers,
        "seed": seed or 0,
        "dataset": None,
    }
    worker._worker_info = worker.WorkerInfo(**facts)
    # Many hold the function itself, so it is the function that has to answer otherwise.
    worker.is_hidden = is_hidden
    worker.get_worker_info.__code__ = _get_torch_worker_info.__code__
    # It is what makes torch's default_collate ask for shared memory.
    collate_in_own_memory()


#: Stands for torch's own variable of that name.
_worker_info: Any = None


def _get_torch_worker_info() -> Any:
    return None if is_hidden() else _worker_info


def _seed_numpy(seed: int, numpy_random: ModuleType) -> None:
    numpy_random.seed(seed)


# What is done to a module once it is imported -------------------------------------------

Action = Callable[[ModuleType], None]

_actions: dict[str, Action] = {}


def when_imported(name: str, action: Action) -> None:
    """Call ``action(module)`` now if the module is there, and after a later import of it.

    There is one action for a module: a new one takes the place of the one before.
    """
    if not any(isinstance(finder, _ImportHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportHook())
    _actions[name] = action
    module = sys.modules.get(name)
    if module is not None:
        action(module)


class _ImportHook(importlib.abc.MetaPathFinder):
    """Finds a module as the others would, and has its loader act on it afterwards."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _HookedLoader(spec.loader)
                return spec
        return None


class _HookedLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _actions[module.__name__](module)
