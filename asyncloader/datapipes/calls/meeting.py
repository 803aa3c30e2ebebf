"""How ranks agree.

This file is about ``Meeting``. Ranks may leave an epoch at different places, and then what
one still has to say about it comes upon what another says about the next.
"""

from __future__ import annotations

from asyncloader.errors import RankError
from asyncloader.ranks import Flags, RankGroup, Statement, Topic, ranks_in_words


class Meeting:
    """Where the ranks of a group agree, moment after moment.

    Ranks that leave an epoch early may do so at different moments, and a collective cannot
    be called back. So a rank repeats what it says until all others are at its moment too.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.epoch = 0

    async def begin_epoch(self, seed: int, flags: Flags) -> list[Statement]:
        """Begin an epoch with all ranks; return what each says of its seed."""
        self.epoch += 1
        while True:
            said = await self._exchange(Topic.SEED, 0, seed, flags)
            if len({each.moment for each in said}) == 1:
                return said
            # Who counted fewer epochs than the others, because of one it never read, catches up.
            self.epoch = max(each.epoch for each in said)

    async def agree(
        self, kind: Topic, *, window: int = 0, count: int = 0, flags: Flags = Flags.NONE
    ) -> list[Statement]:
        """Return what each rank says at this moment; RankError if others have gone on."""
        while True:
            said = await self._exchange(kind, window, count, flags)
            moment = (self.epoch, kind, window)
            ahead = [rank for rank, each in enumerate(said) if each.moment > moment]
            if ahead:
                raise RankError(
                    f"{ranks_in_words(ahead)} left the epoch that rank {self.group.rank} is still"
                    " reading; leave an epoch after the same number of items on every rank",
                    ranks=tuple(ahead),
                )
            if all(each.moment == moment for each in said):
                return said

    async def _exchange(
        self, kind: Topic, window: int, count: int, flags: Flags
    ) -> list[Statement]:
        return await self.group.exchange(Statement(self.epoch, kind, window, count, flags))
