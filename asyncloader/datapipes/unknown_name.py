"""A name that a pipe does not have.

This file is about ``UnknownName``, which is what a pipe raises for a method that pipes of
the other kind have, or that is spelt otherwise.
"""

from __future__ import annotations

import difflib
from typing import Any

#: How pipes of one kind become those of the other, by the name of the kind that is wanted.
_WAYS = {
    "IterDataPipe": "pipes that are iterated have it: call .to_iter_datapipe() first",
    "MapDataPipe": "pipes that are looked up by key have it: call .to_map_datapipe() first",
}


class UnknownName(AttributeError):
    """A pipe has no attribute of a name; the message says what may have been meant."""

    def __init__(self, cls: type, name: str, other_kind: type) -> None:
        super().__init__(name)
        self._cls = cls
        self._name = name
        self._other_kind = other_kind

    def __str__(self) -> str:
        # Most are never shown: whether a pipe has some method is asked all the time.
        return f"{self._cls.__qualname__} has no attribute {self._name!r}{self._hint()}"

    def __reduce__(self) -> Any:
        return AttributeError, (str(self),)

    def _hint(self) -> str:
        if hasattr(self._other_kind, self._name):
            return f"; {_WAYS[self._other_kind.__name__]}"
        names = [name for name in dir(self._cls) if not name.startswith("_")]
        near = difflib.get_close_matches(self._name, names, n=1)
        return f"; did you mean {near[0]}?" if near else ""
