"""What is done to a module now, or as soon as somebody imports it.

This file is about ``when_imported``: a worker that needs no torch never imports
it, and one that imports it in the middle of an epoch finds it seeded and set up.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], None]

_actions: dict[str, Action] = {}


def when_imported(name: str, action: Action) -> None:
    """Call ``action(module)`` now if the module is there, and after a later import of it.

    There is one action for a module: a new one takes the place of the one before.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _actions[name] = action
    module = sys.modules.get(name)
    if module is not None:
        action(module)


class _Finder(importlib.abc.MetaPathFinder):
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
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
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
