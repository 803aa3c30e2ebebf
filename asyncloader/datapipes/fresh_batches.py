"""Batches of what a rollout yields as it is ready.

This file is about ``Fresh``. Where results come as they are ready, how old one is when it is
trained depends on the batches before it. So a batch is made only while few others wait to be
trained, and of what will be young enough when its turn comes; the rest goes back to the rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from asyncloader.datapipes.recording import NumberedItem, Stage, StagePass, joined
from asyncloader.datapipes.rollout_calls import Calls
from asyncloader.datapipes.rollouts import RolloutPass
from asyncloader.datapipes.running.cursors import aclose_items, groups_of
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.settled import Reason

_END: Any = object()


class Fresh(Stage):
    """Stands for the pipe ``batches``, and makes its batches of what ``rollout`` yields.

    ``full(items)`` says how many of the first are a full batch, or 0; ``together`` makes a batch of
    them. One that is not full at the end is left out unless ``keeps_rest``.
    """

    # It stands for a pipe of this process, which stats show.
    is_stand_in = False
    times_with = ""

    def __init__(
        self,
        source: Any,
        rollout: Any,
        full: Callable[[list[Any]], int],
        together: Callable[[list[Any]], Any],
        *,
        keeps_rest: bool,
    ) -> None:
        super().__init__(source)
        self.judge = rollout
        self.full = full
        self.together = together
        self.keeps_rest = keeps_rest
        self.edges = (source,)

    def is_async(self) -> bool:
        return True

    def waits(self) -> bool:
        return True

    def new_pass(self, edge: Edge[Any]) -> FreshPass:
        return FreshPass(edge)


class FreshPass(StagePass):
    """One pass over a Fresh: what it holds for the next batch."""

    gathered: list[NumberedItem]

    def groups(self) -> AsyncGenerator[list[Any], None]:
        return groups_of(aiter(self))

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.gathered = []
        items = aiter(self.source.abegin())
        coming: asyncio.Future[Any] | None = None
        # The rollout's pass begins with the source's.
        try:
            while True:
                while size := self.pipe.full([each.item for each in self.gathered]):
                    async for batch in self._made(size, is_last=False):
                        yield batch
                        del batch
                if coming is None:
                    coming = asyncio.ensure_future(anext(items, _END))
                    await asyncio.sleep(0)
                if not await self._has_come(coming):
                    async for batch in self._made(len(self.gathered), is_last=True):
                        yield batch
                        del batch
                    continue
                item, coming = coming.result(), None
                if item is _END:
                    return
                self.gathered.append(item)
                del item
        finally:
            if coming is not None:
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await coming
            await aclose_items(items)

    def _calls(self) -> Calls | None:
        """Return the rollout's, once it has begun."""
        found: RolloutPass | None = self.edge.tree.latest_pass(self.pipe.judge)
        return None if found is None else found.calls

    async def _has_come(self, coming: asyncio.Future[Any]) -> bool:
        """Wait for the next item; False if none can come before those held are in a batch."""
        calls = self._calls()
        if calls is None:
            await asyncio.wait([coming])
            return True
        waiter = calls.maker
        coming.add_done_callback(lambda _: waiter.wake())
        await waiter.until(lambda: coming.done() or calls.has_given_all(len(self.gathered)))
        return coming.done()

    async def _made(self, size: int, *, is_last: bool) -> AsyncIterator[Any]:
        """Yield a batch of the first items that are held, unless one of them is too old."""
        calls = self._calls()
        assert calls is not None
        prompts = calls.prompts
        await calls.maker.until(prompts.may_make)
        batch, self.gathered = self.gathered[:size], self.gathered[size:]
        fresh = [each for each in batch if not prompts.is_stale(each)]
        if len(fresh) < len(batch):
            self.gathered = fresh + self.gathered
            for each in batch:
                if prompts.is_stale(each):
                    calls.take_back(each)
            return
        if is_last and not self.pipe.keeps_rest:
            for each in batch:
                each.leave_out(Reason.DROP_LAST)
            return
        whole = self.pipe.together([each.item for each in batch])
        prompts.note_made(batch)
        yield NumberedItem(joined(each.key for each in batch), whole, batch[0].ledger)
