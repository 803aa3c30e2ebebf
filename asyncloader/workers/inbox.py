"""What came from a worker and waits to be taken.

This file is about one stream of one worker, as the loader sees it: frames that
have arrived, the items of the frame that is open, and how the stream ended.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from asyncloader.errors import TransportError
from asyncloader.transport.codec import Admitted, Decoder


class Inbox:
    """The frames of one stream in one epoch; a frame is opened when it is its turn."""

    def __init__(self, decoder: Decoder, worker: int) -> None:
        self.worker = worker
        #: Frames whose items were all taken, and which the worker was not yet told of.
        self.frames_done = 0
        #: Whether the worker was asked for a frame that has not come yet.
        self.is_asked = False
        self.error: BaseException | None = None
        self._decoder = decoder
        self._frames: deque[Admitted] = deque()
        self._items: list[Any] = []
        self._taken = 0
        self._has_ended = False
        self._is_refused = False

    def put(self, frame: Admitted) -> None:
        """Add a frame that arrived; after an item that could not be read, nothing is wanted."""
        self.is_asked = False
        if self._is_refused:
            self._decoder.give_back(frame)
        else:
            self._frames.append(frame)

    def end(self, error: BaseException | None = None) -> None:
        """Note that no frame follows, and the error that comes after the last item."""
        if not self._has_ended:
            self._has_ended = True
            self.error = error

    def has_something(self) -> bool:
        """Whether there is an item to take, or the stream is over."""
        return self._taken < len(self._items) or bool(self._frames) or self._has_ended

    def is_over(self) -> bool:
        """Whether everything was taken and no more will come."""
        return self._has_ended and not self._frames and self._taken == len(self._items)

    def open(self) -> int:
        """Open the next frame if the last is used up; return how many items can be taken."""
        if self._taken == len(self._items) and self._frames:
            self._open_frame()
        return len(self._items) - self._taken

    def is_heavy(self) -> bool:
        """Whether opening the next frame takes so long that a thread should do it."""
        return self._taken == len(self._items) and bool(self._frames) and self._frames[0].is_heavy()

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
        if self._taken >= len(self._items):
            self._items, self._taken = [], 0
            self.frames_done += 1
        return taken

    def drop(self) -> None:
        """Return the shared memory of frames that nobody will open."""
        while self._frames:
            self._decoder.give_back(self._frames.popleft())
        self._items, self._taken = [], 0

    def _open_frame(self) -> None:
        refused = self._decoder.refused
        items = self._decoder.items(self._frames.popleft())
        if self._decoder.refused != refused:
            items = self._up_to_refused(items)
        self._items, self._taken = items, 0

    def _up_to_refused(self, items: list[Any]) -> list[Any]:
        """Return the items before one that did not arrive; after it the stream cannot go on."""
        for at, item in enumerate(items):
            if type(item) is TransportError:
                self.drop()
                self._has_ended = self._is_refused = True
                item.worker = self.worker
                self.error = item
                return items[:at]
        return items
