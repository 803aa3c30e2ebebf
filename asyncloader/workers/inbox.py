"""Items that arrived from a worker and were not taken yet.

This file is about one stream of one worker, as the loader sees it: the frames that
have arrived, the items of the open frame, and how the stream ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from asyncloader.datapipes.unordered import Piece, followed, unnumbered_in
from asyncloader.errors import TransportError
from asyncloader.runtime import in_thread
from asyncloader.transport.codec import Admitted, Decoder
from asyncloader.transport.raw_arrays import import_torch
from asyncloader.workers.messages import FIRST, NO_NOTE, Mark, Note, load_mark, load_told


class Noted(NamedTuple):
    """A mark as it arrived, with the position of the next item."""

    position: int
    mark: Mark | bytes
    #: The pieces that came with the mark's own frame and with later frames.
    told: list[bytes]

    def read(self) -> Mark:
        """Return the mark, with all pieces that were told since."""
        mark = load_mark(self.mark) if isinstance(self.mark, bytes) else self.mark
        return replace(mark, cursors=followed(mark.cursors, self._pieces())) if self.told else mark

    def unnumbered(self) -> str:
        """Return the name of a pipe without a number, or ""."""
        return unnumbered_in(self._pieces())

    def _pieces(self) -> list[Piece]:
        return [piece for told in self.told for piece in load_told(told)]


class _Arrived(NamedTuple):
    frame: Admitted
    decoder: Decoder
    mark: Noted
    told: bytes
    cost: int


class Inbox:
    """The frames of one stream in one epoch; each frame is opened when its items are needed.

    The worker that sends them may be replaced by another, which resumes from a mark.
    """

    def __init__(
        self, decoder: Decoder, worker: int, mark: Mark = FIRST, unwanted: int = 0
    ) -> None:
        self.worker = worker
        #: How many of the stream's items were taken, and how many have arrived.
        self.position = self.arrived = mark.position + unwanted
        #: The latest mark at or before the taken items; and the same for the arrived items.
        self.mark = self.latest_mark = Noted(mark.position, mark, [])
        #: Credits whose items were all taken, but that were not granted again yet.
        self.credits_done = 0
        #: The pieces of the frames that were opened, if somebody keeps them.
        self.told: deque[bytes] = deque(maxlen=0)
        #: Whether the worker was asked for a frame that has not arrived yet.
        self.is_asked = False
        #: Whether opening the arrived frames would import torch.
        self.needs_torch = False
        self.error: BaseException | None = None
        self._decoder = decoder
        self._frames: deque[_Arrived] = deque()
        self._items: list[Any] = []
        self._taken = 0
        self._cost = 0
        self._has_ended = False
        self._is_refused = False

    def put(self, frame: Admitted, cost: int = 1, note: Note = NO_NOTE) -> None:
        """Add a frame that arrived, with its cost in credits and its note.

        After an item that could not be read, frames are dropped.
        """
        self.is_asked = False
        if self._is_refused:
            self._decoder.give_back(frame)
            return
        if note.mark:
            self.latest_mark = Noted(self.arrived, note.mark, [])
        if note.told:
            self.latest_mark.told.append(note.told)
        self.arrived += frame.tables.items
        self.needs_torch = self.needs_torch or frame.needs_torch()
        self._frames.append(_Arrived(frame, self._decoder, self.latest_mark, note.told, cost))

    def continue_with(self, decoder: Decoder) -> None:
        """Continue with frames from another worker."""
        self._decoder = decoder
        self._has_ended, self.error = False, None
        self.is_asked = False

    def continue_after_error(self) -> None:
        """Continue after an item that could not be read."""
        self._has_ended = self._is_refused = False
        self.error = None

    def end(self, error: BaseException | None = None) -> None:
        """Note that no frame follows, and the error to raise after the last item."""
        if not self._has_ended:
            self._has_ended = True
            self.error = error

    def has_something(self) -> bool:
        """Whether there is an item to take, or the stream is over."""
        return self._taken < len(self._items) or bool(self._frames) or self._has_ended

    def is_over(self) -> bool:
        """Whether everything was taken and no more will come."""
        return self._has_ended and not self._frames and self._taken == len(self._items)

    def is_whole(self) -> bool:
        """Whether the worker has sent everything, taken or not."""
        return self._has_ended and not self._is_refused

    def open(self) -> int:
        """Open the next frame if the open one is empty; return how many items can be taken."""
        if self._taken == len(self._items) and self._frames:
            self._open_frame()
        return len(self._items) - self._taken

    def is_heavy(self) -> bool:
        """Whether opening the next frame takes so long that a thread should do it."""
        is_used_up = self._taken == len(self._items)
        return is_used_up and bool(self._frames) and self._frames[0].frame.is_heavy()

    async def get_torch(self) -> None:
        """Import torch in a thread, if opening the arrived frames needs it."""
        if self.needs_torch:
            await in_thread(import_torch)
            self.needs_torch = False

    def left(self) -> int:
        """Return how many items of the open frame can be taken."""
        return len(self._items) - self._taken

    def take(self, count: int) -> list[Any]:
        """Return the next ``count`` items of the open frame."""
        if count == len(self._items) and self._taken == 0:
            taken = self._items
        else:
            taken = self._items[self._taken : self._taken + count]
        self._taken += count
        self.position += count
        if self._taken >= len(self._items):
            self._items, self._taken = [], 0
            self.credits_done += self._cost
        return taken

    def drop(self) -> None:
        """Return the shared memory of frames that nobody will open."""
        while self._frames:
            arrived = self._frames.popleft()
            arrived.decoder.give_back(arrived.frame)
        self._items, self._taken = [], 0

    def _open_frame(self) -> None:
        frame, decoder, self.mark, told, self._cost = self._frames.popleft()
        refused = decoder.refused
        if told:
            self.told.append(told)
        items = decoder.items(frame)
        if decoder.refused != refused:
            items = self._up_to_refused(items)
        self._items, self._taken = items, 0

    def _up_to_refused(self, items: list[Any]) -> list[Any]:
        """Return the items before one that could not be read; the stream ends there."""
        for at, item in enumerate(items):
            if type(item) is TransportError:
                self.drop()
                self._has_ended = self._is_refused = True
                item.worker = self.worker
                self.error = item
                return items[:at]
        return items
