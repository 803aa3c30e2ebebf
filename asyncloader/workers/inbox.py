"""Items that arrived from workers, and the order in which they are taken.

This file is about ``Inbox``, one stream of one worker as the loader sees it: the frames that
have arrived, the items of the open frame, and how the stream ended; and about a ``Merge`` of
several: strictly in turn, so that the order is the same in every run; or as they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

from asyncloader.datapipes.envelope import Key
from asyncloader.datapipes.recording import NumberedItem
from asyncloader.datapipes.running.cursor_history import newest, thinned
from asyncloader.datapipes.settled import (
    NOTHING_SETTLED,
    Element,
    ItemPart,
    Ledger,
    Settled,
    Told,
    elements_of,
    number_in,
)
from asyncloader.errors import TransportError
from asyncloader.places.marks import FIRST, Mark, Noted, load_mark, load_told
from asyncloader.places.stream_place import WorkerStart, start_after_arrived
from asyncloader.runtime import in_thread
from asyncloader.transport.codec import Admitted, Opener
from asyncloader.transport.raw_arrays import import_torch
from asyncloader.waiting import do_nothing
from asyncloader.workers.messages import NO_NOTE, Note


class _Arrived(NamedTuple):
    frame: Admitted
    decoder: Opener
    mark: Noted
    cost: int
    #: The numbers of the items, where it is recorded what becomes of them.
    keys: list[Key]


class ShareRecord:
    """What has come of one worker's share of a section, and from where it can be made again.

    The item ``index`` of share ``share`` of ``shares`` is number ``index * shares + share``.
    """

    def __init__(
        self,
        ledger: Ledger,
        share: int,
        shares: int,
        start: WorkerStart,
        keeper: int | None,
        *,
        is_counted: bool,
    ) -> None:
        self.ledger = ledger
        # The pipe in the worker that keeps the parts it has made.
        self._keeper = keeper
        #: Whether items come in the order of their numbers, which are not told.
        self.is_counted = is_counted
        self._share = share
        self._shares = shares
        # Of counted items: the number of the next, those that were settled before, and the numbers
        # of those that came and were not taken.
        self._next = start.mark.position
        self._known = Settled.of(start.settled or NOTHING_SETTLED)
        self._known_before = self._known.end
        self._arrived: deque[range] = deque()
        self._taken = start.position
        #: The items that have come, or were left out: no other worker makes them again.
        self._come = Settled.of(start.settled or NOTHING_SETTLED)
        # Which pipes have failed on items that have not come: if the worker dies, another will call
        # them again, and they may fail again or not.
        self._failing: dict[Element, set[int]] = {}
        # The marks, oldest first, each with the first of the items that are made again from there.
        self._marks = [(start.mark.position, start.mark)]

    def note(self, mark: bytes) -> None:
        """Add a mark that came."""
        loaded = load_mark(mark)
        first = newest(self._marks, self.ledger.frontier(self._share))
        # One assignment: a thread that reads meanwhile sees the old list or the new one.
        self._marks = [*thinned(self._marks[first:]), (loaded.position, loaded)]

    def hear(self, told: Told) -> list[Key]:
        """Settle what was left out; return the numbers of the items that come."""
        keys, left_out, ends, failed, kept, _ = told
        for pipe, element in failed:
            self._failing.setdefault(element, set()).add(pipe)
        for pipe, index, parts in kept:
            self.ledger.keep(pipe, self._number_of(index), parts)
            # It is not called again.
            self._note_failures(index)
        numbers = list(map(self._number, keys))
        for key in keys:
            self._add(key)
        for reason, key in left_out:
            self._add(key)
            self.ledger.leave_out(self._number(key), reason)
        for index, count in ends:
            self._come.end_parts(index, count)
            self._note_if_come(index)
            self.ledger.end_parts(self._number_of(index), count)
        return numbers

    def _note_if_come(self, index: int) -> None:
        if index in self._come:
            self._note_failures(index)

    def _note_failures(self, element: Element) -> None:
        for pipe in self._failing.pop(element, ()):
            self.ledger.note_failure(pipe, self._number((element,)))

    def count(self, items: int) -> list[range]:
        """Settle so many items that come; return their numbers."""
        found = []
        while items:
            while self._next < self._known_before and self._next in self._known:
                self._next += 1
            first, run = self._next, 1 if self._next < self._known_before else items
            self._come.add_run(first, run)
            found.append(range(self._number_of(first), self._number_of(first + run), self._shares))
            self._next, items = first + run, items - run
        return found

    def await_taking(self, numbers: Iterable[range]) -> None:
        """Note the numbers of counted items that come without them."""
        self._arrived.extend(numbers)

    def taken_before(self, position: int) -> Iterator[range]:
        """Yield the numbers of the counted items that were taken since the last call."""
        while (left := position - self._taken) > 0:
            numbers = self._arrived.popleft()
            if left < len(numbers):
                self._arrived.appendleft(numbers[left:])
                numbers = numbers[:left]
            self._taken += len(numbers)
            yield numbers

    def come(self) -> Iterator[int]:
        """Yield the numbers that have come, from the lowest that is not settled on."""
        first = self.ledger.frontier(self._share)
        come = self._come
        yield from (self._number_of(index) for index in range(first, come.end) if index in come)

    def mark_at(self, frontier: int) -> Mark:
        """Return the newest mark from which all items from ``frontier`` on are made again."""
        marks = self._marks
        return marks[newest(marks, frontier)][1]

    def start_after_arrived(self) -> WorkerStart:
        """Return where another worker makes what has not come."""
        self._failing.clear()
        self._come.failed = self.ledger.failures(self._share)
        kept = self.ledger.kept_of_share(self._keeper, self._share, self._come)
        return WorkerStart(self.mark_at(self._come.frontier), 0, self._come.plain(), kept)

    def _add(self, key: Key) -> None:
        for element in elements_of(key):
            self._come.add(element)
            if self._failing:
                self._note_failures(element)
                self._note_if_come(number_in(element))

    def _number(self, key: Key) -> Key:
        if isinstance(key, int):
            return self._number_of(key)
        return tuple(
            self._number_of(element)
            if isinstance(element, int)
            else ItemPart(self._number_of(element.number), element.at)
            for element in key
        )

    def _number_of(self, index: int) -> int:
        return index * self._shares + self._share


class Inbox:
    """The frames of one stream in one epoch; each frame is opened when its items are needed.

    The worker that sends them may be replaced by another, which resumes from a mark.
    """

    def __init__(self, decoder: Opener, worker: int, mark: Mark = FIRST, unwanted: int = 0) -> None:
        self.worker = worker
        #: How many of the stream's items were taken, and how many have arrived.
        self.position = self.arrived = mark.position + unwanted
        #: The latest mark at or before the taken items; and the same for the arrived items.
        self.mark = self.latest_mark = Noted(mark.position, mark)
        # Credits whose items were all taken, and what grants them again once there are more. A
        # worker that is fed needs none.
        self._credits_done = 0
        self._on_credits: Callable[[Inbox, int], None] = do_nothing
        self._most_credits = 0
        #: The name of a pipe without order of which nothing is recorded, or "".
        self.unrecorded = ""
        #: What became of its items, where that is recorded: they come with their numbers then.
        self.record: ShareRecord | None = None
        self.is_numbered = False
        #: Whether the worker was asked for a frame that has not arrived yet.
        self.is_asked = False
        self.error: BaseException | None = None
        self._decoder = decoder
        #: The frames that were not opened.
        self.frames: deque[_Arrived] = deque()
        #: How many items of the open frame were not taken.
        self.left = 0
        self._items: list[Any] = []
        self._cost = 0
        #: Whether no frame follows; because the worker has sent everything, unless an item that
        #: could not be read was in the way.
        self.has_ended = self.is_refused = False

    def put(self, frame: Admitted, cost: int = 1, note: Note = NO_NOTE) -> None:
        """Add a frame that arrived, with its cost in credits and its note.

        After an item that could not be read, frames are dropped.
        """
        self.is_asked = False
        if self.is_refused:
            self._decoder.give_back(frame)
            return
        keys: list[Key] = []
        if self.record is not None:
            if note.mark:
                self.record.note(note.mark)
            if not self.record.is_counted:
                keys, note = self._hear(self.record, note.told), NO_NOTE
            else:
                ranges = self.record.count(frame.items)
                if self.is_numbered:
                    keys = list(chain.from_iterable(ranges))
                else:
                    self.record.await_taking(ranges)
            note = note._replace(mark=b"")
        if note.mark:
            self.latest_mark = Noted(self.arrived, note.mark)
        if note.told:
            self.unrecorded = str(load_told(note.told))
        self.arrived += frame.items
        self.frames.append(_Arrived(frame, self._decoder, self.latest_mark, cost, keys))

    def hear(self, told: bytes) -> None:
        """Note what a worker has left out since the frame before."""
        if self.record is not None and not self.record.is_counted and told:
            self._hear(self.record, told)
        elif told:
            self.unrecorded = str(load_told(told))

    def _hear(self, record: ShareRecord, told: bytes) -> list[Key]:
        loaded = load_told(told)
        if not isinstance(loaded, Told):
            raise TransportError(f"a worker told of its items by a {type(loaded).__name__}")
        self.unrecorded = self.unrecorded or loaded.unrecorded
        return record.hear(loaded)

    def start_after_arrived(self) -> WorkerStart:
        """Return where another worker resumes after all items that have arrived."""
        if self.record is not None:
            return self.record.start_after_arrived()
        return start_after_arrived(self.latest_mark, self.arrived)

    def continue_with(self, decoder: Opener) -> None:
        """Continue with frames from another worker."""
        self._decoder = decoder
        self.has_ended, self.error = False, None
        self.is_asked = False

    def continue_after_error(self) -> None:
        """Continue after an item that could not be read."""
        self.has_ended = self.is_refused = False
        self.error = None

    def end(self, error: BaseException | None = None) -> None:
        """Note that no frame follows, and the error to raise after the last item."""
        if not self.has_ended:
            self.has_ended = True
            self.error = error

    def has_something(self) -> bool:
        """Whether there is an item to take, or the stream is over."""
        return self.left > 0 or bool(self.frames) or self.has_ended

    def is_over(self) -> bool:
        """Whether everything was taken and no more will come."""
        return self.has_ended and not self.frames and not self.left

    def open(self, *, even_slow: bool = False) -> int:
        """Open the next frame if the open one is empty; return how many items can be taken.

        A slow frame is left to ``open_slow``.
        """
        if self.left or not self.frames:
            return self.left
        frame = self.frames[0].frame
        if not even_slow and (frame.is_slow or (frame.is_large and self._would_copy())):
            return 0
        frame, decoder, self.mark, self._cost, keys = self.frames.popleft()
        refused = decoder.refused
        items = decoder.items(frame)
        if decoder.refused != refused:
            items = self._up_to_refused(items)
        if self.record is not None and self.is_numbered:
            ledger = self.record.ledger
            numbered = zip(keys, items, strict=False)
            items = [NumberedItem(key, item, ledger) for key, item in numbered]
        self._items, self.left = items, len(items)
        return self.left

    def has_slow_frame(self) -> bool:
        """Whether opening the next frame takes so long that a thread has to do it."""
        if self.left or not self.frames:
            return False
        frame = self.frames[0].frame
        return frame.is_slow or (frame.is_large and self._would_copy())

    async def open_slow(self) -> None:
        """Open the next frame in a thread."""
        if self.frames[0].frame.needs_torch:
            await in_thread(import_torch)
        await in_thread(partial(self.open, even_slow=True))

    def take(self, count: int) -> list[Any]:
        """Return the next ``count`` items of the open frame."""
        items, taken = self._items, len(self._items) - self.left
        self.left -= count
        self.position += count
        if count < len(items):
            items = items[taken : taken + count]
        if not self.left:
            self._items = []
            self._credits_done += self._cost
            # A worker that has sent everything would only be woken.
            if self._credits_done > self._most_credits and not self.has_ended:
                credits, self._credits_done = self._credits_done, 0
                self._on_credits(self, credits)
        return items

    def on_credits(self, grant: Callable[[Inbox, int], None], *, more_than: int) -> None:
        """Call ``grant`` with them when the items of more credits than that were taken."""
        self._on_credits, self._most_credits = grant, more_than

    def drop(self) -> None:
        """Return the shared memory of frames that nobody will open."""
        while self.frames:
            arrived = self.frames.popleft()
            arrived.decoder.give_back(arrived.frame)
        self._items, self.left = [], 0
        self._on_credits = do_nothing

    def _would_copy(self) -> bool:
        """Whether the next frame's memory would be copied, because the consumer holds so much."""
        return self.frames[0].decoder.would_copy(self.frames[0].frame)

    def _up_to_refused(self, items: list[Any]) -> list[Any]:
        """Return the items before one that could not be read; the stream ends there."""
        for at, item in enumerate(items):
            if type(item) is TransportError:
                self.drop()
                self.has_ended = self.is_refused = True
                item.worker = self.worker
                self.error = item
                return items[:at]
        return items


#: A frame with so many items holds tiny ones. Several such frames are taken at once, because
#: passing items to the consumer has a cost per group.
_MANY = 32
_ENOUGH = 1024


class Merge(Protocol):
    """Draws the next items from several inboxes."""

    @property
    def turns(self) -> Iterable[Inbox]:
        """The inboxes that have not ended, in the order of their turns."""
        ...

    def is_ready(self) -> bool:
        """Whether ``take`` would return or raise something now, or everything was taken."""
        ...

    def is_over(self) -> bool:
        """Whether everything was taken, and no error is due."""
        ...

    def take(self) -> list[Any]:
        """Return the items that are there, or raise an error that is due, every time.

        The list may be empty, if only the end of a worker's items has arrived.
        """
        ...

    def awaited(self) -> list[Inbox]:
        """Return the inboxes that ``take`` waits for; one of them is enough."""
        ...


class TakeInTurn:
    """Takes one item from each inbox in turn; an inbox that is over is left out."""

    def __init__(self, inboxes: Iterable[Inbox]) -> None:
        # The first is the one whose turn it is.
        self.turns = deque(inboxes)

    def is_ready(self) -> bool:
        if not self.turns:
            return True
        first = self.turns[0]
        return first.left > 0 or bool(first.frames) or first.has_ended

    def is_over(self) -> bool:
        return not self.turns

    def take(self) -> list[Any]:
        items: list[Any] = []
        turns = self.turns
        are_open = self._open_all()
        while turns:
            while are_open:
                rounds = self._take_rounds(items)
                are_open = rounds >= _MANY and len(items) < _ENOUGH and self._open_all()
            first = turns[0]
            while first.left:
                items += first.take(1)
                turns.rotate(-1)
                first = turns[0]
            if first.frames or not first.has_ended or (items and first.error is not None):
                break
            if first.error is not None:
                raise first.error
            turns.popleft()
            are_open = all(inbox.left for inbox in turns)
        return items

    def awaited(self) -> list[Inbox]:
        return [self.turns[0]]

    def _open_all(self) -> bool:
        """Open a frame of every inbox whose open frame is empty; whether all have items."""
        for inbox in self.turns:
            if inbox.frames and not inbox.left:
                inbox.open()
        return min([inbox.left for inbox in self.turns], default=0) > 0

    def _take_rounds(self, items: list[Any]) -> int:
        """Take as many items from every inbox as the one with the fewest has."""
        inboxes = self.turns
        rounds = min([inbox.left for inbox in inboxes])
        if len(inboxes) == 1:
            items += inboxes[0].take(rounds)
            return rounds
        start = len(items)
        items += [None] * (rounds * len(inboxes))
        for place, inbox in enumerate(inboxes, start):
            items[place :: len(inboxes)] = inbox.take(rounds)
        return rounds


class TakeAsReady:
    """Takes the items that are there, from the workers in turn; skips those that have none."""

    def __init__(self, inboxes: Iterable[Inbox]) -> None:
        self.turns = list(inboxes)

    def is_ready(self) -> bool:
        return not self.turns or any(inbox.has_something() for inbox in self.turns)

    def is_over(self) -> bool:
        return not self.turns

    def take(self) -> list[Any]:
        items: list[Any] = []
        for inbox in self.turns:
            count = inbox.open()
            if count:
                items += inbox.take(count)
        if items:
            return items
        for inbox in self.turns:
            if inbox.is_over() and inbox.error is not None:
                raise inbox.error
        self.turns = [inbox for inbox in self.turns if not inbox.is_over()]
        return items

    def awaited(self) -> list[Inbox]:
        return [inbox for inbox in self.turns if not inbox.has_something()]
