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
from asyncloader.transport.payload import Placement, write_payload
from asyncloader.transport.pickling import Pickled, Pickler
from asyncloader.transport.slots import NO_NEWS

Substitute = Callable[[Any, Exception], Any]


class Encoded(NamedTuple):
    """A payload in parts, and the descriptors to be given away with its frame."""

    parts: list[Buffer]
    fds: tuple[int, ...] = ()


def refuse(item: Any, error: Exception) -> Any:
    """Give up on a list with an item that cannot be pickled."""
    try:
        raise error
    finally:
        del item, error  # the error's traceback has this frame, which must not keep them


def in_band(nbytes: int) -> bool:
    """Do not wait for a slot to come back."""
    return False


class Encoder:
    """Turns items into payloads, in the order in which they will be sent.

    ``on_full`` is called when the arena has no slot left although the receiver has
    some: it returns True to look again, having waited for a release, or False to
    have the buffer travel in the frame itself. Without an arena everything does.
    """

    def __init__(
        self,
        arena: Arena | None = None,
        *,
        on_full: Callable[[int], bool] = in_band,
        main_by_value: bool = False,
    ) -> None:
        self._arena = arena
        self._on_full = on_full
        self.pickler = Pickler(lambda dump: pickler_by_value()(dump), main_by_value=main_by_value)
        self._together = True

    def encode(self, items: Sequence[Any], *, substitute: Substitute = refuse) -> Encoded:
        """Return the payload for these items.

        What ``substitute(item, error)`` returns is sent in the place of an item that
        cannot be pickled; by default the error is raised and nothing is sent.
        """
        pickles = self._pickle(items, substitute)
        placement = self.placement()
        try:
            for pickled in pickles:
                placement.add(pickled.sources)
            placement.finish()
        except BaseException:
            placement.undo()
            raise
        return self.payload(placement, pickles, len(items))

    def placement(self) -> Placement:
        """Return the places for the buffers of one payload, none taken yet."""
        return Placement(self._arena, self._on_full)

    def payload(self, placement: Placement, pickles: Sequence[Pickled], count: int) -> Encoded:
        """Put a payload together; it must be sent next."""
        news = self._arena.take_news() if self._arena is not None else NO_NEWS
        return Encoded(write_payload(news, placement, pickles, count), news.fds)

    def _pickle(self, items: Sequence[Any], substitute: Substitute) -> list[Pickled]:
        """Pickle all at once where that is safe, else each for itself."""
        if self._together and len(items) > 1:
            try:
                pickled = self.pickler.dump_list(items)
            except Exception:  # noqa: BLE001 - whose fault it was is found out below
                pass
            else:
                if not pickled.foreign:
                    return [pickled]
        pickles = [self._pickle_one(item, substitute) for item in items]
        self._together = not any(pickled.foreign for pickled in pickles)
        return pickles

    def _pickle_one(self, item: Any, substitute: Substitute) -> Pickled:
        try:
            return self.pickler.dump(item)
        except Exception as error:  # noqa: BLE001 - user code ran: __reduce__, __getstate__
            return self.pickler.dump(substitute(item, error))
