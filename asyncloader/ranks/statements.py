"""What ranks say to one another.

This file is about ``Statement``: a few numbers of a fixed size, whatever they are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum, IntFlag


class Kind(IntEnum):
    """What a statement is about, in the order in which a loader comes to it."""

    GRAPH = 1
    WORKERS = 2
    SEED = 3
    PLACE = 4
    WINDOW = 5


class Flags(IntFlag):
    """What is true of the rank that says so."""

    NONE = 0
    #: The seed was chosen by the user.
    CHOSEN = 1
    #: No item follows those counted.
    ENDED = 2
    #: An error follows those counted.
    FAILED = 4
    #: The epoch was begun by another loader.
    RESUMED = 8


@dataclass(frozen=True)
class Statement:
    """What a rank says to all others: five numbers of 64 bits, whatever it is about."""

    epoch: int
    kind: Kind
    window: int = 0
    count: int = 0
    flags: Flags = Flags.NONE

    @property
    def moment(self) -> tuple[int, int, int]:
        """When it is said; every rank goes through the same moments, in this order."""
        return self.epoch, self.kind, self.window

    def words(self) -> list[int]:
        """Return the statement as signed numbers of 64 bits."""
        return [word - (word >> 63 << 64) for word in astuple(self)]

    @classmethod
    def from_words(cls, words: list[int]) -> Statement:
        """Return the statement that ``words()`` were made of."""
        epoch, kind, window, count, flags = (word & 2**64 - 1 for word in words)
        return cls(epoch, Kind(kind), window, count, Flags(flags))


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return the name of some ranks: "rank 1", "ranks 1 and 2"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
