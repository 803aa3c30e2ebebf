"""How much memory an item takes.

This file is about ``weight_of``: a good guess, for buffers that are bounded in bytes.
"""

from __future__ import annotations

import sys
from typing import Any

# As deep as items are looked into.
_DEPTH = 4


def weight_of(item: Any) -> int:
    """Return about how many bytes an item takes: itself, and what it holds four levels deep.

    Arrays and tensors count with their elements, and what is held twice counts twice.
    """
    return _weight(item, _DEPTH)


def _weight(item: Any, depth: int) -> int:
    weight = sys.getsizeof(item, 64)
    elements = getattr(item, "nbytes", None)
    if isinstance(elements, int):
        return weight + elements
    if depth == 0:
        return weight
    return weight + sum(_weight(part, depth - 1) for part in _parts(item))


def _parts(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    fields = getattr(item, "__dict__", None)
    return list(fields.values()) if isinstance(fields, dict) else []
