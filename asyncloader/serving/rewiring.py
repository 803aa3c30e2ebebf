"""A graph made to carry requests.

This file is about ``rewired``: every pipe below a feed is made to work on envelopes, or
refused by name where a request would not come out of it with an answer of its own.

    Feed ─ map ─ batch ─ collate    becomes    Feed ─ map* ─ RequestBatcher ─ collate* ─ Results
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from asyncloader.datapipes.calls.thread_mapping import ThreadMapper
from asyncloader.datapipes.going_on.cursors import take_number_of
from asyncloader.datapipes.groups.batching import Batcher
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.edges import edges_of
from asyncloader.datapipes.pipe.kinds import can, is_splitter
from asyncloader.datapipes.pipe.run import Pass, Run, is_async_pipe
from asyncloader.errors import LoaderError
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.walk import breadth_first, traverse_dps
from asyncloader.serving.carrying import Wants, carried
from asyncloader.serving.ledger import Ledger
from asyncloader.serving.stages import Lockstep, RequestBatcher, sifted
from asyncloader.serving.threads import ThreadStage
from asyncloader.serving.unanswered import FedBatch, FedItem, unanswered

BeingRead = Callable[[], contextlib.AbstractContextManager[None]]


def rewired(end: Any, feed: Any, ledger: Ledger, being_read: BeingRead) -> Any:
    """Return the end of the graph, whose pipes are changed; LoaderError for one that cannot be."""
    stages = Stages(ledger)
    for pipe in reversed(breadth_first(end)):
        if pipe is not feed:
            _check_has_one_source(pipe)
            end = _with(end, pipe, stages.stage_for(pipe))
    return Results(end, ledger, being_read)


class Stages:
    """Finds what stands in a pipe's place, from the feed on downwards."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wants = Wants(ledger.wants)
        self._is_batched = False

    def stage_for(self, pipe: Any) -> Any:
        """Return what stands in a pipe's place; it may be the pipe itself, changed."""
        if isinstance(pipe, Batcher):
            return self._batcher(pipe)
        if isinstance(pipe, ThreadMapper):
            return ThreadStage(pipe, self._wants)
        if can(pipe, "carry") and pipe.carry(
            functools.partial(carried, pipe=pipe, wants=self._wants)
        ):
            return pipe
        if isinstance(pipe, OneToOne) and _is_users(pipe):
            _check_is_plain(pipe)
            return Lockstep(pipe, self._wants)
        raise LoaderError(
            f"{stage_name(pipe)} cannot stand below a feed: it does not make exactly one item of"
            " one, so requests would lose their answers. Use map, async_map, thread_map, collate"
            " and batch(n, max_wait=...), or a pipe of your own that derives from OneToOne"
        )

    def _batcher(self, pipe: Batcher[Any]) -> RequestBatcher:
        if pipe.max_wait is None:
            raise LoaderError(
                f"below a feed {stage_name(pipe)} could wait for ever for company; say how long,"
                f" by batch({pipe.batch_size}, max_wait=seconds)"
            )
        if pipe.drop_last:
            raise LoaderError(
                f"below a feed {stage_name(pipe)} would drop requests that wait for an answer;"
                " leave drop_last out"
            )
        if self._is_batched:
            raise LoaderError(f"requests are put together once: take {stage_name(pipe)} out")
        self._is_batched = True
        return RequestBatcher(
            pipe.source, pipe.batch_size, pipe.max_wait, pipe.wrapper_class, self._ledger
        )


class Results(IterDataPipe[FedItem | FedBatch]):
    """Yield what the graph made of the requests, to be answered; the rest is settled.

    It is inside of ``being_read()`` from the first item asked for to the end.
    """

    def __init__(self, source: Any, ledger: Ledger, being_read: BeingRead) -> None:
        self.source = source
        self.ledger = ledger
        self.being_read = being_read

    def is_replicable(self) -> bool:
        return False

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> ResultsPass:
        return ResultsPass(run)


class ResultsPass(Pass[FedItem | FedBatch]):
    """One pass over the Results. It has no place: what was asked does not come again."""

    async def __aiter__(self) -> AsyncIterator[FedItem | FedBatch]:
        pipe: Results = self.pipe
        loop = asyncio.get_running_loop()
        with pipe.being_read():
            async with contextlib.aclosing(sifted(self.source, pipe.ledger)) as envelopes:
                async for envelope in envelopes:
                    yield unanswered(envelope, pipe.ledger, loop)
                    del envelope


def _with(end: Any, pipe: Any, stage: Any) -> Any:
    if stage is pipe:
        return end
    # In stats and errors it goes by the name of the pipe that the user wrote.
    take_number_of(stage, pipe)
    stage.known_as = stage_name(pipe)
    return next(iter(replace_dp(traverse_dps(end), pipe, stage).values()))[0]


def _check_has_one_source(pipe: Any) -> None:
    if is_splitter(pipe) or len(edges_of(pipe)) != 1:
        raise LoaderError(
            f"{stage_name(pipe)} cannot stand in a graph with a feed: only a chain of pipes from"
            " the feed to the end gives each request one answer"
        )


def _check_is_plain(pipe: OneToOne) -> None:
    if is_async_pipe(pipe):
        raise LoaderError(
            f"{stage_name(pipe)} cannot stand below a feed, since it has an __aiter__: each"
            " request would wait for the one before; give what it awaits to async_map"
        )


def _is_users(pipe: Any) -> bool:
    return not type(pipe).__module__.startswith("asyncloader.")
