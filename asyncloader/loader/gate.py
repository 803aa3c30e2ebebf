"""How many items may still pass.

This file is about ``limit``, ``pause`` and ``resume``, which act on an iterator
and are the same for its async and its sync form.
"""

from __future__ import annotations

_NO_LIMIT = -1


class Gate:
    """Counts the items that pass; ``left`` is 0 while none may.

    Who lets an item pass takes one from ``left`` and adds one to ``passed``.
    """

    def __init__(self) -> None:
        self.left = _NO_LIMIT
        self.passed = 0
        self.is_ended = False
        self._limit = _NO_LIMIT
        self._is_paused = False

    def renewed(self) -> Gate:
        """Return the gate of the next iterator, with the same limit."""
        gate = Gate()
        gate._limit = gate.left = self._limit
        return gate

    def limit(self, num_items: int | None) -> None:
        """Let ``num_items`` more pass, now and after each ``resume``; None lets all pass."""
        if num_items is not None and num_items < 0:
            raise ValueError(f"limit must be at least 0, or None for none, got {num_items}")
        self._limit = _NO_LIMIT if num_items is None else num_items
        self._open_unless_paused()

    def pause(self) -> None:
        """Let nothing pass until ``resume``."""
        self._is_paused = True
        self.left = 0

    def resume(self) -> None:
        """Let items pass again, as many as the limit allows."""
        self._is_paused = False
        self._open_unless_paused()

    def was_read(self) -> bool:
        """Whether anything was seen of the epoch: an item, an error, or its end."""
        return self.passed > 0 or self.is_ended

    def _open_unless_paused(self) -> None:
        # A negative number counts down for ever and so never closes the gate.
        self.left = 0 if self._is_paused else self._limit
