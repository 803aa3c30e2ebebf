"""A part whose source lives with the loader.

This file is about ``FedFromWorkers``: in the loader's graph it stands between that source
and whatever reads what the workers make of its items.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from asyncloader.datapipes.going_on.cursors import take_number_of
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.datapipes.running.home import cancelled
from asyncloader.errors import LoaderError
from asyncloader.runtime import begin_task
from asyncloader.workers.loader_side.fed_stream import FedStream


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

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> FedPass:
        return FedPass(run)

    def begin_epoch(self, stream: FedStream, *, may_be_changed: bool = False) -> None:
        """Yield the items of this stream when iterated next."""
        self.stream = stream

    def __repr__(self) -> str:
        return f"FedFromWorkers({self.part})"


class FedPass(Pass[Any]):
    """The one pass over a FedFromWorkers. It has no place: what was dealt never comes again."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self.groups()) as groups:
            async for items in groups:
                for item in items:
                    yield item
                # Nothing handed out is kept alive here while nobody asks for more.
                del items, item

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they come."""
        pipe: FedFromWorkers = self.pipe
        stream, pipe.stream = pipe.stream, None
        if stream is None:
            raise LoaderError(f"{pipe!r} is read once an epoch, by the loader of its workers")
        stream.begin()
        loop = asyncio.get_running_loop()
        dealing = stream.deal(self.source.abegin())
        dealer = begin_task(loop, dealing, f"asyncloader {pipe!r}")
        try:
            while items := await stream.take():
                yield items
                del items
        finally:
            await cancelled([dealer])
            await stream.aclose()
