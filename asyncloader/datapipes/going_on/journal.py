"""What has happened since a moment.

This file is about ``Journal``. Where no order can be had again, what happens after a
cursor belongs to it: the cursor holds a ``Since``, which is made a list when a state is
taken, or when it is pickled. A journal keeps what those that are still held go back to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

#: Of so many entries those are forgotten that nobody goes back to.
_MANY = 1024


class Journal:
    """Entries in their order. One thread writes, any thread reads."""

    def __init__(self) -> None:
        # How many entries were forgotten, and those that follow them.
        self._kept: tuple[int, list[Any]] = (0, [])
        self._held: list[weakref.ref[Since]] = []
        self._most = _MANY

    def begin_at(self, count: int) -> None:
        """Count the entries from here on as those after the first ``count``; before all others."""
        self._kept = (count, [])

    def add(self, entry: Any) -> None:
        """Write an entry, if anybody goes back so far."""
        if self._held:
            entries = self._kept[1]
            entries.append(entry)
            if len(entries) > self._most:
                self._forget()

    def since_now(self, before: Iterable[Any] = ()) -> Since:
        """Return ``before`` and what will have happened since now."""
        self._forget()
        forgotten, entries = self._kept
        since = Since(self, forgotten + len(entries), [*before])
        self._held.append(weakref.ref(since))
        return since

    def entries_from(self, start: int) -> list[Any]:
        """Return the entries after the first ``start`` of the journal."""
        forgotten, entries = self._kept
        return entries[start - forgotten :]

    def _forget(self) -> None:
        held = [(since.start, reference) for reference in self._held if (since := reference())]
        self._held = [reference for _, reference in held]
        forgotten, entries = self._kept
        oldest = min((start for start, _ in held), default=forgotten + len(entries))
        # Another thread may be reading: it sees either pair whole.
        self._kept = (oldest, entries[oldest - forgotten :])
        self._most = max(_MANY, 2 * len(self._kept[1]))


class Since:
    """Some entries, and those of a journal since a moment; made a list when it is copied."""

    def __init__(self, journal: Journal, start: int, before: list[Any]) -> None:
        self.start = start
        self._before = before
        self._journal = journal

    @property
    def first(self) -> int:
        """How many entries there were before all of these."""
        return self.start - len(self._before)

    def told(self) -> tuple[int, list[Any]]:
        """Return ``first`` and the entries so far, and be those that follow them."""
        first, entries = self.first, list(self)
        self._before, self.start = [], first + len(entries)
        return first, entries

    def __iter__(self) -> Iterator[Any]:
        return chain(self._before, self._journal.entries_from(self.start))

    def __reduce__(self) -> Any:
        return list, (list(self),)


def settled(value: Any) -> Any:
    """Return plain data in which each Since has become the list of its entries so far."""
    if isinstance(value, Since):
        return list(value)
    if isinstance(value, dict):
        return {key: settled(element) for key, element in value.items()}
    if isinstance(value, list):
        return [settled(element) for element in value]
    return value
