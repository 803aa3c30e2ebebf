"""The items that the loader feeds to one worker.

This file is about ``FeedLine``: the loader's end of the channel on which a worker asks for items
and gets them, and the items that have not come back yet.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.envelope import Envelope, Key
from asyncloader.errors import TransportError
from asyncloader.runtime import begin_task, in_thread
from asyncloader.transport.arena import Arena
from asyncloader.transport.codec import Encoded
from asyncloader.transport.ends import LoopEnd, OnClosed
from asyncloader.transport.frame import Frame
from asyncloader.waiting import do_nothing
from asyncloader.workers.handing import encoder_for
from asyncloader.workers.messages import (
    NO_EPOCH,
    EndEpoch,
    FrameKind,
    Grant,
    StreamEnded,
    dump_message,
    items_head,
    load_command,
    load_slots,
)


class FeedLine:
    """Deals items to one worker, as far as it grants. All methods belong to the loop."""

    def __init__(self, channel: LoopEnd, arena_bytes: int) -> None:
        #: How many more items the worker asks for.
        self.credits = 0
        #: The items the worker has not given back, oldest first, with the time they were dealt.
        self.out: dict[Key, tuple[Envelope, float]] = {}
        self.on_credit: Callable[[], None] = do_nothing
        self._on_closed: OnClosed = do_nothing
        #: Whether the worker was told that every item was dealt.
        self.is_finished = False
        #: Whether the worker was dealt items without a key.
        self.has_unkeyed = False
        self.last_heard = time.monotonic()
        #: Whether an item is pickled on its way, which takes its time.
        self.pickles = not channel.hands_over
        self._channel = channel
        self._arena = Arena(arena_bytes)
        # A worker cannot import the main script, which may define an item's class.
        self._encoder = encoder_for(channel, self._arena, main_by_value=True)
        self._epoch = NO_EPOCH
        #: Whether a thread uses the arena; slots that come back meanwhile wait.
        self._is_encoding = False
        self._returned: list[int] = []
        self._is_closed = False

    def attach(self, loop: asyncio.AbstractEventLoop, on_closed: OnClosed) -> None:
        """Listen to the worker on a loop; ``on_closed`` is called once when that fails."""
        self._on_closed = on_closed
        self._channel.attach(loop, self._receive, on_closed)

    def detach(self) -> None:
        """Leave the loop."""
        self._channel.detach()

    def begin_epoch(self, epoch: int) -> None:
        """Deal for an epoch, as soon as the worker asks."""
        self.end_epoch()
        self._epoch = epoch

    def end_epoch(self) -> None:
        """Tell a worker that waits for items that none will come."""
        if self._epoch != NO_EPOCH:
            self._say(EndEpoch(self._epoch))
        self._epoch = NO_EPOCH
        self.credits = 0
        self.out.clear()
        self.on_credit = do_nothing
        self.is_finished = self.has_unkeyed = False

    def take_over(self, predecessor: FeedLine) -> None:
        """Replace the line of a worker that is gone."""
        self.on_credit = predecessor.on_credit
        if predecessor.is_finished:
            self.finish()

    def can_deal(self) -> bool:
        """Whether the worker asks for an item, and none is being pickled for it."""
        return self.credits > 0 and not self._is_encoding

    def deal(self, item: Any) -> None:
        """Send an item; if pickling raises, raise that and send nothing."""
        key = self._note(item)
        try:
            encoded = self._encoder.encode(_parts_of(item))
        except BaseException:
            self._take_from(key)
            raise
        self._send(self._epoch, encoded)

    async def deal_heavy(self, item: Any) -> None:
        """Send an item that a thread pickles; if that raises, raise it and send nothing.

        The thread always finishes: the worker must be told of new shared memory.
        """
        key = self._note(item)
        self._is_encoding = True
        work = self._encode_in_thread(self._epoch, item)
        encoding = begin_task(asyncio.get_running_loop(), work, "asyncloader dealing")
        try:
            await asyncio.shield(encoding)
        except asyncio.CancelledError:
            await asyncio.wait([encoding])
            encoding.exception()  # mark it as seen: nobody waits for it any more
            raise
        except BaseException:
            self._take_from(key)
            raise

    def lose_all(self) -> list[Envelope]:
        """Return the items that the worker has; they will not come back."""
        lost = [envelope for envelope, _ in self.out.values()]
        self.out.clear()
        return lost

    def owes_since(self) -> float:
        """Return when the oldest item that the worker has was dealt, or infinity."""
        return next((dealt for _, dealt in self.out.values()), math.inf)

    def finish(self) -> None:
        """Say that every item was dealt."""
        if not self.is_finished:
            self.is_finished = True
            self._say(StreamEnded(self._epoch, 0))

    def close(self) -> None:
        """Close the channel, and give the shared memory back."""
        self._channel.close()
        self._is_closed = True
        if not self._is_encoding:
            self._arena.close()

    def _note(self, item: Any) -> Key | None:
        self.credits -= 1
        if not isinstance(item, Envelope):
            self.has_unkeyed = True
            return None
        self.out[item.key] = (item, time.monotonic())
        return item.key

    def _take_from(self, key: Key | None) -> None:
        """Note that an item was not sent after all."""
        self.credits += 1
        if key is not None:
            self.out.pop(key, None)

    async def _encode_in_thread(self, epoch: int, item: Any) -> None:
        try:
            encoded = await in_thread(self._encoder.encode, _parts_of(item))
        finally:
            self._is_encoding = False
            self._take_back()
            if self._is_closed:
                self._arena.close()
            self.on_credit()
        self._send(epoch, encoded)

    def _send(self, epoch: int, encoded: Encoded) -> None:
        self._channel.send(
            FrameKind.ITEMS, [items_head(epoch, 0, cost=1), *encoded.parts], encoded.fds
        )

    def _say(self, message: EndEpoch | StreamEnded) -> None:
        self._channel.send(FrameKind.MESSAGE, dump_message(message))

    def _receive(self, frames: list[Frame]) -> None:
        self.last_heard = time.monotonic()
        try:
            for frame in frames:
                self._on_frame(frame)
        except TransportError as error:
            self._refuse(error)
        if not self._is_encoding:
            self._take_back()

    def _take_back(self) -> None:
        returned, self._returned = self._returned, []
        if not self._is_closed:
            try:
                self._arena.release(returned)
            except TransportError as error:
                self._refuse(error)

    def _refuse(self, error: TransportError) -> None:
        """Stop listening to a worker that sends malformed data."""
        self._channel.detach()
        self._on_closed(error)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == FrameKind.RELEASED:
            self._returned += load_slots(frame.payload)
            return
        command = load_command(frame.payload)
        if isinstance(command, Grant) and command.epoch == self._epoch:
            self.credits += command.credits
            self.on_credit()


def _parts_of(item: Any) -> list[Any]:
    # The key is outside the item, so that it is known if the item cannot be read.
    return [item.key, item.item] if isinstance(item, Envelope) else [None, item]
