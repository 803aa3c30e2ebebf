"""A payload that grows while its items are made.

This file is about ``Packing``: an item is copied when it is added, so that it may be
changed afterwards, and the payload can be sent at any moment.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from asyncloader.transport.encoder import Encoded, Encoder
from asyncloader.transport.pickling import Pickled


class Packing:
    """A payload that is made item by item.

    An item is pickled, and its buffers are copied, when it is added: it may be
    changed afterwards. Items that nobody can change are pickled together at the end.
    One thread adds; another may ``finish`` if no ``add`` is under way.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._placement = encoder.placement()
        #: Items that wait to be pickled together; there are none when there are ``pickles``.
        #: NUMBERS may be appended, without ``add``, while there are no pickles: that is one
        #: operation, which goes well with a ``finish`` in another thread.
        self.unchanging: list[Any] = []
        self.pickles: list[Pickled] = []
        self.nbytes = 0

    @property
    def count(self) -> int:
        """How many items were added."""
        return len(self.pickles) + len(self.unchanging)

    def add(self, item: Any) -> None:
        """Add an item; one that cannot be pickled raises, and the others stay."""
        if not self.pickles and _is_unchanging(item):
            self.unchanging.append(item)
            self.nbytes += _size(item)
        else:
            self._pickle_unchanging()
            self._pickle(item)

    def finish(self) -> Encoded:
        """Return the payload and begin the next."""
        pickles, count = self._taken()
        placement = self._placement
        if placement.buffers:
            placement.finish()
            self._placement = self._encoder.placement()
        self.nbytes = 0
        return self._encoder.payload(placement, pickles, count)

    def drop(self) -> None:
        """Forget what was added and take its slots back."""
        self._placement.undo()
        self._placement = self._encoder.placement()
        self.unchanging.clear()
        self.pickles = []
        self.nbytes = 0

    def _taken(self) -> tuple[list[Pickled], int]:
        pickles, self.pickles = self.pickles, []
        if pickles:
            return pickles, len(pickles)
        count = len(self.unchanging)
        # What is appended in between stays for the next payload.
        items = self.unchanging[:count]
        del self.unchanging[:count]
        together = items[0] if count == 1 else items
        return [Pickled(pickle.dumps(together, protocol=5), [], False)], count

    def _pickle_unchanging(self) -> None:
        for item in self.unchanging:
            self._pickle(item)
        self.unchanging.clear()

    def _pickle(self, item: Any) -> None:
        pickled = self._encoder.pickler.dump(item)
        if pickled.sources:
            self._placement.add(pickled.sources)
            self.nbytes += sum(source.nbytes for source in pickled.sources)
            pickled.sources[:] = [source._replace(owner=None) for source in pickled.sources]
        self.pickles.append(pickled)
        self.nbytes += len(pickled.data)


NUMBERS = frozenset({int, float, bool, type(None)})
_UNCHANGING = NUMBERS | {str}


def _size(item: Any) -> int:
    """The bytes of an item that nobody can change, roughly."""
    if type(item) is str:
        return len(item)
    return sum(map(sys.getsizeof, item)) if type(item) is tuple else 0


def _is_unchanging(item: Any) -> bool:
    kind = type(item)
    if kind is tuple:
        return _UNCHANGING.issuperset(map(type, item))
    return kind in _UNCHANGING
