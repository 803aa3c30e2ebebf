"""A payload that grows while its items are made.

This file is about ``Packing``: an item is copied when it is added, so that it may be
changed afterwards, and the payload can be sent at any moment.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from asyncloader.transport.encoder import Encoded, Encoder
from asyncloader.transport.payload import Placed


class Packing:
    """A payload that is made item by item.

    An item is pickled, and its buffers are copied, when it is added: it may be
    changed afterwards. Plain items, small and of nothing but numbers and strings, are
    pickled together at the end: of those that can be changed a copy waits for it.
    One thread adds; another may ``finish`` if no ``add`` is under way.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._placement = encoder.placement()
        #: Items that wait to be pickled together; there are none when there are ``pickles``.
        #: NUMBERS may be appended, without ``add``, while there are no pickles: that is one
        #: operation, which goes well with a ``finish`` in another thread.
        self.plain: list[Any] = []
        self.pickles: list[Placed] = []
        self.nbytes = 0

    @property
    def count(self) -> int:
        """How many items were added."""
        return len(self.pickles) + len(self.plain)

    def add(self, item: Any) -> bool:
        """Add an item; whether it is a plain one, which waits to be pickled together with others.

        One that cannot be pickled raises, and the others stay.
        """
        if not self.pickles and (nbytes := _plain_size(item)):
            self.plain.append(item.copy() if type(item) in _CHANGING else item)
            self.nbytes += nbytes
            return True
        self._pickle_plain()
        self._pickle(item)
        return False

    def finish(self) -> tuple[int, Encoded]:
        """Return how many items the payload has, and it, and begin the next."""
        pickles, count = self._taken()
        placement = self._placement
        if placement.buffers:
            placement.finish()
            self._placement = self._encoder.placement()
        self.nbytes = 0
        return count, self._encoder.payload(placement, pickles, count)

    def drop(self) -> None:
        """Forget what was added and take its slots back."""
        self._placement.undo()
        self._placement = self._encoder.placement()
        self.plain.clear()
        self.pickles = []
        self.nbytes = 0

    def _taken(self) -> tuple[list[Placed], int]:
        pickles, self.pickles = self.pickles, []
        if pickles:
            return pickles, len(pickles)
        count = len(self.plain)
        # What is appended in between stays for the next payload.
        items = self.plain[:count]
        del self.plain[:count]
        together = items[0] if count == 1 else items
        return [Placed(pickle.dumps(together, protocol=5), 0)], count

    def _pickle_plain(self) -> None:
        for item in self.plain:
            self._pickle(item)
        self.plain.clear()

    def _pickle(self, item: Any) -> None:
        pickled = self._encoder.pickler.dump(item)
        self.pickles.append(self._placement.add(pickled))
        self.nbytes += len(pickled.data) + sum([source.nbytes for source in pickled.sources])


NUMBERS = frozenset({int, float, bool, type(None)})
_PLAIN = NUMBERS | {str}
_CHANGING = frozenset({list, dict})
_NUMBER_BYTES = 9
#: What is larger is pickled by itself, in steps between which other threads have the GIL.
_PLAIN_VALUES = 1_000
_PLAIN_BYTES = 1 << 14


def _plain_size(item: Any) -> int:
    """The bytes of a plain item, roughly; 0 for any other item."""
    kind = type(item)
    if kind is list or kind is tuple:
        return _size_of(item)
    if kind is dict:
        return _size_of((*item, *item.values()))
    return _size_of((item,)) if kind in _PLAIN else 0


def _size_of(values: list[Any] | tuple[Any, ...]) -> int:
    if len(values) > _PLAIN_VALUES:
        return 0
    kinds = set(map(type, values))
    if kinds <= NUMBERS:
        return _NUMBER_BYTES * (1 + len(values))
    nbytes = sum(map(sys.getsizeof, values)) if kinds <= _PLAIN else 0
    return nbytes if nbytes <= _PLAIN_BYTES else 0
