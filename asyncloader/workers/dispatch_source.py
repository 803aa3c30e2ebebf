"""The items that a worker is dealt: each item goes to one worker only.

This file is about ``FromDispatcher``, which replaces the dispatching process's part in a worker's
graph and yields the items dealt to this worker; and about ``FromLoader``, which does the same for
a source that lives with the loader.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.envelope import Envelope
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.errors import LoaderError, TransportError
from asyncloader.transport.channel import close_all
from asyncloader.transport.ends import BlockingEnd
from asyncloader.transport.frame import Frame
from asyncloader.waiting import Stopped
from asyncloader.worker_info import get_worker_info
from asyncloader.workers.handing import opener_for
from asyncloader.workers.messages import (
    EndEpoch,
    FrameKind,
    Grant,
    StreamEnded,
    StreamFailed,
    dump_message,
    dump_slots,
    load_dealt,
    split_items,
)
from asyncloader.workers.remote_errors import pack_error, unpack_error

#: How many frames the dispatching process may be ahead of a worker.
DEALT_CREDITS = 10


class Supply:
    """The worker's end of its channel to the dispatching process.

    The worker asks for more, by credits, when it has opened all that has come.
    """

    #: How many credits a worker grants in advance.
    ahead = DEALT_CREDITS

    def __init__(self, channel: BlockingEnd) -> None:
        self._channel = channel
        self._decoder = opener_for(channel)
        #: Frames that were received and not opened yet. Those of an epoch that was left must
        #: be opened too, because they announce shared memory.
        self._arrived: deque[Frame] = deque()
        #: How many credits were used that are not granted again yet.
        self._used = 0

    def close(self) -> None:
        """Close the channel, and give the shared memory back."""
        for frame in self._arrived:
            close_all(each for each in frame.fds if isinstance(each, int))
        self._channel.close()
        self._decoder.close()

    def items(self, epoch: int) -> Iterator[Any]:
        """Yield the items dealt to this worker in an epoch; raise Stopped if the epoch is left."""
        self._grant(epoch, self.ahead)
        self._used = 0
        while True:
            if not self._arrived:
                self._grant(epoch, self._used)
                self._receive()
                self._used = 0
            frame = self._arrived.popleft()
            if frame.kind == FrameKind.ITEMS:
                yield from self._opened(frame, epoch)
            elif self._is_end(frame, epoch):
                return

    def _opened(self, frame: Frame, epoch: int) -> Iterable[Any]:
        """Return a frame's items."""
        refused = self._decoder.refused
        cost, items = self._dealt(frame, epoch)
        self._used += cost
        return items if self._decoder.refused == refused else _up_to_refused(items)

    def _receive(self) -> None:
        """Wait until there are frames to open."""
        with _stopping_when_gone():
            self._arrived.extend(self._channel.receive_ready() or [self._channel.receive()])

    def _grant(self, epoch: int, credits: int) -> None:
        """Grant more credits, and return the slots that nobody uses any more."""
        released = self._decoder.take_released()
        with _stopping_when_gone():
            if released:
                self._channel.send(FrameKind.RELEASED, dump_slots(released))
            if credits:
                self._channel.send(FrameKind.MESSAGE, dump_message(Grant(epoch, 0, credits)))

    def _dealt(self, frame: Frame, epoch: int) -> tuple[int, list[Any]]:
        """Return a frame's cost and its items; no items for an earlier epoch."""
        part = split_items(frame.payload)
        admitted = self._decoder.admit(part.items, frame.fds)
        if part.epoch == epoch:
            return part.cost, self._decoder.items(admitted)
        self._decoder.give_back(admitted)
        return 0, []

    def _is_end(self, frame: Frame, epoch: int) -> bool:
        """Whether the epoch's last item was dealt; raise the error that ends it."""
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


def _up_to_refused(items: list[Any]) -> Iterator[Any]:
    """Yield the items before one that could not be read, and raise the error in its place."""
    for item in items:
        if type(item) is TransportError:
            info = get_worker_info()
            item.worker = None if info is None else info.worker_id
            item.add_note("on its way from the dispatching process to a worker")
            raise item
        yield item


@contextlib.contextmanager
def _stopping_when_gone() -> Iterator[None]:
    try:
        yield
    except EOFError:
        # The loader notices too that the dispatching process is gone, and reports it.
        raise Stopped from None


class FromDispatcher(IterDataPipe[Any]):
    """Yield the items that the dispatching process deals to this worker, in order."""

    #: Whether a pipe stands for one that deals items to workers.
    is_dealt = True

    makes_again = False

    edges = ()

    is_stand_in = True

    def __init__(self) -> None:
        self.length: int | None = None
        self.supply: Supply | None = None
        #: The names of foreign pipes that read this: they may read it twice.
        self.readers = ""
        self._items: Iterator[Any] = iter(())
        self._taken = 0

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    def begin_epoch(self, epoch: int, taken: int = 0) -> None:
        """Begin an epoch whose first ``taken`` items the worker had already."""
        assert self.supply is not None
        self._items, self._taken = self.supply.items(epoch), taken

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return DealtPass(edge)

    def new_supply(self, channel: BlockingEnd) -> Supply:
        """Return the worker's end of the channel on which the items arrive."""
        return Supply(channel)

    @property
    def taken(self) -> int:
        """How many of the items dealt to the worker were taken in this epoch."""
        return self._taken

    def items_from(self, position: int) -> Iterator[Any]:
        """Yield the dealt items after the first ``position``."""
        if self.supply is None:
            raise LoaderError("the items of a dispatching process can be iterated only in a worker")
        if position < self._taken:
            raise LoaderError(
                f"{self.readers or 'a pipe'} reads twice in one epoch what comes from"
                " sharding_round_robin_dispatch(), which deals each item once. Read it once, or"
                " put sharding_round_robin_dispatch() after the pipe that reads twice"
            )
        # A pass that begins after another one takes the next item.
        while (item := next(self._items, _END)) is not _END:
            self._taken += 1
            if self._taken > position:
                yield item
            del item


class DealtPass(Pass[Any]):
    """One pass over a FromDispatcher; it continues where the pass before stopped."""

    _first: int = 0

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self.pipe.items_from(self._first)
        return items

    def cursor(self) -> Cursor:
        return {"taken": self.pipe.taken}

    def put_source_cursors(self, into: Cursors) -> None:
        """Add nothing: the sources run in the dispatching process."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        # Items before the cursor are not dealt again.
        self._first = 0 if cursor is None else cursor["taken"]
        return position - self._first


class LoaderFedPass(DealtPass):
    """One pass over what the loader deals. It has no cursor: such items never come again."""

    has_place = False


#: Marks the end of the items.
_END = object()


#: How many items a worker asks for in advance. The others wait in the loader, which gives each
#: to the least busy worker.
FED_CREDITS = 2


class FedSupply(Supply):
    """The worker's end of the channel over which the loader feeds it, item by item.

    The worker asks for another item when it begins one.
    """

    ahead = FED_CREDITS

    def _opened(self, frame: Frame, epoch: int) -> Iterator[Any]:
        for item in self._fed(self._dealt(frame, epoch)[1]):
            self._grant(epoch, 1)
            yield item
            del item

    def _fed(self, key_and_item: list[Any]) -> list[Any]:
        """Return the item of a frame; if it cannot be read, the error goes to its request."""
        if not key_and_item:
            return []
        key, item = key_and_item
        if key is None:
            if isinstance(item, TransportError):
                raise item
            return [item]
        if isinstance(item, TransportError):
            return [Envelope(key, error=pack_error(item, "on its way to a worker"))]
        return [Envelope(key, item)]


class FromLoader(FromDispatcher):
    """Yield the items that the loader deals to this worker."""

    def __len__(self) -> int:
        raise TypeError(f"{self!r} has no length")

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return LoaderFedPass(edge)

    def new_supply(self, channel: BlockingEnd) -> Supply:
        return FedSupply(channel)
