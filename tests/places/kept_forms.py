"""States in the forms that earlier releases gave them."""

from __future__ import annotations

from typing import Any

from asyncloader.places.checksums import checksum


def as_of_6(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a release wrote it whose states had the number 6."""
    parts = {name: value for name, value in state.items() if name not in _NOT_OF_6}
    sums = {name: checksum(value) for name, value in parts.items()}
    return {"version": 6, **parts, "checksums": sums}


_NOT_OF_6 = ("version", "release", "checksums")
