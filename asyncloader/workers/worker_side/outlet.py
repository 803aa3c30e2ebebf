"""A worker, as the dispatching process sees it.

This file is about ``Outlet``: what a worker asks for, and what it was dealt and not yet sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from asyncloader.transport.channel import Channel
from asyncloader.workers.conversation.messages import (
    CREDIT_BYTES,
    CREDIT_ITEMS,
    Command,
    Dealt,
    EndEpoch,
    Grant,
    StreamEnded,
    StreamFailed,
)
from asyncloader.workers.worker_side.marker import Marker
from asyncloader.workers.worker_side.punctual import Punctual
from asyncloader.workers.worker_side.stream import FRAME_CREDITS, Stream
from asyncloader.workers.worker_side.supply import DEALT_CREDITS
from asyncloader.workers.worker_side.talk import Talk

#: How much may be dealt to a worker that has given no credit for it: what a frame may have.
_ROOM_ITEMS = FRAME_CREDITS * CREDIT_ITEMS
_ROOM_BYTES = FRAME_CREDITS * CREDIT_BYTES


class Outlet:
    """One worker, as the dispatching process sees it."""

    def __init__(
        self,
        channel: Channel,
        arena_bytes: int,
        punctual: Punctual,
        pack_error: Callable[[BaseException, str], bytes],
    ) -> None:
        self.talk = Talk(channel, waits=False)
        self.talk.arena.budget = arena_bytes
        self._punctual = punctual
        self._pack_error = pack_error
        #: Credits for an epoch that the worker has begun and this process has not yet.
        self._early: dict[int, int] = {}
        self.ending: StreamEnded | StreamFailed | None = None
        self.is_gone = False
        self.stream: Stream | None = None

    def begin(self, epoch: int, marker: Marker, pipe: Any, dealt: Callable[[], int]) -> None:
        """Begin an epoch with the credits that the worker gave for it already.

        ``dealt`` says how many items of the pipe all workers were dealt.
        """
        credits = self._early.pop(epoch, 0)
        self._early.clear()
        self.stream = Stream(
            self.talk,
            self._punctual,
            self._pack_error,
            pipe,
            epoch=epoch,
            number=0,
            credits=credits,
            one_by_one=False,
            marker=marker,
            counted=dealt,
        )

    def end(self) -> None:
        """End the epoch, if one was begun: drop what was not sent, and tell the worker."""
        stream, self.stream = self.stream, None
        self.ending = None
        if stream is not None:
            stream.drop()
            self.tell(EndEpoch(stream.epoch))

    def heed(self, command: Command) -> None:
        """Take the worker's credits for this or a coming epoch."""
        if not isinstance(command, Grant):
            return
        if self.stream is not None and self.stream.epoch == command.epoch:
            self.stream.grant(command.credits)
        else:
            self._early[command.epoch] = self._early.get(command.epoch, 0) + command.credits

    def has_room(self) -> bool:
        """Whether another item can be dealt without running ahead of what was asked for."""
        stream = self.stream
        return stream is not None and (stream.credits > 0 or _is_light(stream))

    def is_starving(self) -> bool:
        """Whether the worker has used up all that it was dealt."""
        stream = self.stream
        return stream is not None and stream.credits >= DEALT_CREDITS and _is_light(stream)

    def send(self) -> None:
        """Send what was dealt, as far as credits go; in vain if the worker is gone."""
        if self.stream is not None and not self.is_gone:
            with self._noticing_its_end():
                self.stream.send()

    def settle(self, *, is_waiting: bool) -> None:
        """Send what gets no more company, as far as credits go, and how the epoch ended."""
        if is_waiting or self.ending is not None:
            self.send()
        if self.stream is not None and self.ending is not None and not self.stream.count:
            self.tell(self.ending)
            self.ending = None

    def tell(self, message: Dealt) -> None:
        """Tell the worker something; in vain if it is gone."""
        with self._noticing_its_end():
            self.talk.report(message)

    def hear(self) -> None:
        """Take what the worker says, and send it what there was no room for."""
        with self._noticing_its_end():
            self.talk.flush()
            for command in self.talk.commands():
                self.heed(command)

    @contextlib.contextmanager
    def _noticing_its_end(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            # The loader sees that death too, and ends the epoch or replaces everybody.
            self.is_gone = True


def _is_light(stream: Stream) -> bool:
    return stream.count < _ROOM_ITEMS and stream.nbytes < _ROOM_BYTES
