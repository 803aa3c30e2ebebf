"""How a worker's memory is reused.

This file is about one setting of the C library's allocator: an item that was just sent
leaves warm memory behind, which is to become the next item. By default much of it goes
back to the system, and comes again as pages that have to be cleared one by one.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4

#: How much that is free may stay with the process.
_KEPT_FREE = 128 << 20


def keep_freed_memory() -> None:
    """Let freed memory be used again, unless the user has settings of their own."""
    if not sys.platform.startswith("linux") or _is_set_by_user():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # No block has pages of its own, which would go with it, however large it is.
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)


def _is_set_by_user() -> bool:
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
