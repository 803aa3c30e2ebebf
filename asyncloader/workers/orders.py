"""How an epoch begins.

This file is about ``EpochOrders``: what every process of a pool is told of an epoch, at its
beginning or, where it replaces another, in the middle.
"""

from __future__ import annotations

from asyncloader.seeds import SeedGenerator
from asyncloader.workers.messages import DealStart, StartEpoch


class EpochOrders:
    """How an epoch begins, for every process alike; also for one that comes in its middle."""

    def __init__(
        self,
        epoch: int,
        shared_seeds: tuple[int, ...],
        seed_generator: SeedGenerator,
        resets: bytes,
    ) -> None:
        self.is_given = False
        self._epoch = epoch
        self._shared_seeds = shared_seeds
        self._seed_generator = seed_generator
        self._resets = resets

    def start(self, deal: DealStart | None = None) -> StartEpoch:
        """Return the order for every worker, or for the dispatching process what it deals."""
        return StartEpoch(self._epoch, self._shared_seeds, self._seed_generator, self._resets, deal)
