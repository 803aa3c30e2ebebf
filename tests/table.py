"""A group of ranks in one process.

This file is about ``Table``, where ranks that are tasks of one loop meet, in the place of
processes that meet over sockets.
"""

from __future__ import annotations

import asyncio

from asyncloader.datapipes.full_sync import Meeting, Uneven
from asyncloader.ranks import Statement


class Table:
    """Where ranks that are tasks of one loop exchange what they say."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.said: list[list[Statement]] = [[] for _ in range(size)]
        self.changed = asyncio.Condition()

    def meetings(self, uneven: Uneven = "drop") -> list[Meeting]:
        return [Meeting(Seat(self, rank), uneven) for rank in range(self.size)]


class Seat:
    """A rank's place at a table: a RankGroup."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table = table
        self.rank = rank
        self.size = table.size

    async def exchange(self, statement: Statement) -> list[Statement]:
        said, changed = self.table.said, self.table.changed
        number = len(said[self.rank])
        said[self.rank].append(statement)
        async with changed:
            changed.notify_all()
            await changed.wait_for(lambda: all(len(each) > number for each in said))
        return [each[number] for each in said]

    async def aclose(self) -> None:
        """There is nothing to leave."""
