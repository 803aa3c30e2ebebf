"""A name that a pipe does not have.

This file is about ``UnknownName``, which is what a pipe raises for a method that pipes of
the other kind have, or that is spelt otherwise.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.pipe.registering import is_of_script

#: How pipes of one kind become those of the other, by the name of the kind that is wanted.
_WAYS = {
    "IterDataPipe": "pipes that are iterated have it: call .to_iter_datapipe() first",
    "MapDataPipe": "pipes that are looked up by key have it: call .to_map_datapipe() first",
}

_OF_SCRIPT = (
    "the main script registers it, which a worker does not import: call the class itself, or"
    " define it in a module"
)


class UnknownName(AttributeError):
    """A pipe has no attribute of a name; the message says what may have been meant."""

    def __str__(self) -> str:
        # Most are never shown: whether a pipe has some method is asked all the time.
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return UnknownName, (str(self),)


@dataclass(frozen=True)
class MissingName:
    """What is said of a name that a class of pipes does not have."""

    cls: type
    name: str
    #: The base of the pipes of the other kind.
    others: type

    def __str__(self) -> str:
        return f"{self.cls.__qualname__} has no attribute {self.name!r}{self._hint()}"

    def _hint(self) -> str:
        if is_of_script(self.name):
            return f"; {_OF_SCRIPT}"
        if hasattr(self.others, self.name):
            return f"; {_WAYS[self.others.__name__]}"
        names = [name for name in dir(self.cls) if not name.startswith("_")]
        near = difflib.get_close_matches(self.name, names, n=1)
        return f"; did you mean {near[0]}?" if near else ""
