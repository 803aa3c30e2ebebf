"""A stream of items on its way to the loader.

This file is about ``Stream``, which puts items into frames. Items that are made quickly share a
frame, and no item waits long for others. A frame is sent when it costs four credits (or all
that there are), after an item that took long to make, at once if nothing was sent for a while,
and at the latest two milliseconds after its first item: then the thread of the ``FlushTimer``
sends it, if the next item takes long. For plain items the clock and the size are looked at only
after 1, 2, 4, 8 … of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Any

from asyncloader.datapipes.envelope import Envelope
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.errors import LoaderError, PipelineError
from asyncloader.places.marks import Mark
from asyncloader.runtime import start_thread
from asyncloader.safe_error_text import repr_of
from asyncloader.transport.codec import NUMBERS
from asyncloader.waiting import Stopped
from asyncloader.workers.conversation import Conversation
from asyncloader.workers.marker import Marker
from asyncloader.workers.messages import (
    CREDIT_BYTES,
    CREDIT_ITEMS,
    NO_NOTE,
    UNBOUNDED,
    LeftOut,
    Note,
    StreamEnded,
    StreamFailed,
    credit_bytes,
    credits_for,
    share_bytes,
)
from asyncloader.workers.whereabouts import MORE_BITS

#: The highest cost of a frame in credits: larger frames would not save wake-ups.
FRAME_CREDITS = 4

#: How many plain items, and bytes of them, may be added before the next look at the clock and the
#: size. A look costs as much as a few tiny items.
_UNLOOKED_ITEMS = 256
_UNLOOKED_BYTES = 128 << 10

#: Who makes large items at this rate, in bytes a second, waits for nothing but memory. Then little
#: is made ahead: so much for each worker, which the processor's cache has until it is read. Each
#: item is made in the memory of one that was read just before.
_QUICK_BYTES = 1 << 30
_CACHE_BYTES = 16 << 20


class Stream:
    """The items of one part of the graph in one epoch, and the frame that is open.

    ``counted`` returns how many items of the pipe come before the one that is added, in all
    streams. ``all_credits`` is how many credits there are together, if not all are there at first.
    """

    def __init__(
        self,
        conversation: Conversation,
        flush_timer: FlushTimer,
        pack_error: Callable[[BaseException, str], bytes],
        pipe: Any,
        *,
        epoch: int,
        number: int,
        credits: int,
        one_by_one: bool,
        marker: Marker,
        sent: float = 0.0,
        counted: Callable[[], int] | None = None,
        credit_items: int = CREDIT_ITEMS,
        all_credits: int | None = None,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.is_over = False
        self._conversation = conversation
        self._lock = conversation.lock
        self._flush_timer = flush_timer
        self._pack_error = pack_error
        self._pipe = pipe
        self._items: Iterator[Any] | None = None
        self._marker = marker
        marker.tell_by(self._tell)
        self._mark: Mark | None = None
        #: How many items were sent, including those of earlier workers in this epoch.
        self.made = marker.first
        # How many were added to frames, when the latest one was due.
        self._added = marker.first
        self._whereabouts = conversation.whereabouts
        #: How many credits are left.
        self.credits = credits
        self._credit_items = credit_items
        # All together hold no more than prefetch_bytes allow this worker.
        budget, shares = conversation.arena.budget, credits if all_credits is None else all_credits
        self._credit_bytes = credit_bytes(budget, shares)
        self._share_bytes = self._share_in_cache = UNBOUNDED
        if conversation.hands_over:
            self._share_bytes = share_bytes(budget, shares)
            self._share_in_cache = min(self._share_bytes, share_bytes(_CACHE_BYTES, shares))
        # As long as a frame has fewer bytes, and items, one more costs no second credit.
        self._cheap_bytes = min(self._credit_bytes, self._share_bytes)
        self._unlooked_bytes = min(_UNLOOKED_BYTES, self._credit_bytes // 8)
        self._one_by_one = one_by_one
        self._packing = conversation.encoder.packing(pipe)
        #: Whether the clock was looked at since the open frame's first item. The timer may send
        #: the frame at any moment; then the next item is the first of another one.
        self._is_looked_after = False
        self._is_checked = False
        #: The message after the last item, once it is known; at most one.
        self._ending: list[StreamEnded | StreamFailed] = []
        self._due = 0.0
        #: When the thread began to make the items of the open frame.
        self._filling = 0.0
        #: When the latest frame was sent, of this stream or of the one before it.
        self.sent = sent
        self._counted = counted or self._count_made

    @property
    def count(self) -> int:
        """How many items the open frame has."""
        return self._packing.count

    @property
    def nbytes(self) -> int:
        """How many bytes the open frame has, roughly."""
        return self._packing.nbytes

    def grant(self, credits: int) -> None:
        """Add credits."""
        with self._lock:
            self.credits += credits
        if self._packing.plain or self._packing.pickles:
            self._flush_timer.watch(self)

    def advance(self) -> None:
        """Make and send one frame, with the end of the stream if it was the last."""
        # A frame that is open already was waiting for a credit: send it now.
        self.send()
        if not self._ending and self.credits > 0:
            self._fill(self._whereabouts.begin(self.number, self._added))
            self._whereabouts.end()
            self.send()
        if self._ending and not self._packing.count and not self.is_over:
            self.is_over = True
            (ending,) = self._ending
            self._conversation.report(replace(ending, told=self._told(0)))

    def send_if_late(self) -> bool:
        """Send the open frame if its first item has waited long enough.

        Return whether there is an open frame that may have to be sent later.
        """
        if not self._packing.count or not self.credits:
            return False
        if monotonic() >= self._due:
            self.send()
        # An item may have been added meanwhile.
        return self._packing.count > 0

    def drop(self) -> None:
        """Forget the open frame and close the pipes."""
        self.is_over = True
        self._is_looked_after = False
        with self._lock:
            self._packing.drop()
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _fill(self, at: int) -> None:
        """Add items to the frame until it is due; or note how the stream ends.

        ``at`` is the word that says which items are being made.
        """
        self._filling = monotonic()
        try:
            if self._items is None:
                self._items = self._marker.begin()
            self._mark = self._marker.mark(self.made)
            packing = self._packing
            append, add_plain = packing.plain.append, packing.add_plain
            added, words = self._added, self._whereabouts.words
            # How many plain items, and bytes, may be added before the next look; and how many
            # items that were at the look before.
            unlooked, enough, before = 0, 0, 0
            for item in self._items:
                if item.__class__ in NUMBERS and not packing.pickles:
                    # Neither they nor what is plain take the lock.
                    append(item)
                    is_plain = True
                elif add_plain(item):
                    is_plain = packing.nbytes < enough
                else:
                    self._add(item)
                    is_plain = False
                # Free the memory of the sent item, so that the next one can use it.
                del item
                if is_plain and unlooked > 0 and self._is_looked_after:
                    unlooked -= 1
                    continue
                added += 1 + before - unlooked
                if self._is_due():
                    self._added = added
                    self._check_once()
                    return
                # The timer may have sent the frame meanwhile.
                before = unlooked = min(len(packing.plain) or 1, _UNLOOKED_ITEMS) - 1
                words[at] = added << MORE_BITS | unlooked
                enough = packing.nbytes + self._unlooked_bytes
            self._check_once()
        except SystemExit:
            raise
        except Stopped:
            # The code that stopped it knows.
            self.is_over = True
        except BaseException as error:  # noqa: BLE001 - user code ran; the loader raises it
            packed = self._pack_error(error, f", after {self._count_made()} items")
            self._ending = [StreamFailed(self.epoch, self.number, packed)]
        else:
            self._ending = [StreamEnded(self.epoch, self.number)]

    def _check_once(self) -> None:
        """Let what made the items of the first frame be checked."""
        if not self._is_checked:
            self._is_checked = True
            self._packing.check()

    def send(self) -> None:
        """Send the open frame, if it has items and there is a credit for it."""
        with self._lock:
            packing = self._packing
            if (packing.plain or packing.pickles) and self.credits > 0:
                # The timer's thread may run this while the other makes tiny items. That one then
                # looks after the next frame.
                self._is_looked_after = False
                # Check the end first, so that it cannot be sent before the last items.
                ending = self._ending
                nbytes = packing.nbytes
                count, items = packing.finish()
                self.sent = monotonic()
                seconds = self.sent - self._filling
                cost = min(self._cost(count, nbytes, seconds), self.credits)
                self.credits -= cost
                self.made += count
                mark, self._mark = self._mark, None
                told = self._told(count)
                note = NO_NOTE if mark is None and not told else Note.of(mark, told)
                self.is_over = self.is_over or bool(ending)
                self._conversation.send_items(self.epoch, self.number, cost, items, note, ending)

    def _told(self, count: int) -> bytes:
        return self._marker.told(count) if self._marker.tells else b""

    def _tell(self) -> None:
        """Tell the loader what was left out since the frame before; in any thread."""
        with self._lock:
            if not self.is_over and (told := self._told(0)):
                self._conversation.report(LeftOut(self.epoch, self.number, told))

    def add(self, item: Any) -> bool:
        """Add an item to the open frame; return whether to send the frame now."""
        if not self._packing.add_plain(item):
            self._add(item)
        return self._is_due()

    def _add(self, item: Any) -> None:
        """Add an item that is not plain to the open frame."""
        with self._lock:
            try:
                self._packing.add_other(item)
            except LoaderError:
                raise
            except Exception as error:
                refusal = self._refusal(item, error)
                refusal.__cause__ = error
                if not isinstance(item, Envelope):
                    raise refusal from error
                # Only this request fails; the stream continues.
                self._packing.add_other(item.failed(self._pack_error(refusal, "")))

    def _count_made(self) -> int:
        return self.made + self._packing.count

    def _is_due(self) -> bool:
        """Whether to send the open frame now; if it is new, start its timer."""
        # Said before the look: the timer may send the frame at any moment, and takes it back.
        self._is_looked_after = True
        packing = self._packing
        count, nbytes = len(packing.plain) + len(packing.pickles), packing.nbytes
        now = monotonic()
        if count == 1:
            # At once if the last frame was sent long ago: the next item may take long, and may
            # hold the GIL so that the timer cannot run.
            self._due = 0.0 if self._one_by_one else self.sent + FRAME_SECONDS
        # Without credits return to the caller, which receives the loader's messages.
        if now >= self._due or self.credits <= 0:
            return True
        if count >= self._credit_items or nbytes >= self._cheap_bytes:
            # What the frame would cost with one more item.
            cost = self._cost(count + 1, nbytes + 1)
            if cost > 1 and cost > self._most(nbytes):
                return True
        if count == 1:
            self._flush_timer.watch(self)
        return False

    def _cost(self, count: int, nbytes: int, seconds: float = 0.0) -> int:
        """Return what a frame costs that was made in so many seconds."""
        # How many large items there are is bounded by the shared memory in which they travel. What
        # is handed over is in none, so there a large item costs as many credits as it is worth.
        cost = credits_for(count, nbytes, self._credit_items, self._credit_bytes)
        is_quick = nbytes >= CREDIT_BYTES * count and nbytes > seconds * _QUICK_BYTES
        return max(cost, -(-nbytes // (self._share_in_cache if is_quick else self._share_bytes)))

    def _most(self, nbytes: int) -> int:
        """The highest cost of the open frame: one credit, or two or four if there are as many."""
        # If shared memory runs short, send finished items at once. Plain ones take none.
        if self._packing.pickles and nbytes > self._conversation.arena.room:
            return 1
        most = 1
        while most < FRAME_CREDITS and 2 * most <= self.credits:
            most *= 2
        return most

    def _refusal(self, item: Any, error: Exception) -> PipelineError:
        kind = type(item.item if isinstance(item, Envelope) else item)
        return PipelineError(
            f"item {self._counted()} of {stage_name(self._pipe)} is of type"
            f" {kind.__module__}.{kind.__qualname__} and could not be pickled: {repr_of(error)};"
            " let this pipe yield plain data or tensors"
        )


FRAME_SECONDS = 0.002

#: The thread may be blocked in sending to a loader that does not read.
_CLOSE_SECONDS = 1.0


class FlushTimer:
    """A thread that sends open frames in time; it sleeps while no stream has one."""

    def __init__(self) -> None:
        self._watched: set[Stream] = set()
        self._is_over = False
        self._awake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="asyncloader flush timer", daemon=True
        )
        start_thread(self._thread)

    def watch(self, stream: Stream) -> None:
        """Watch a stream that has just opened a frame."""
        if stream not in self._watched:
            self._watched.add(stream)
            self._awake.set()

    def close(self) -> None:
        """Stop sending, so that the channels can be closed."""
        self._is_over = True
        self._awake.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        pause = threading.Event()
        while not self._is_over:
            self._awake.wait()
            pause.wait(FRAME_SECONDS)
            # Cleared before the check, so that a stream that is added now is not missed.
            self._awake.clear()
            for stream in list(self._watched):
                self._look_after(stream)
            if self._watched:
                self._awake.set()

    def _look_after(self, stream: Stream) -> None:
        self._watched.discard(stream)
        # The process's main thread notices too that the loader is gone.
        with contextlib.suppress(EOFError):
            if not self._is_over and stream.send_if_late():
                self._watched.add(stream)
