"""Forking by hand, as programs do that know what they do."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Return ``os.fork()``, without Python's warning of other threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
