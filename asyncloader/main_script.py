"""The script that a program was started by.

This file is about telling what is defined in it. Another process cannot import the script,
so what is defined there has to travel itself. In a process that multiprocessing has started
by "spawn" or "forkserver", as ``torch.multiprocessing.spawn`` does, its module has the second
of the two names below.
"""

from __future__ import annotations

MAIN, SPAWNED_MAIN = "__main__", "__mp_main__"
_NAMES = (MAIN, SPAWNED_MAIN)
_IN_PICKLES = tuple(name.encode() for name in _NAMES)


def home_of(code: object) -> str | None:
    """Return the module that a class or function is defined in: one name for the script."""
    module = getattr(code, "__module__", None)
    return MAIN if module in _NAMES else module


def may_name_main(data: bytes) -> bool:
    """Whether a pickle may name something that is defined in the script."""
    return any(name in data for name in _IN_PICKLES)
