"""What a pipe keeps.

This file is about looking at a pipe without running any of its code: a user's property may
raise, or take its time, and whoever watches must not disturb.
"""

from __future__ import annotations

from typing import Any


def attribute(pipe: Any, name: str) -> Any:
    """Return what a pipe keeps under a name, None if nothing."""
    return getattr(pipe, "__dict__", _NOTHING).get(name)


def latest_pass(pipe: Any) -> Any:
    """Return the latest pass over a pipe, of which it knows by the epoch it is run in."""
    epoch = attribute(pipe, "_epoch")
    return None if epoch is None else epoch.latest_pass(pipe)


_NOTHING: dict[str, Any] = {}
