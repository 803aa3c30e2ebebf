"""In which order a pipe handed out, pass after pass.

This file is about ``Course``. What is handed out as it is ready comes in another order each
time, so a cursor holds all that follows it, over the ends of passes; whoever goes on from it
hands out in that order again what is wanted again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from asyncloader.datapipes.going_on.cursors import Cursor
from asyncloader.datapipes.going_on.journal import Journal, Since

#: A position, and how many had been yielded and how many were errors once it was handed out.
Entry = list[int]

# Stands between the entries of two passes.
_NEXT_PASS: Entry = []


class Course:
    """What one pipe hands out as it is ready, in this epoch."""

    def __init__(self) -> None:
        self._journal = Journal()
        # What passes to come are to hand out first, where that was noted.
        self._known: deque[list[Entry]] = deque()

    def count_as(self, cursor: Cursor) -> None:
        """Count what will be noted as it was where a cursor was taken; before all passes."""
        # The beginning of a pass that is gone on with is noted once more.
        self._journal.begin_at(cursor["at"] - int(cursor["begun"]))

    def begin(self) -> list[Entry]:
        """Begin a pass; return what is handed out first in it, which need not be added."""
        # Who has noted that this pass is to come finds it begin here.
        self._journal.add(_NEXT_PASS)
        return self._added(self._expected())

    def go_on(self, cursor: Cursor) -> list[Entry]:
        """Go on with a pass, or begin one; return what its cursor says of it, as ``begin``.

        The cursor has, from then on, what is handed out later.
        """
        if cursor["begun"]:
            entries, *following = _by_pass(cursor["later"])
            self._known = deque(following)
        else:
            self.expect(cursor)
            entries = self._expected()
        self._journal.add(_NEXT_PASS)
        later = self._journal.since_now()
        cursor |= {"begun": True, "later": later, "at": later.first}
        return self._added(entries)

    def _expected(self) -> list[Entry]:
        return self._known.popleft() if self._known else []

    def _added(self, entries: list[Entry]) -> list[Entry]:
        for entry in entries:
            self._journal.add(entry)
        return entries

    def expect(self, cursor: Cursor) -> None:
        """Have the passes to come hand out first what the cursor of the next one says."""
        following = _by_pass(cursor["later"])[1:]
        if following:
            self._known = deque(following)

    def add(self, entry: Entry) -> None:
        """Note what was handed out."""
        self._journal.add(entry)

    def since_now(self, before: Iterable[Entry] = ()) -> Since:
        """Return ``before`` and what will be handed out from now on."""
        return self._journal.since_now(before)


def _by_pass(entries: Iterable[Entry]) -> list[list[Entry]]:
    passes: list[list[Entry]] = [[]]
    for entry in entries:
        if entry == _NEXT_PASS:
            passes.append([])
        else:
            passes[-1].append(entry)
    return passes
