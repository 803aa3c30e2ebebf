"""Which numbers of a recorded section are settled, and what a state says of it.

This file is about ``Settled``, a set of numbers of which all up to a frontier are in it; its form
in a state (``Recorded``); and the ledgers that know, while a section runs, which numbers are
settled: the loader's own (``Ledger``), and that of a worker, which tells the loader (``Telling``).
What a section is, says ``recording.py``.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from operator import itemgetter
from time import monotonic
from typing import Annotated, Any, NamedTuple, Protocol

from asyncloader.datapipes.envelope import Key
from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    MOST,
    Count,
    Fields,
    Form,
    FormOf,
    anything,
    copied,
    is_ascending,
    list_of,
    refuse,
    row,
)
from asyncloader.errors import LoaderError, SnapshotError

logger = logging.getLogger("asyncloader")

#: So many numbers may be read and not be settled where a state is taken.
MOST_UNSETTLED = 1_000_000

#: A graph has fewer pipes.
MOST_PIPES = 100_000

#: If so many are read after one that is not settled, the log names it: a resume reads all again.
FAR_AHEAD = 100_000


class Reason:
    """Why a number was left out."""

    FILTER = "filter"
    ERROR = "error"
    LENGTH = "length"
    DROP_LAST = "drop_last"
    EMPTY = "empty"
    HEADER = "header"
    FULLSYNC = "fullsync"
    ATTEMPTS = "attempts"
    TIMEOUT = "timeout"
    STALE = "stale"


# The state ------------------------------------------------------------------------------


_PAIRS = list_of(row(COUNT, COUNT))


def settled_form(value: Any, where: str, form_of: FormOf) -> None:
    """Runs of ascending numbers, each as its first and its length."""
    _PAIRS(value, where, form_of)
    end = 0
    for first, length in value:
        if first < end or not length:
            refuse(where, "runs of ascending numbers", value)
        end = first + length


_RUNS_OF_NUMBERS = list_of(row(COUNT, settled_form))


def parts_form(value: Any, where: str, form_of: FormOf) -> None:
    """Ascending numbers, each with the runs of its settled parts."""
    _RUNS_OF_NUMBERS(value, where, form_of)
    if not is_ascending([number for number, _ in value]):
        refuse(where, "parts of ascending numbers", value)
    if sum(length for _, runs in value for _, length in runs) > MOST_UNSETTLED:
        refuse(where, f"at most {MOST_UNSETTLED} parts", value)


def reasons_form(value: Any, where: str, form_of: FormOf) -> None:
    """How many were left out, by the reason."""
    list_of(row(_text, COUNT), most=100)(value, where, form_of)


def failed_form(value: Any, where: str, form_of: FormOf) -> None:
    """On how many items pipes failed: the number of each pipe, and the count."""
    list_of(row(COUNT, COUNT), most=MOST_PIPES)(value, where, form_of)


def kept_form(value: Any, where: str, form_of: FormOf) -> None:
    """The results of pipes for numbers: a pipe, a number and the result."""
    list_of(row(COUNT, COUNT, anything), most=MOST_UNSETTLED)(value, where, form_of)


def attempts_form(value: Any, where: str, form_of: FormOf) -> None:
    """Of numbers, how many calls for them failed, and how many a resume found unfinished."""
    list_of(row(COUNT, COUNT, COUNT), most=MOST_UNSETTLED)(value, where, form_of)


def _text(value: Any, where: str, form_of: FormOf) -> None:
    if type(value) is not str:
        refuse(where, "a text", value)


class SettledRuns(NamedTuple):
    """What ``Settled`` knows, as plain data."""

    #: The first number that is not settled, and runs of those settled after it.
    frontier: int
    runs: list[list[int]]
    #: Of numbers of which only some parts are settled the runs of those.
    parts: list[list[Any]]
    #: On how many of the settled numbers' items each pipe failed.
    failed: Sequence[Sequence[int]] = ()


NOTHING_SETTLED = SettledRuns(0, [], [], [])


class Pending(NamedTuple):
    """What a state has of numbers that are not settled."""

    #: Results that are kept: a pipe, a number, and what the pipe's function made of its item.
    kept: Sequence[Sequence[Any]] = ()
    #: A number, how many calls for it failed, and how many a resume found unfinished.
    attempts: Sequence[Sequence[int]] = ()

    def renumbered(self, new: Callable[[int], int | None]) -> Pending:
        """Return the same by other numbers, without those that have none."""
        return Pending(
            [
                [pipe, other, result]
                for pipe, number, result in self.kept
                if (other := new(number)) is not None
            ],
            [
                [other, *counts]
                for number, *counts in self.attempts
                if (other := new(number)) is not None
            ],
        )

    @classmethod
    def together(cls, parts: Iterable[Pending]) -> Pending:
        """Return what is known of numbers, given that of some and of others."""
        kept, attempts = zip(*parts, strict=True)
        return cls([*chain.from_iterable(kept)], [*chain.from_iterable(attempts)])


NOTHING_PENDING = Pending()


class Recorded(Fields):
    """The place of a section: which numbers are settled, and how many were left out, and why.

    All before ``frontier`` are settled; ``settled`` are runs of those after it. Of the numbers in
    ``parts`` only those parts are settled. ``kept`` are results of numbers that are not settled,
    each with the number of the pipe whose function made it. ``failed`` says on how many items each
    pipe has failed, and ``attempts`` how often a rollout has called for numbers in vain.
    """

    frontier: Count = 0
    settled: Annotated[list[list[int]], settled_form] = field(default_factory=list)
    parts: Annotated[list[list[Any]], parts_form] = field(default_factory=list)
    left_out: Annotated[list[list[Any]], reasons_form] = field(default_factory=list)
    kept: Annotated[list[list[Any]], kept_form] | None = None
    failed: Annotated[Sequence[Sequence[int]], failed_form] | None = None
    attempts: Annotated[list[list[int]], attempts_form] | None = None

    @classmethod
    def of(
        cls, settled: SettledRuns, left_out: list[list[Any]], pending: Pending = NOTHING_PENDING
    ) -> Recorded:
        """Return the place where so much is settled, and was left out, and the rest is pending."""
        frontier, runs, parts, failed = settled
        found = cls(frontier=frontier, settled=runs, parts=parts, left_out=left_out)
        found.failed = failed or None
        found.kept, found.attempts = map(_lists, pending)
        return found

    def check(self, pipe: Any) -> Iterator[str]:
        yield from contradictions(self._runs(), [number for _, number, _ in self.kept or ()])

    def numbers(self) -> Settled:
        """Return which numbers are settled."""
        return Settled.of(self._runs())

    def pending(self) -> Pending:
        """Return what is known of those that are not."""
        return Pending(self.kept or (), self.attempts or ())

    def _runs(self) -> SettledRuns:
        return SettledRuns(self.frontier, self.settled, self.parts, self.failed or [])


def _lists(rows: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
    return [list(each) for each in rows] or None


def of_now(form: Form) -> Form:
    """Return a form that says what is wrong with a place that an earlier version took."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if type(value) is dict and {"later", "turns"} & value.keys():
            raise SnapshotError(
                f"{where} is of an earlier version, which repeated the order of items that have"
                " none; load a state that was taken between epochs"
            )
        form(value, where, form_of)

    return check


def contradictions(settled: SettledRuns, kept: Iterable[int]) -> Iterator[str]:
    """Yield what cannot be true of what a state says of a section.

    ``kept`` are the numbers of which it has results.
    """
    frontier, runs, parts, _ = settled
    if runs and runs[0][0] <= frontier:
        yield "the frontier is the first number that is not settled"
    if runs and sum(runs[-1]) - frontier - sum(map(itemgetter(1), runs)) > MOST_UNSETTLED:
        yield f"at most {MOST_UNSETTLED} numbers are not settled and were read"
    ends = [(first, first + length) for first, length in runs]

    def is_settled(number: int) -> bool:
        found = bisect_right(ends, (number, MOST)) - 1
        return number < frontier or (found >= 0 and number < ends[found][1])

    if any(is_settled(number) for number, _ in parts):
        yield "only numbers that are not settled have settled parts"
    end = sum(runs[-1]) if runs else frontier
    if any(is_settled(number) or number > end + MOST_UNSETTLED for number in kept):
        yield "only results of numbers that were read and are not settled are kept"


class ItemPart(NamedTuple):
    """One of the parts that were made of the item with a number."""

    number: int
    at: int


#: What is settled at once: the number of an item, or a part of it.
Element = int | ItemPart


class Settled:
    """Which of the numbers 0, 1, 2, … are settled: all before ``end`` but those ``unsettled``.

    It takes room for the latter only, however many follow one of them. A number of which parts
    were made is settled once all of them are.
    """

    __slots__ = ("end", "failed", "frontier", "parts", "totals", "unsettled")

    def __init__(self, end: int = 0, unsettled: Iterable[int] = ()) -> None:
        self.end = end
        self.unsettled = set(unsettled)
        #: The first that is not settled.
        self.frontier = min(self.unsettled, default=end)
        #: The settled parts of numbers, and how many parts there are where that is known.
        self.parts: dict[int, set[int]] = {}
        self.totals: dict[int, int] = {}
        #: On how many of the settled ones each pipe failed, by its number.
        self.failed: Counter[int] = Counter()

    @classmethod
    def of(cls, settled: SettledRuns) -> Settled:
        """Return what ``plain`` gave."""
        frontier, runs, parts, failed = settled
        found = cls(frontier)
        for pipe, count in failed:
            found.failed[pipe] = count
        for first, length in runs:
            found.add_run(first, length)
        found.parts = {number: set(_in_runs(own)) for number, own in parts}
        return found

    def plain(self) -> SettledRuns:
        """Return it as plain data."""
        runs, first = [], self.frontier
        for number in (*sorted(self.unsettled), self.end):
            if number > first:
                runs.append([first, number - first])
            first = number + 1
        parts = [[number, _runs(own)] for number, own in sorted(self.parts.items())]
        return SettledRuns(self.frontier, runs, parts, _rows(self.failed))

    def add(self, element: Element) -> None:
        """Settle a number, or a part of one."""
        if isinstance(element, int):
            self._add_number(element)
            return
        number, at = element
        own = self.parts.setdefault(number, set())
        if number in self or at in own:
            raise _settled_twice(element)
        own.add(at)
        if number in self.totals:
            self.end_parts(number, self.totals[number])

    def end_parts(self, number: int, count: int) -> None:
        """Note that so many parts were made of a number, and no more."""
        if len(self.parts.get(number, ())) < count:
            self.totals[number] = count
            return
        self.parts.pop(number, None)
        self.totals.pop(number, None)
        self._add_number(number)

    def add_run(self, first: int, length: int) -> None:
        """Settle so many numbers in a row."""
        if first < self.end:
            for number in range(first, first + length):
                self._add_number(number)
            return
        self.unsettled.update(range(self.end, first))
        self.end = first + length
        if not self.unsettled:
            self.frontier = self.end

    def ahead(self) -> int:
        """Return how many numbers after the first that is not settled are."""
        return self.end - self.frontier - len(self.unsettled)

    def _add_number(self, number: int) -> None:
        if number >= self.end:
            self.add_run(number, 1)
            return
        if number not in self.unsettled:
            raise _settled_twice(number)
        self.unsettled.remove(number)
        if not self.unsettled:
            self.frontier = self.end
        while self.frontier < self.end and self.frontier not in self.unsettled:
            self.frontier += 1

    def __contains__(self, number: int) -> bool:
        return number < self.end and number not in self.unsettled


def _settled_twice(element: Element) -> LoaderError:
    return LoaderError(f"item {element} was settled twice, which is an error of ours")


def _rows(counts: Counter[int]) -> list[list[int]]:
    return [list(each) for each in sorted(counts.items())]


def _in_runs(runs: Iterable[Sequence[int]]) -> Iterator[int]:
    return (number for first, length in runs for number in range(first, first + length))


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    end = -1
    for number in sorted(numbers):
        if number == end:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
        end = number + 1
    return runs


def elements_of(key: Key) -> tuple[Element, ...]:
    """Return what is settled with an item."""
    return (key,) if isinstance(key, int) else key


def number_in(element: Element) -> int:
    """Return the number of an item, or of a part."""
    return element if isinstance(element, int) else element.number


def item_numbers(key: Key) -> tuple[int, ...]:
    """Return the numbers of an item."""
    return tuple(map(number_in, elements_of(key)))


class Watcher(Protocol):
    """What has to know which numbers are settled."""

    def settled(self, number: int, *, is_left_out: bool) -> None:
        """Note that a number is settled; from any thread."""

    def check_ack(self, items: int) -> None:
        """Raise RuntimeError if not so many of the items that were delivered may be settled now."""


#: After so many items the ledger looks which of them the loader has settled.
_LOOK_EVERY = 64


class Ledger:
    """Which numbers are settled, in one pass over a section. Any thread may write and ask.

    ``settled_items()`` says how many of the items that left the section the loader has settled.
    ``shares`` say what was settled of each worker's share before; there is one without workers.
    ``reader`` is the name of the pipe that is given the numbered items.
    """

    def __init__(
        self,
        settled_items: Callable[[], int],
        shares: Sequence[Settled],
        left_out: Iterable[Sequence[Any]] = (),
        *,
        reader: str = "",
        pending: Pending = NOTHING_PENDING,
    ) -> None:
        self._settled_items = settled_items
        self._shares = shares
        self._reader = reader
        self._has_warned = False
        # The results that are kept of numbers that are not settled, by the numbers of the pipes.
        self._kept: dict[int, dict[int, Any]] = {}
        for pipe, number, result in pending.kept:
            self._kept.setdefault(number, {})[pipe] = result
        # Of those numbers, how many calls failed, and how many a resume found unfinished.
        self._attempts = {number: (failed, cut) for number, failed, cut in pending.attempts}
        # A rollout that has to know what is settled.
        self._watcher: Watcher | None = None
        # On how many items pipes had failed before, and which have on those that are not settled.
        # One that was made of several is known by its first.
        self._failed_before: Counter[int] = sum((share.failed for share in shares), Counter())
        self._failing: dict[Element, set[int]] = {}
        self._left_out: Counter[str] = Counter(dict(map(tuple, left_out)))
        # The numbers of the items that have left the section and are not settled, oldest first;
        # of several items in a row it may be a range.
        self._on_the_way: deque[Key | range] = deque()
        self._settled = 0
        self._latest: Key = ()
        # Whether the epoch has ended: what a thread still does changes nothing any more.
        self._is_over = False
        # What handles a warning in the log may ask meanwhile.
        self._lock = threading.RLock()

    def leave_out(self, key: Key, reason: str) -> None:
        """Settle what is left out."""
        with self._lock:
            if not self._is_over:
                self._left_out[reason] += len(elements_of(key))
                self._settle(key, is_left_out=True)

    def leave_out_rest(self, items: int, numbers: Iterable[int], reason: str) -> None:
        """Settle those of ``numbers`` that will not come, after the end of an epoch.

        ``items`` of those that left the section were delivered.
        """
        with self._lock:
            if self._is_over:
                return
            self._catch_up()
            self._is_over = True
            keys = [
                key
                for each in self._on_the_way
                for key in (each if type(each) is range else (each,))
            ]
            del keys[items - self._settled :]
            self._on_the_way = deque(keys)
            delivered = {number for key in keys for number in item_numbers(key)}
            for number in numbers:
                if number not in delivered and self._reopen(number):
                    self._left_out[reason] += 1
                    self._settle(number, is_left_out=True)

    def _reopen(self, number: int) -> bool:
        """Forget which parts of a number are settled; False if it is settled itself."""
        index, at = divmod(number, len(self._shares))
        share = self._shares[at]
        if index in share:
            return False
        share.parts.pop(index, None)
        share.totals.pop(index, None)
        return True

    def end_parts(self, number: int, count: int) -> None:
        """Note that so many parts were made of a number, and no more."""
        index, share = divmod(number, len(self._shares))
        with self._lock:
            if not self._is_over:
                self._shares[share].end_parts(index, count)
                self._forget(number, index, share)

    def settled_parts(self, number: int) -> set[int]:
        """Return which parts of a number are settled."""
        index, share = divmod(number, len(self._shares))
        with self._lock:
            return set(self._shares[share].parts.get(index, ()))

    def keep(self, pipe: int, number: int, result: Any) -> None:
        """Keep the result of a pipe's function for an item until that is settled."""
        with self._lock:
            if not self._is_over:
                self._kept.setdefault(number, {})[pipe] = result

    def kept_parts(self, pipe: int | None) -> list[tuple[int, list[Any]]]:
        """Return the numbers of which a pipe's parts are kept, and the parts."""
        with self._lock:
            kept = sorted(self._kept.items())
            return [(number, results[pipe]) for number, results in kept if pipe in results]

    def kept_of_share(self, pipe: int | None, share: int, come: Settled) -> list[list[Any]]:
        """Return the same of a share's items that have not come, as rows of kept results."""
        shares, rows = len(self._shares), []
        for number, parts in self.kept_parts(pipe):
            index, at = divmod(number, shares)
            if at == share and index not in come:
                rows.append([pipe, index, parts])
        return rows

    def failed_before(self, pipe: int | None) -> int:
        """Return on how many items a pipe had failed when this began."""
        return 0 if pipe is None else self._failed_before[pipe]

    def note_failure(self, pipe: int | None, key: Key) -> None:
        """Count a failure of a pipe's function, once its item is settled."""
        with self._lock:
            if pipe is not None and not self._is_over:
                self._failing.setdefault(elements_of(key)[0], set()).add(pipe)

    def failures(self, share: int) -> Counter[int]:
        """Return on how many of a share's items each pipe has failed by now."""
        with self._lock:
            found = self._shares[share].failed.copy()
            for element, pipes in self._failing.items():
                if number_in(element) % len(self._shares) == share:
                    found.update(pipes)
            return found

    def _failed_for_good(self, share: int) -> Counter[int]:
        """Return on how many of a share's items each pipe has failed, and is not called again.

        Those are settled, or what came in place of the pipe's result is kept.
        """
        found = self._shares[share].failed.copy()
        for element, pipes in self._failing.items():
            number = number_in(element)
            if number % len(self._shares) == share:
                found.update(pipes.intersection(self._kept.get(number, ())))
        return found

    def kept_results(self, number: int) -> dict[int, Any]:
        """Return the results that are kept for an item, by the numbers of the pipes: copies."""
        return {pipe: copied(result) for pipe, result in self._kept.get(number, {}).items()}

    def attempts(self, number: int) -> tuple[int, int]:
        """Return how many calls for a number failed, and how many a resume found unfinished."""
        return self._attempts.get(number, (0, 0))

    def note_attempts(self, number: int, failed: int, cut_off: int) -> None:
        """Note the same; ``cut_off`` counts a call that runs now."""
        with self._lock:
            if failed or cut_off:
                self._attempts[number] = failed, cut_off
            else:
                self._attempts.pop(number, None)

    def has_begun(self) -> bool:
        """Whether a state has anything of numbers, though nothing was delivered."""
        return bool(self._kept or self._attempts or self._left_out.total())

    def watch(self, watcher: Watcher) -> None:
        """Tell a rollout of each number that is settled from now on."""
        self._watcher = watcher

    def check_ack(self, items: int) -> None:
        """Raise RuntimeError if not so many of the items that were delivered may be settled now."""
        if self._watcher is not None:
            self._watcher.check_ack(items)

    def catch_up(self) -> None:
        """Settle what the loader has settled, if anybody waits for it."""
        if self._watcher is not None:
            with self._lock:
                self._catch_up()

    @property
    def items_settled(self) -> int:
        """How many items that left the section are settled."""
        return self._settled

    def is_nothing_on_the_way(self) -> bool:
        """Whether all that left the section is settled."""
        with self._lock:
            self._catch_up()
            return not self._on_the_way

    def hand_on(self, key: Key) -> None:
        """Note that an item leaves the section."""
        with self._lock:
            self._on_the_way.append(key)
            if not len(self._on_the_way) % _LOOK_EVERY:
                self._catch_up()

    def hand_on_all(self, keys: Iterable[Key | range]) -> None:
        """Note that items leave the section. A range are the numbers of several."""
        with self._lock:
            self._on_the_way.extend(keys)
            self._catch_up()

    def frontier(self, share: int = 0) -> int:
        """Return the lowest of a share's items that is not settled."""
        with self._lock:
            self._catch_up()
            return self._shares[share].frontier

    def state(self) -> tuple[list[SettledRuns], list[list[Any]], Pending]:
        """Return what is settled of each share, how many were left out, and what is pending."""
        with self._lock:
            self._catch_up()
            if (count := sum(len(share.unsettled) for share in self._shares)) > MOST_UNSETTLED:
                raise SnapshotError(
                    f"{count} items of {self._reader} are in flight behind it, and a state can say"
                    f" so of {MOST_UNSETTLED}; put what holds them, such as a shuffle, before it"
                )
            shares = [
                share.plain()._replace(failed=_rows(self._failed_for_good(at)))
                for at, share in enumerate(self._shares)
            ]
            left_out = [[reason, count] for reason, count in sorted(self._left_out.items())]
            kept = [
                [pipe, number, result]
                for number, results in sorted(self._kept.items())
                for pipe, result in results.items()
            ]
            attempts = [[number, *each] for number, each in sorted(self._attempts.items())]
            return shares, left_out, Pending(kept, attempts)

    def numbers_of(self, delivered: int) -> tuple[int, ...]:
        """Return the numbers of the item that was delivered last, of so many."""
        with self._lock:
            self._catch_up()
            at = delivered - self._settled - 1
            return item_numbers(self._latest if at < 0 else self._key_at(at))

    def _key_at(self, at: int) -> Key:
        for keys in self._on_the_way:
            if type(keys) is not range:
                if not at:
                    return keys
                at -= 1
            elif at < len(keys):
                return keys[at]
            else:
                at -= len(keys)
        raise LoaderError("an item was delivered that has not come, which is an error of ours")

    def left_out(self) -> dict[str, int]:
        """Return how many were left out, by the reason."""
        with self._lock:
            return dict(self._left_out)

    def _catch_up(self) -> None:
        count = self._settled_items()
        while (left := count - self._settled) > 0 and self._on_the_way:
            keys = self._on_the_way.popleft()
            if type(keys) is range:
                if left < len(keys):
                    self._on_the_way.appendleft(keys[left:])
                    keys = keys[:left]
                self._latest = keys[-1]
                self._settled += len(keys)
                self._settle_range(keys)
            else:
                self._latest = keys
                self._settled += 1
                self._settle(keys)
        if not self._has_warned:
            self._warn_if_far_ahead()

    def _warn_if_far_ahead(self) -> None:
        for at, share in enumerate(self._shares):
            if (ahead := share.ahead()) > FAR_AHEAD:
                self._has_warned = True
                logger.warning(
                    "nothing has come of item %d of %s yet, while %d items after it are settled,"
                    " and all of them will be read again to resume; see what holds it, such as a"
                    " group that is never full or a call that does not end",
                    share.frontier * len(self._shares) + at,
                    self._reader,
                    ahead,
                )

    def _settle_range(self, numbers: range) -> None:
        index, share = divmod(numbers.start, len(self._shares))
        self._shares[share].add_run(index, len(numbers))

    def _settle(self, key: Key, *, is_left_out: bool = False) -> None:
        shares = self._shares
        for element in elements_of(key):
            if isinstance(element, int):
                index, share = divmod(element, len(shares))
                shares[share].add(index)
            else:
                index, share = divmod(element.number, len(shares))
                shares[share].add(ItemPart(index, element.at))
            if self._failing:
                shares[share].failed.update(self._failing.pop(element, ()))
            if self._kept or self._failing or self._watcher is not None:
                self._forget(number_in(element), index, share, is_left_out=is_left_out)

    def _forget(self, number: int, index: int, share: int, *, is_left_out: bool = False) -> None:
        """Forget what was kept of a number, and count its failures, if it is settled now."""
        if index in self._shares[share]:
            self._kept.pop(number, None)
            self._attempts.pop(number, None)
            self._shares[share].failed.update(self._failing.pop(number, ()))
            if self._watcher is not None:
                self._watcher.settled(number, is_left_out=is_left_out)


class Told(NamedTuple):
    """What a worker tells with a frame."""

    #: The numbers of its items.
    keys: list[Key]
    #: What was left out since the frame before, and why.
    left_out: list[tuple[str, Key]]
    #: Of which numbers so many parts were made, and no more.
    ends: list[tuple[int, int]]
    #: Which pipes have failed on which items.
    failed: list[tuple[int, Element]]
    #: The parts that pipes have made of numbers, which no worker could make again.
    kept: list[tuple[int, int, Any]]
    #: The name of a pipe because of which the numbers say nothing, or "".
    unrecorded: str = ""


#: What a worker tells that has nothing to tell.
NOTHING_TOLD = Told([], [], [], [], [])


#: A worker that leaves out one item after the other says so after this time.
_TELL_SECONDS = 1.0


class Telling(Ledger):
    """The ledger of a worker's share: settled is what the loader was told, or will be.

    ``tell()`` is called now and then where items are left out and none is sent.
    """

    def __init__(self, share: Settled, pending: Pending, tell: Callable[[], object]) -> None:
        super().__init__(int, [share], pending=pending)
        # The loader does.
        self._has_warned = True
        self._tell = tell
        self._told_at = monotonic()
        self._sent: deque[Key] = deque()
        # What is told next, but for the numbers of what was sent.
        self._news = Told([], [], [], [], [])

    def keep(self, pipe: int, number: int, result: Any) -> None:
        with self._lock:
            super().keep(pipe, number, result)
            self._news.kept.append((pipe, number, result))

    def note_failure(self, pipe: int | None, key: Key) -> None:
        if pipe is not None:
            with self._lock:
                self._news.failed.append((pipe, elements_of(key)[0]))

    def hand_on(self, key: Key) -> None:
        with self._lock:
            self._sent.append(key)
            self._settle(key)

    def leave_out(self, key: Key, reason: str) -> None:
        with self._lock:
            self._news.left_out.append((reason, key))
            self._settle(key)
            is_due = monotonic() - self._told_at > _TELL_SECONDS
        if is_due:
            self._tell()

    def end_parts(self, number: int, count: int) -> None:
        super().end_parts(number, count)
        self._news.ends.append((number, count))

    def told(self, count: int) -> Told | None:
        """Return the numbers of the next ``count`` items to send, and what was left out since."""
        with self._lock:
            self._told_at = monotonic()
            if not (count or self._news.left_out or self._news.ends):
                return None
            news, self._news = self._news, Told([], [], [], [], [])
            return news._replace(keys=[self._sent.popleft() for _ in range(count)])
