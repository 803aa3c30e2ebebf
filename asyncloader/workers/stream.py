"""A stream of items on its way to the loader.

This file is about which items travel together. Small ones ride in one frame and
never wait for company: a frame is sent with its 64th item, when it is heavy,
after an item that took long to make, at once where the loader has nothing of
this stream, and at the latest two milliseconds after its first item.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from asyncloader.errors import PipelineError
from asyncloader.transport.codec import Packing
from asyncloader.workers.messages import StreamEnded, StreamFailed
from asyncloader.workers.punctual import FRAME_SECONDS, Punctual
from asyncloader.workers.talk import Talk

FRAME_ITEMS = 64
FRAME_BYTES = 64 << 10


class Stream:
    """The items of one branch of the graph in one epoch, and the frame that is open."""

    def __init__(
        self,
        talk: Talk,
        punctual: Punctual,
        pack_error: Callable[[BaseException], bytes],
        items: Iterator[Any],
        *,
        epoch: int,
        number: int,
        credits: int,
        one_by_one: bool,
    ) -> None:
        self.number = number
        self.is_over = False
        self._talk = talk
        self._punctual = punctual
        self._pack_error = pack_error
        self._items = items
        self._epoch = epoch
        self._credits = credits
        self._all_credits = credits
        self._one_by_one = one_by_one
        self._packing = Packing(talk.encoder)
        self._ending: StreamEnded | StreamFailed | None = None
        self._begun = self._sent = self._resumed = 0.0

    def grant(self, credits: int) -> None:
        """Allow so many more frames."""
        with self._talk.lock:
            self._credits += credits

    def may_go_on(self) -> bool:
        """Whether there is something to make, and a credit to send it with."""
        return self._credits > 0 and not self.is_over

    def advance(self) -> None:
        """Make and send one frame; say so when it was the last."""
        if self._ending is None:
            self._fill()
        self._send()
        if self._ending is not None and not self._packing.count:
            self.is_over = True
            self._talk.report(self._ending)

    def send_if_late(self) -> bool:
        """Send the open frame if its first item has waited long enough for company.

        Whether there is one that may still have to be sent so.
        """
        if not self._packing.count or not self._credits:
            return False
        if time.monotonic() - self._begun < FRAME_SECONDS:
            return True
        self._send()
        return False

    def drop(self) -> None:
        """Forget the open frame and close the pipes."""
        self.is_over = True
        with self._talk.lock:
            self._packing.drop()
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _fill(self) -> None:
        self._resumed = time.monotonic()
        try:
            for item in self._items:
                is_full = self._add(item)
                # Memory just sent is wanted for the next item.
                del item
                if is_full:
                    return
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
            self._ending = StreamFailed(self._epoch, self.number, self._pack_error(error))
        else:
            self._ending = StreamEnded(self._epoch, self.number)

    def _send(self) -> None:
        with self._talk.lock:
            if self._packing.count and self._credits > 0:
                self._credits -= 1
                self._sent = time.monotonic()
                self._talk.send_items(self._epoch, self.number, self._packing.finish())

    def _add(self, item: Any) -> bool:
        with self._talk.lock:
            try:
                self._packing.add(item)
            except Exception as error:
                raise PipelineError(
                    f"an item of type {type(item).__module__}.{type(item).__qualname__} could not"
                    f" be pickled: {error!r}; let the last pipe yield plain data or tensors"
                ) from error
            now = time.monotonic()
            if self._packing.count == 1:
                self._begun = now
                self._punctual.watch(self)
            was_slow = now - self._resumed >= FRAME_SECONDS
            self._resumed = now
            return was_slow or self._is_full(now)

    def _is_full(self, now: float) -> bool:
        packing = self._packing
        return (
            self._one_by_one
            or packing.count >= FRAME_ITEMS
            or packing.nbytes >= FRAME_BYTES
            or now - self._begun >= FRAME_SECONDS
            or (self._credits == self._all_credits and now - self._sent >= FRAME_SECONDS)
        )
