"""Which seed each epoch gets.

This file is about ``EpochSeeds``: a seeded loader runs through a fixed sequence
of epochs, each different; an unseeded one draws every epoch anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncloader.seeds import SeedGenerator, Stream, checked_seed

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

    def generator(self) -> SeedGenerator:
        """Return the generator of this epoch, for its services and pipes."""
        return SeedGenerator(None if self.seed is None else self._epoch_seed(self.seed))

    def advanced(self) -> EpochSeeds:
        """Return the place of the next epoch."""
        return replace(self, epoch=self.epoch + 1)

    def _epoch_seed(self, seed: int) -> int:
        return seed if self.epoch == 0 else Stream(seed, _EPOCHS_AT + self.epoch).draw()
