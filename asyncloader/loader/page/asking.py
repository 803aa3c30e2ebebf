"""Whether the loaders of a program are to be watched."""

from __future__ import annotations

import os

#: 1, or the address of a page that another process serves.
VARIABLE = "ASYNCLOADER_WATCH"


def is_asked_for() -> bool:
    """Whether the environment asks for a page of all loaders."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")
