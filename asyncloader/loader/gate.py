"""How many items may still pass.

This file is about ``limit``, ``pause`` and ``resume``, which act on an iterator
and are the same for its async and its sync form.
"""

from __future__ import annotations

from asyncloader.datapipes.arguments import checked_count

_NO_LIMIT = -1


class Gate:
    """Counts the items that pass; ``left`` is 0 while none may.

    Who lets an item pass takes one from ``left``, and that is all: it happens for every
    item. One that was waited for, and finds the gate closed, passes by ``let_late_pass``.
    """

    def __init__(self) -> None:
        self.left = _NO_LIMIT
        self._opened_with = _NO_LIMIT
        self._passed_before = 0
        self.is_ended = False
        self.has_failed = False
        self._limit = _NO_LIMIT
        self._is_paused = self._pause_lasts = False

    def renewed(self) -> Gate:
        """Return the gate of the next iterator, with the same limit."""
        gate = Gate()
        gate._limit = self._limit
        gate._is_paused = gate._pause_lasts = self._pause_lasts
        gate._open_unless_paused()
        return gate

    @property
    def passed(self) -> int:
        """How many items have passed."""
        return self._passed_before + self._opened_with - self.left

    def let_late_pass(self) -> None:
        """Let an item pass that was under way when the gate may have been closed."""
        if self.left:
            self.left -= 1
        else:
            self._passed_before += 1

    def limit(self, num_items: int | None) -> None:
        """Let ``num_items`` more pass, now and after each ``resume``; None lets all pass."""
        if num_items is None:
            self._limit = _NO_LIMIT
        else:
            self._limit = checked_count("limit", num_items, at_least=0)
        self._open_unless_paused()

    def pause(self, *, lasting: bool = False) -> None:
        """Let nothing pass until ``resume``; nor, if that is ``lasting``, by later gates."""
        self._is_paused = True
        self._pause_lasts = self._pause_lasts or lasting
        self._open_with(0)

    def resume(self) -> None:
        """Let items pass again, as many as the limit allows."""
        self._is_paused = self._pause_lasts = False
        self._open_unless_paused()

    def end(self, error: BaseException | None = None) -> None:
        """Note that the epoch has ended, by itself or with an error."""
        self.is_ended = True
        self.has_failed = error is not None and not isinstance(error, StopIteration)

    def is_over(self) -> bool:
        """Whether the epoch has come to its natural end."""
        return self.is_ended and not self.has_failed

    def was_read(self) -> bool:
        """Whether anything was seen of the epoch: an item, an error, or its end."""
        return self.passed > 0 or self.is_ended

    def _open_unless_paused(self) -> None:
        # A negative number counts down for ever and so never closes the gate.
        self._open_with(0 if self._is_paused else self._limit)

    def _open_with(self, left: int) -> None:
        self._passed_before = self.passed
        self._opened_with = self.left = left
