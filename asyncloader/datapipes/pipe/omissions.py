"""What is left out where something is made once and kept.

This file is about ``Omissions``: whoever keeps what a part of a graph makes hears whether a
pipe in there left something out because it failed. What failed today may do better tomorrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class Omissions:
    """Whether anything was left out since one began to listen; who listened before hears it too."""

    def __init__(self, outer: Omissions | None = None) -> None:
        self._outer = outer
        self.are_any = False

    def add(self) -> None:
        """Note that something was left out."""
        self.are_any = True
        if self._outer is not None:
            self._outer.add()


# A pass that runs in other threads and tasks has the context of whoever began it.
_LISTENING: ContextVar[Omissions | None] = ContextVar("asyncloader_omissions", default=None)


@contextlib.contextmanager
def listening_for_omissions() -> Iterator[Omissions]:
    """Give what will tell whether anything is left out in this context."""
    omissions = Omissions(_LISTENING.get())
    token = _LISTENING.set(omissions)
    try:
        yield omissions
    finally:
        _LISTENING.reset(token)


def note_omission() -> None:
    """Tell whoever listens that something is left out here."""
    listening = _LISTENING.get()
    if listening is not None:
        listening.add()
