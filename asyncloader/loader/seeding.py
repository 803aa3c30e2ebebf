"""Which seed each epoch gets.

This file is about ``EpochSeeds``: a seeded loader runs through a fixed sequence
of epochs, each different; an unseeded one draws every epoch anew. And about
``EpochStart``, where in an epoch a loader begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.seeds import SeedGenerator, SeedStream, checked_seed, entropy

#: Later epochs' seeds come from so far along a seed's stream that nothing else draws there.
_EPOCHS_AT = 2**64


@dataclass(frozen=True)
class EpochSeeds:
    """The place in a loader's sequence of epochs; ``seed`` is None where it is unseeded."""

    seed: int | None = None
    epoch: int = 0

    @classmethod
    def from_seed(cls, seed: int) -> EpochSeeds:
        """Return the beginning of a seed's sequence; raise ValueError for no 64-bit number."""
        return cls(checked_seed(seed))

    def advanced(self) -> EpochSeeds:
        """Return the place of the next epoch."""
        return replace(self, epoch=self.epoch + 1)

    def start(self) -> EpochStart:
        """Return the beginning of this epoch."""
        return EpochStart(self.epoch_seed(), is_chosen=self.seed is not None)

    def epoch_seed(self) -> int:
        """Return the seed of this epoch; an unseeded one draws another each time."""
        if self.seed is None:
            return entropy()
        if self.epoch == 0:
            return self.seed
        return SeedStream(self.seed, _EPOCHS_AT + self.epoch).draw()


@dataclass(frozen=True)
class EpochStart:
    """Where an epoch begins: its seed, and how many of its items were handed out before.

    The cursors were taken at the last of those items, or earlier.
    """

    seed: int
    position: int = 0
    cursors: Cursors = field(default_factory=dict)
    #: Whether the seed comes of one that the user gave.
    is_chosen: bool = False
    #: Whether it was begun by another loader; and how many of the items were handed out more
    #: than on the rank with the fewest.
    is_resumed: bool = False
    ahead: int = 0
    #: With how many workers it was begun, where those or the ranks were others.
    taken_with: int | None = None
    #: Whether its workers are taken in turn, where that was so, or not, when it was begun.
    taken_in_order: bool | None = None
    #: Whether it was begun by ranks, or workers of theirs, that had shares of other items.
    is_regrouped: bool = False

    def is_in_order(self, otherwise: bool) -> bool:
        """Whether workers are taken in turn, where a new epoch would do ``otherwise``."""
        return otherwise if self.taken_in_order is None else self.taken_in_order

    def generator(self) -> SeedGenerator:
        """Return the generator of the epoch, for its services and pipes."""
        generator = SeedGenerator(self.seed)
        generator.is_chosen = self.is_chosen
        generator.resumed_after = self.position - self.ahead if self.is_resumed else None
        generator.taken_with = self.taken_with
        generator.taken_in_order = self.taken_in_order
        return generator
