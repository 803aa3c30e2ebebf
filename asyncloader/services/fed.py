"""A part whose source lives with the loader.

This file is about ``FedFromWorkers``: in the loader's graph it stands between that source
and whatever reads what the workers make of its items.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors, take_number_of
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.patterns.reading import abegin
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.running.home import cancelled
from asyncloader.errors import LoaderError
from asyncloader.runtime import begin_task
from asyncloader.workers.fed_stream import FedStream


class FedFromWorkers(IterDataPipe[Any]):
    """Deal a source's items to workers, and yield what comes back of them, as it comes."""

    is_stand_in = True

    def __init__(self, end: Any, source: Any) -> None:
        self.part = stage_name(end)
        self.source = source
        self.stream: FedStream | None = None
        #: The names of those who may read this twice.
        self.readers = ""
        take_number_of(self, end)

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they come."""
        stream, self.stream = self.stream, None
        if stream is None:
            raise LoaderError(f"{self!r} is read once an epoch, by the loader of its workers")
        stream.begin()
        loop = asyncio.get_running_loop()
        dealer = begin_task(loop, stream.deal(abegin(self.source)), f"asyncloader {self!r}")
        try:
            while items := await stream.take():
                yield items
                del items
        finally:
            await cancelled([dealer])
            await stream.aclose()

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self.groups()) as groups:
            async for items in groups:
                for item in items:
                    yield item
                # Nothing handed out is kept alive here while nobody asks for more.
                del items, item

    def begin_epoch(self, stream: FedStream, *, may_be_changed: bool = False) -> None:
        """Yield the items of this stream when iterated next."""
        self.stream = stream

    def put_cursors(self, into: Cursors) -> None:
        """Add nothing: what was dealt never comes again."""

    def __repr__(self) -> str:
        return f"FedFromWorkers({self.part})"
