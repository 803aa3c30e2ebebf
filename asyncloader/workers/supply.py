"""What a worker is dealt.

This file is about ``FromDispatcher``, which stands in a worker's graph where the
dispatching process's part was cut off, and yields the items dealt to this worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.cursors import Cursors, cursor_of, dropped, put_cursor
from asyncloader.errors import LoaderError, TransportError
from asyncloader.runtime import Stopped
from asyncloader.transport.arena_view import ArenaView
from asyncloader.transport.channel import Channel
from asyncloader.transport.decoder import Decoder
from asyncloader.transport.frame import Frame
from asyncloader.workers.failure import unpack_error
from asyncloader.workers.messages import (
    EndEpoch,
    Grant,
    ItemsFrame,
    Kind,
    StreamEnded,
    StreamFailed,
    dump_message,
    dump_slots,
    load_dealt,
    split_items,
)

#: How many frames the dispatching process may be ahead of a worker.
DEALT_CREDITS = 10


class Supply:
    """The worker's end of its channel to the dispatching process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._view = ArenaView()
        self._decoder = Decoder(self._view)

    def close(self) -> None:
        """Close the channel, and give the shared memory back."""
        self._channel.close()
        self._view.close()

    def items(self, epoch: int) -> Iterator[Any]:
        """Yield what this worker is dealt in an epoch; Stopped when that is abandoned."""
        used = DEALT_CREDITS
        while True:
            frames, used = self._frames(epoch, used), 0
            for frame in frames:
                if frame.kind == Kind.ITEMS:
                    part = split_items(frame.payload)
                    used += part.cost
                    yield from self._dealt(part, frame.fds, epoch)
                elif self._is_end(frame, epoch):
                    return

    def _frames(self, epoch: int, used: int) -> list[Frame]:
        """Ask for as many frames as were used up, and wait until there are some."""
        try:
            self._grant(epoch, used)
            return self._channel.receive_ready() or [self._channel.receive()]
        except EOFError:
            # The loader sees that the dispatching process is gone, and says so.
            raise Stopped from None

    def _grant(self, epoch: int, credits: int) -> None:
        released = self._view.take_released()
        if released:
            self._channel.send(Kind.RELEASED, dump_slots(released))
        if credits:
            self._channel.send(Kind.MESSAGE, dump_message(Grant(epoch, 0, credits)))

    def _dealt(self, part: ItemsFrame, fds: Sequence[int], epoch: int) -> list[Any]:
        admitted = self._decoder.admit(part.items, fds)
        if part.epoch == epoch:
            return self._decoder.items(admitted)
        self._decoder.give_back(admitted)
        return []

    def _is_end(self, frame: Frame, epoch: int) -> bool:
        """Whether the epoch's last item was dealt; raises what ends it otherwise."""
        message = load_dealt(frame.payload)
        if message.epoch != epoch:
            return False
        match message:
            case StreamEnded():
                return True
            case StreamFailed(_, _, error):
                raise unpack_error(error)
            case EndEpoch():
                raise Stopped
        raise TransportError(f"the dispatching process sent {message!r}")


class FromDispatcher(IterDataPipe[Any]):
    """Yield the items that the dispatching process deals to this worker, in order."""

    makes_again = False

    edges = ()

    is_stand_in = True

    #: How many items were dealt to the worker, from the beginning of the epoch.
    taken = 0

    def __init__(self) -> None:
        self.epoch = 0
        self.length: int | None = None
        self.supply: Supply | None = None

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self._items(0)

    def new_supply(self, channel: Channel) -> Supply:
        """Return the worker's end of the channel that the items come over."""
        return Supply(channel)

    def put_cursors(self, into: Cursors) -> None:
        put_cursor(self, {"taken": self.taken}, into)

    def iter_from(self, position: int, cursors: Cursors) -> Iterator[Any]:
        # What the worker had by the time of the cursor is not dealt again.
        cursor = cursor_of(self, cursors) or {"taken": 0}
        return dropped(self._items(cursor["taken"]), position - cursor["taken"])

    def _items(self, taken: int) -> Iterator[Any]:
        if self.supply is None:
            raise LoaderError("what a dispatching process deals can be iterated only in a worker")
        self.taken = taken
        for item in self.supply.items(self.epoch):
            self.taken += 1
            yield item
