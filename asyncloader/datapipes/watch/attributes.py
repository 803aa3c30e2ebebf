"""What a pipe keeps.

This file is about looking at a pipe without running any of its code: a user's property may
raise, or take its time, and whoever watches must not disturb.
"""

from __future__ import annotations

from typing import Any


def attribute(pipe: Any, name: str) -> Any:
    """Return what a pipe keeps under a name, None if nothing."""
    return getattr(pipe, "__dict__", _NOTHING).get(name)


_NOTHING: dict[str, Any] = {}
