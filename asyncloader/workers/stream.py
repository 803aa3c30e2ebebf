"""A stream of items on its way to the loader.

This file is about which items travel together. Small ones ride in one frame and
never wait for company: a frame is sent with its 256th item, when it is heavy,
after an item that took long to make, at once where nothing was sent for a while,
and at the latest two milliseconds after its first item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from asyncloader.errors import PipelineError
from asyncloader.transport.codec import NUMBERS, Packing
from asyncloader.workers.messages import StreamEnded, StreamFailed
from asyncloader.workers.punctual import FRAME_SECONDS, Punctual
from asyncloader.workers.talk import Talk

FRAME_ITEMS = 256
FRAME_BYTES = 1 << 20


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
        self._lock = talk.lock
        self._punctual = punctual
        self._pack_error = pack_error
        self._items = items
        self._epoch = epoch
        self._credits = credits
        self._one_by_one = one_by_one
        self._packing = Packing(talk.encoder)
        self._ending: StreamEnded | StreamFailed | None = None
        self._due = self._sent = 0.0

    def grant(self, credits: int) -> None:
        """Allow so many more frames."""
        with self._lock:
            self._credits += credits
        if self._packing.count:
            self._punctual.watch(self)

    def may_go_on(self) -> bool:
        """Whether there is something to make, and a credit to send it with."""
        return self._credits > 0 and not self.is_over

    def advance(self) -> None:
        """Make and send one frame; say so when it was the last."""
        if self._ending is None and not self._is_full():
            self._fill()
        self._send()
        if self._ending is not None and not self._packing.count:
            self.is_over = True
            self._talk.report(self._ending)

    def send_if_late(self) -> bool:
        """Send the open frame if its first item has waited long enough for company.

        Whether there may be one that is to be sent so, later.
        """
        if monotonic() >= self._due:
            self._send()
        return self._packing.count > 0 and self._credits > 0

    def drop(self) -> None:
        """Forget the open frame and close the pipes."""
        self.is_over = True
        with self._lock:
            self._packing.drop()
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _fill(self) -> None:
        try:
            packing = self._packing
            tiny = packing.unchanging
            for item in self._items:
                if item.__class__ in NUMBERS and not packing.pickles:
                    # Tiny items take no lock, and look at the clock after 1, 2, 4, 8 … of them.
                    tiny.append(item)
                    count = len(tiny)
                    is_full = not count & (count - 1) and self._is_due()
                else:
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
        with self._lock:
            if self._packing.count and self._credits > 0:
                self._credits -= 1
                self._sent = monotonic()
                self._talk.send_items(self._epoch, self.number, self._packing.finish())

    def _add(self, item: Any) -> bool:
        """Add an item to the open frame; whether that is to be sent now."""
        with self._lock:
            try:
                self._packing.add(item)
            except Exception as error:
                raise _refusal(item, error) from error
        return self._is_due()

    def _is_due(self) -> bool:
        """Whether the open frame is to be sent, having seen to it if it is new."""
        count = self._packing.count
        now = monotonic()
        if count == 1:
            # Due a while after whichever comes first of its first item and the frame before it.
            since = min(now, self._sent)
            self._due = 0.0 if self._one_by_one else since + FRAME_SECONDS
            self._punctual.watch(self)
        return now >= self._due or self._is_full()

    def _is_full(self) -> bool:
        packing = self._packing
        return packing.count >= FRAME_ITEMS or packing.nbytes >= FRAME_BYTES


def _refusal(item: Any, error: Exception) -> PipelineError:
    kind = type(item)
    return PipelineError(
        f"an item of type {kind.__module__}.{kind.__qualname__} could not be pickled: {error!r};"
        " let the last pipe yield plain data or tensors"
    )
