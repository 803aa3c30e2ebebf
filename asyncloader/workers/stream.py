"""A stream of items on its way to the loader.

This file is about which items travel together. Small ones ride in one frame and
never wait for company: a frame is sent with its 64th item, when it is heavy,
after an item that took long to make, at once where the loader has nothing of
this stream, and at the latest two milliseconds after its first item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from asyncloader.errors import PipelineError
from asyncloader.transport.codec import Packing
from asyncloader.workers.talk import Talk

FRAME_ITEMS = 64
FRAME_BYTES = 64 << 10
FRAME_SECONDS = 0.002


class Stream:
    """The items of one branch of the graph in one epoch, and the frame that is open."""

    def __init__(
        self, talk: Talk, epoch: int, number: int, items: Iterator[Any], credits: int
    ) -> None:
        self.number = number
        self.items = items
        self.is_over = False
        self._talk = talk
        self._epoch = epoch
        self._credits = credits
        self._all_credits = credits
        self._packing = Packing(talk.encoder)
        self._begun = self._sent = self._resumed = 0.0
        # The open frame is closed by the worker's thread, or by the punctual one.
        self._lock = threading.Lock()
        self.frames_sent = 0

    def grant(self, credits: int) -> None:
        """Allow so many more frames."""
        with self._lock:
            self._credits += credits

    def has_credit(self) -> bool:
        """Whether a frame may be sent."""
        return self._credits > 0

    def has_open_frame(self) -> bool:
        """Whether items wait for company."""
        return self._packing.count > 0

    def fill(self) -> BaseException | None:
        """Draw items until a frame is sent; return the error that ended the stream, if any."""
        self._resumed = time.monotonic()
        try:
            for item in self.items:
                is_full = self._add(item)
                # Memory just sent is wanted for the next item.
                del item
                if is_full:
                    self.send()
                    return None
        except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
            self.is_over = True
            return error
        self.is_over = True
        return None

    def send(self) -> None:
        """Send the open frame, if it has items and there is a credit for it."""
        with self._lock:
            if self._packing.count and self._credits > 0:
                self._credits -= 1
                self.frames_sent += 1
                self._sent = time.monotonic()
                self._talk.send_items(self._epoch, self.number, self._packing.finish())

    def send_if_late(self) -> None:
        """Send the open frame if its first item has waited long enough for company."""
        if self._packing.count and time.monotonic() - self._begun >= FRAME_SECONDS:
            self.send()

    def drop(self) -> None:
        """Forget the open frame and close the pipes."""
        self.is_over = True
        with self._lock:
            self._packing.drop()
        close = getattr(self.items, "close", None)
        if close is not None:
            close()

    def _add(self, item: Any) -> bool:
        with self._lock:
            try:
                self._packing.add(item)
            except Exception as error:
                raise PipelineError(
                    f"an item of type {type(item).__module__}.{type(item).__qualname__} could not"
                    f" be pickled: {error}; let the last pipe yield plain data or tensors"
                ) from error
            now = time.monotonic()
            if self._packing.count == 1:
                self._begun = now
            slow = now - self._resumed >= FRAME_SECONDS
            self._resumed = now
            return slow or self._is_full(now)

    def _is_full(self, now: float) -> bool:
        packing = self._packing
        return (
            packing.count >= FRAME_ITEMS
            or packing.nbytes >= FRAME_BYTES
            or now - self._begun >= FRAME_SECONDS
            or (self._credits == self._all_credits and now - self._sent >= FRAME_SECONDS)
        )


class Punctual:
    """A thread that sends a frame in time while the worker's thread is in user code."""

    def __init__(self, streams: list[Stream]) -> None:
        self._streams = streams
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="asyncloader punctual", daemon=True
        )
        self._thread.start()
