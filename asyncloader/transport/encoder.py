"""Items on their way out, as the payload of a frame.

This file is about ``Encoder``: many items in one payload, their large buffers in
slots of an arena, and one bad item that harms no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncloader.transport.arena import Arena
from asyncloader.transport.code import pickler_by_value
from asyncloader.transport.frame import Buffer
from asyncloader.transport.payload import Placed, Placement, write_payload
from asyncloader.transport.pickling import Pickled, Pickler


class Encoded(NamedTuple):
    """A payload in parts, and the descriptors to be given away with its frame."""

    parts: list[Buffer]
    fds: tuple[int, ...] = ()


def in_band(nbytes: int) -> bool:
    """Do not wait for a slot to come back."""
    return False


class Encoder:
    """Turns items into payloads, in the order in which they will be sent.

    ``on_full`` is called when the arena has no slot left although the receiver has
    some: it returns True to look again, having waited for a release, or False to
    have the buffer travel in the frame itself. With ``main_by_value`` the receiver need not
    have the main script, of which items may be.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        on_full: Callable[[int], bool] = in_band,
        main_by_value: bool = False,
    ) -> None:
        self._arena = arena
        self._on_full = on_full
        self.pickler = Pickler(lambda dump: pickler_by_value()(dump), main_by_value=main_by_value)
        self._together = True

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Return the payload for these items, or raise what pickling one of them raised."""
        pickles = self._pickle(items)
        placement = self.placement()
        try:
            placed = [placement.add(pickled) for pickled in pickles]
            placement.finish()
        except BaseException:
            placement.undo()
            raise
        return self.payload(placement, placed, len(items))

    def placement(self) -> Placement:
        """Return the places for the buffers of one payload, none taken yet."""
        return Placement(self._arena, self._on_full)

    def payload(self, placement: Placement, pickles: Sequence[Placed], count: int) -> Encoded:
        """Put a payload together; it must be sent next."""
        news = self._arena.take_news()
        return Encoded(write_payload(news, placement, pickles, count), news.fds)

    def _pickle(self, items: Sequence[Any]) -> list[Pickled]:
        """Pickle all at once where that is safe, else each for itself."""
        if self._together and len(items) > 1:
            try:
                pickled = self.pickler.dump_list(items)
            except Exception:  # noqa: BLE001 - whose fault it was is found out below
                pass
            else:
                if not pickled.foreign:
                    return [pickled]
        pickles = [self.pickler.dump(item) for item in items]
        self._together = not any(pickled.foreign for pickled in pickles)
        return pickles
