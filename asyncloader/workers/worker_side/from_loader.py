"""What a worker is fed by the loader.

This file is about ``FromLoader``, which stands in a worker's graph where a source that lives
with the loader was cut off, and yields the items that the loader deals to this worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.items.envelope import Envelope
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.errors import TransportError
from asyncloader.transport.channel import Channel
from asyncloader.workers.conversation.failure import pack_error
from asyncloader.workers.conversation.messages import Kind
from asyncloader.workers.worker_side.supply import FromDispatcher, LoaderFedPass, Supply

#: How many items may be on their way to a worker that has not asked for them yet. The rest
#: waits with the loader, where the least busy worker is found for it.
FED_CREDITS = 2


class FedSupply(Supply):
    """The worker's end of the channel over which the loader feeds it, item by item."""

    def items(self, epoch: int) -> Iterator[Any]:
        self._grant(epoch, FED_CREDITS)
        while True:
            if not self._arrived:
                self._grant(epoch, 0)
                self._receive()
            frame = self._arrived.popleft()
            if frame.kind == Kind.ITEMS:
                for item in self._fed(self._dealt(frame, epoch)[1]):
                    # Another is asked for while this one is worked on.
                    self._grant(epoch, 1)
                    yield item
                    del item
            elif self._is_end(frame, epoch):
                return

    def _fed(self, key_and_item: list[Any]) -> list[Any]:
        """Return the item of a frame; the error of one that cannot be read is its request's."""
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

    def new_pass(self, run: Run[Any]) -> Pass[Any]:
        return LoaderFedPass(run)

    def new_supply(self, channel: Channel) -> Supply:
        return FedSupply(channel)
