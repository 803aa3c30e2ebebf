"""Items that are looked up, many keys at once where that is possible.

A data set that defines ``__getitems__``, as Hugging Face's do, answers a list of keys faster than
one key after another. torch's DataLoader asks it once a batch, and so does a pipe that looks items
up for a batch: its ``Edge.at_once`` says how many items the batch takes. As torch has it, a data
set whose ``__getitems__`` is None cannot; so a map pipe can say whether what it reads can.
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short_repr
from typing import Any

from asyncloader.safe_error_text import note, notes_of


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
        key = None
        try:
            return [source[key := each] for each in keys]
        except Exception as error:
            blame_keys(error, [key])
            raise
    try:
        items: Sequence[Any] = source.__getitems__(list(keys))
    except Exception as error:
        blame_keys(error, list(keys))
        raise
    if len(items) != len(keys):
        raise ValueError(
            f"{type(source).__qualname__}.__getitems__ must return one item for each key, got"
            f" {len(items)} items for {len(keys)} keys"
        )
    return items


_RAISED_FOR = "raised for the "


def blame_keys(error: Exception, keys: list[Any]) -> None:
    """Add a note to an error that names the keys whose items were looked up together."""
    # The pipe that looked them up first knows best.
    if any(text.startswith(_RAISED_FOR) for text in notes_of(error)):
        return
    try:
        shown = short_repr(keys[0] if len(keys) == 1 else keys)
    except Exception:  # noqa: BLE001 - a user's __repr__ ran
        shown = "that cannot be shown"
    if len(keys) == 1:
        note(error, f"{_RAISED_FOR}item with key {shown}")
    else:
        note(error, f"{_RAISED_FOR}items with keys {shown}, which were asked for together")
