"""The other ranks, as one of them sees them.

This file is about ``Group``, the little that is asked of a process group.
"""

from __future__ import annotations

from typing import Protocol

from asyncloader.ranks.statements import Statement


class Group(Protocol):
    """The little we ask of a process group, so that tests need no torch.distributed."""

    @property
    def rank(self) -> int:
        """This rank's place among all."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Say something to all ranks; return what each of them says, by rank.

        What is said n-th on one rank meets what is said n-th on every other, also where
        the call was cancelled meanwhile.
        """

    async def aclose(self) -> None:
        """Leave the other ranks, within a bounded time."""


class Alone:
    """The group of a run that has one rank."""

    rank = 0
    size = 1

    async def exchange(self, statement: Statement) -> list[Statement]:
        """Return what was said."""
        return [statement]

    async def aclose(self) -> None:
        """There is no one to leave."""
