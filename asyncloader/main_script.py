"""The script that started the program.

This file is about recognising code that is defined in it. Another process cannot import the
script, so such code must be sent by value. In a process that multiprocessing has started by
"spawn" or "forkserver", as ``torch.multiprocessing.spawn`` does, the script's module has the
second of the two names below.
"""

from __future__ import annotations

MAIN, SPAWNED_MAIN = "__main__", "__mp_main__"
_NAMES = (MAIN, SPAWNED_MAIN)
_IN_PICKLES = tuple(name.encode() for name in _NAMES)


def home_of(code: object) -> str | None:
    """Return the module that defines a class or function; always MAIN for the main script."""
    module = getattr(code, "__module__", None)
    return MAIN if module in _NAMES else module


def may_name_main(data: bytes) -> bool:
    """Whether a pickle may refer to something that the script defines."""
    return any(name in data for name in _IN_PICKLES)
