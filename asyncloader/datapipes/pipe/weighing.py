"""How much memory an item takes.

This file is about ``weight_of``, a good guess for buffers that are bounded in bytes, and
``is_heavy``, which says at little cost what should not be copied in passing.
"""

from __future__ import annotations

import sys
from typing import Any

# As deep as items are looked into.
_DEPTH = 4

# What an item counts for that cannot tell.
_UNKNOWN_BYTES = 64

# What takes longer to pickle than to begin a thread for it.
_HEAVY_BYTES = 1 << 20
_HEAVY_PARTS = 1000


def weight_of(item: Any) -> int:
    """Return about how many bytes an item takes: itself, and what it holds four levels deep.

    Arrays and tensors count with their elements, and what is held twice counts twice.
    """
    return _weight(item, _DEPTH)


def is_heavy(item: Any) -> bool:
    """Whether an item takes more than a MiB, or is made of more than a thousand parts.

    It is looked into only as far as it takes to know.
    """
    room, parts = _HEAVY_BYTES, [item]
    for _ in range(_HEAVY_PARTS):
        if not parts:
            return False
        part = parts.pop()
        room -= _own_weight(part)
        if room < 0:
            return True
        parts += _parts(part)
    return bool(parts)


def _weight(item: Any, depth: int) -> int:
    weight = _own_weight(item)
    if depth == 0:
        return weight
    return weight + sum(_weight(part, depth - 1) for part in _parts(item))


def _own_weight(item: Any) -> int:
    try:
        own = sys.getsizeof(item, _UNKNOWN_BYTES)
    except Exception:  # noqa: BLE001 - the item's own __sizeof__ ran
        own = _UNKNOWN_BYTES
    return own + (_elements(item) or 0)


def _elements(item: Any) -> int | None:
    nbytes = _said(item, "nbytes")
    return nbytes if isinstance(nbytes, int) else None


def _parts(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if _said(item, "is_sparse") is True:  # one of torch's, which is made of two others
        return [item._indices(), item._values()]
    fields = _said(item, "__dict__")
    if not isinstance(fields, dict) or _elements(item) is not None:
        return []
    return list(fields.values())


def _said(item: Any, name: str) -> Any:
    """Return what an item says of itself, or None: asking it may run code that fails."""
    try:
        return getattr(item, name, None)
    except Exception:  # noqa: BLE001 - a property of the item's own ran
        return None
