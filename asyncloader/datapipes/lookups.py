"""Items that are looked up, many keys at once where that is possible.

A data set that defines ``__getitems__``, as Hugging Face's do, answers a list of keys faster than
one key after another. torch's DataLoader asks it once a batch, and so does a pipe that looks items
up for a batch: its ``Edge.at_once`` says how many items the batch takes. As torch has it, a data
set whose ``__getitems__`` is None cannot; so a map pipe can say whether what it reads can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def answers_many(source: Any) -> bool:
    """Whether something that items are looked up in takes many keys at once."""
    return _defines_many(type(source)) and bool(source.__getitems__)


def _defines_many(cls: type) -> bool:
    # In a subclass that overrides ``__getitem__`` alone, ``__getitems__`` may know nothing of it.
    for base in cls.__mro__:
        if "__getitems__" in vars(base):
            return True
        if "__getitem__" in vars(base):
            return False
    return False


def items_under(source: Any, keys: Sequence[Any]) -> Sequence[Any]:
    """Look up many keys, in one call where the source can; ValueError if answers are missing."""
    if not answers_many(source):
        return [source[key] for key in keys]
    items: Sequence[Any] = source.__getitems__(list(keys))
    if len(items) != len(keys):
        raise ValueError(
            f"{type(source).__qualname__}.__getitems__ must return one item for each key, got"
            f" {len(items)} items for {len(keys)} keys"
        )
    return items
