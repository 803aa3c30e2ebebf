"""An item that belongs to a request.

This file is about ``Envelope``, which carries an item through a graph that answers requests. It
names the request, and it can carry an error in the item's place, so that the stream goes on.
"""

from __future__ import annotations

import pickle
from typing import Any, SupportsIndex

#: The number of a request, or the numbers of those that make up a batch.
Key = int | tuple[Any, ...]


class Envelope:
    """An item, or the error that took its place, and the request that it belongs to.

    ``error`` is an exception, or bytes where it comes from another process.
    """

    __slots__ = ("error", "item", "key")

    def __init__(
        self, key: Key, item: Any = None, error: BaseException | bytes | None = None
    ) -> None:
        self.key = key
        self.item = item
        self.error = error

    def with_item(self, item: Any) -> Envelope:
        """Return the same request's envelope with another item."""
        return Envelope(self.key, item)

    def failed(self, error: BaseException | bytes) -> Envelope:
        """Return the same request's envelope with an error in the item's place."""
        return Envelope(self.key, None, error)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        kind = type(self.item)
        if kind in (bytes, bytearray) and protocol.__index__() >= 5:
            # The bytes are left out of the pickle and travel in shared memory.
            return _of_bytes, (self.key, kind, pickle.PickleBuffer(self.item))
        return Envelope, (self.key, self.item, self.error)


def _of_bytes(key: Key, kind: type[bytes] | type[bytearray], data: Any) -> Envelope:
    return Envelope(key, data if type(data) is kind else kind(data))
