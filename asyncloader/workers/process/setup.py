"""What a worker's process is like for the user's code in it.

This file is about ``OwnProcess``: the global random generators, torch's threads, the allocator, and
what tells other libraries that this is a worker. What concerns a module is done now, or by
``when_imported`` as soon as somebody imports it: a worker that needs no torch never imports it, and
one that imports it in the middle of an epoch finds it seeded and set up.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from asyncloader.datapipes.running.run_place import Home
from asyncloader.generators import PROCESS, Generators
from asyncloader.system import keep_freed_memory
from asyncloader.worker_info import WorkerInfo, set_worker_info
from asyncloader.workers.process.torch_workers import answer_torch, data_set_of, torch_info


class Surroundings(Protocol):
    """What is around the user's code in a worker, or in the dispatching process."""

    @property
    def generators(self) -> Generators:
        """The random generators that the code draws from."""
        ...

    def beyond(self) -> Home | None:
        """Return the home of the epoch that the items are for, if that is in this process."""
        ...

    def settle(self, info: WorkerInfo) -> None:
        """Make ``get_worker_info`` answer, ours and torch's."""
        ...

    def know(self, ends: Sequence[Any]) -> None:
        """Let torch's ``get_worker_info`` answer what the data set of these graphs is."""
        ...

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed random, torch and numpy for an epoch, each with one of the three seeds."""
        ...


class OwnProcess:
    """A process that has nothing else to do."""

    generators = PROCESS

    def __init__(self) -> None:
        self._info: WorkerInfo | None = None
        self._data_set: Any = None

    def beyond(self) -> Home | None:
        return None

    def settle(self, info: WorkerInfo) -> None:
        self._info = info
        set_worker_info(info)
        keep_freed_memory()
        when_imported("torch", partial(_settle_torch, info, None, None))

    def know(self, ends: Sequence[Any]) -> None:
        self._data_set = data_set_of(ends)
        when_imported("torch", partial(_settle_torch, self._info, None, self._data_set))

    def seed(self, seeds: Sequence[int]) -> None:
        # Each whether it was imported already, or is later.
        random_seed, torch_seed, numpy_seed = seeds
        random.seed(random_seed)
        when_imported("torch", partial(_settle_torch, self._info, torch_seed, self._data_set))
        # numpy itself imports it only when somebody looks at it.
        when_imported("numpy.random", partial(_seed_numpy, numpy_seed >> 32))


def _settle_torch(
    info: WorkerInfo | None, seed: int | None, data_set: Any, torch: ModuleType
) -> None:
    torch.set_num_threads(1)
    if seed is not None:
        _seed_torch(torch, seed)
    if info is not None:
        _tell_torch(info, seed, data_set)


def _seed_torch(torch: ModuleType, seed: int) -> None:
    """Do what ``torch.manual_seed`` does."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or accelerator.current_accelerator() is not None:
        torch.manual_seed(seed)
    else:
        # That writes down a stack for each kind of device, also where torch was built for none:
        # 0.2 ms, and 3 ms in a new process.
        torch.default_generator.manual_seed(seed)


def _tell_torch(info: WorkerInfo, seed: int | None, data_set: Any) -> None:
    # Some read the variable, and a process has one worker.
    from torch.utils.data._utils import worker

    from asyncloader.datapipes.mapping import collate_in_own_memory

    answer_torch()
    worker._worker_info = torch_info(info, seed, data_set)
    # It is what makes torch's default_collate ask for shared memory.
    collate_in_own_memory()


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
