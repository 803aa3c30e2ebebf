"""A group of ranks in one process.

This file is about ``Table``, where ranks that are tasks of one loop meet, in the place of
processes that meet over sockets; and about ``Tables``, one for each group that the loaders of such
ranks open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest import mock

from asyncloader.datapipes import full_sync
from asyncloader.datapipes.full_sync import Meeting, Uneven
from asyncloader.ranks import Alone, RankGroup, Statement
from asyncloader.services import distributed

_rank: ContextVar[int] = ContextVar("rank")


def on_rank(rank: int) -> None:
    """Let the present task be on a rank."""
    _rank.set(rank)


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


class Tables:
    """Where the ranks of a run meet: each group that they open has a table of its own.

    The loader of each has a ``DistributedReadingService(group=(rank, size))``.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tables: list[Table] = []
        self._opened: Counter[int] = Counter()

    async def open(self, timeout: float) -> RankGroup:
        """Open a group, as all ranks do; for the rank of the present task."""
        if self._size == 1:
            return Alone()
        rank = _rank.get()
        number = self._opened[rank]
        self._opened[rank] += 1
        if number == len(self._tables):
            self._tables.append(Table(self._size))
        return Seat(self._tables[number], rank)

    @contextmanager
    def laid(self) -> Iterator[None]:
        """Let ranks meet here, and not in a run of torch.distributed."""
        found = {"open_group": self.open, "world_size": lambda: self._size}
        with (
            mock.patch.multiple(distributed, is_initialized=lambda: True, **found),
            mock.patch.multiple(full_sync, **found),
        ):
            yield
