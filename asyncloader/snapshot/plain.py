"""Plain data: what a snapshot may hold.

This file is about telling whether something is None, a truth, a number, a text, bytes, a
tensor, or a list, tuple or dict of those.
"""

from __future__ import annotations

import sys
from typing import Any

from asyncloader.errors import SnapshotError

MAX_DEPTH = 32
MAX_ELEMENTS = 10_000_000


def check_plain(value: Any, name: str) -> None:
    """Raise SnapshotError, naming the field, for anything but plain data."""
    _Check(name).look_at(value, MAX_DEPTH)


class _Check:
    def __init__(self, name: str) -> None:
        self.name = name
        self.left = MAX_ELEMENTS

    def look_at(self, value: Any, depth: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise SnapshotError(f"{self.name} has more than {MAX_ELEMENTS} elements")
        if value is None or type(value) in (bool, int, float, str, bytes) or is_tensor(value):
            return
        if type(value) not in (list, tuple, dict):
            raise SnapshotError(
                f"{self.name} holds a {type(value).__qualname__}; a snapshot is plain data: None,"
                " bool, int, float, str, bytes, tensors, and lists, tuples and dicts of those"
            )
        if depth == 0:
            raise SnapshotError(f"{self.name} is nested more than {MAX_DEPTH} levels deep")
        for element in _elements(value):
            self.look_at(element, depth - 1)


def is_tensor(value: object) -> bool:
    """Whether something is a tensor; nobody has one without having imported torch."""
    torch = sys.modules.get("torch")
    # Another thread may be in the middle of importing it.
    return torch is not None and type(value) is getattr(torch, "Tensor", None)


def _elements(value: Any) -> Any:
    return (*value.keys(), *value.values()) if isinstance(value, dict) else value
