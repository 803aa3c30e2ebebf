"""Modules that not everybody has installed.

This file is about ``imported``: a module of the extra ``cloud``, imported without
stopping the loop when a pipe first needs it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from asyncloader.runtime import in_thread

#: What was imported to its end. What is being imported is among Python's modules already.
_imported: set[str] = set()


async def imported(name: str, needed_by: str) -> ModuleType:
    """Return a module; raise ModuleNotFoundError with what to install if it is not there."""
    if name not in _imported:
        try:
            await in_thread(importlib.import_module, name)
            _imported.add(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{needed_by} needs {name.partition('.')[0]}: pip install 'asyncloader[cloud]'",
                name=error.name,
            ) from error
    return sys.modules[name]
