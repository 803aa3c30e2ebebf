"""The position of a stream that several workers make.

This file is about ``StreamPlace``: where each worker resumes, and whose turn it is; its form as a
cursor, which is part of a snapshot; and about ``Dealing``: the marks that the dispatching process
reports, and which of them is old enough for all of its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    Count,
    Fields,
    Form,
    FormOf,
    Of,
    cursors,
    each_of,
    form_of_state,
    instead,
    just,
    list_of,
    no_cursor,
    or_none,
    row,
    whole,
)
from asyncloader.datapipes.running.cursor_history import thinned
from asyncloader.datapipes.running.cursors import Cursor
from asyncloader.datapipes.settled import (
    NOTHING_SETTLED,
    Ledger,
    Pending,
    Settled,
    SettledRuns,
    attempts_form,
    contradictions,
    failed_form,
    kept_form,
    of_now,
    parts_form,
    reasons_form,
    settled_form,
)
from asyncloader.places.marks import (
    FIRST,
    DealStart,
    Dealt,
    Mark,
    Noted,
    load_mark,
)
from asyncloader.places.random_states import check_states

#: The key of the cursor of a part that resumes by its position alone, in any number of workers.
SPREAD = "spread"


class WorkerStart(NamedTuple):
    """Where a worker resumes: at a mark, without the first ``unwanted`` items from there.

    Or without those that are settled, where it is recorded what becomes of each.
    """

    mark: Mark
    unwanted: int
    settled: SettledRuns | None = None
    #: The parts of some that are not settled, which no worker could make again.
    kept: Sequence[Sequence[Any]] = ()

    @property
    def position(self) -> int:
        """How many items of the worker's stream come before the first that it sends."""
        return self.mark.position + self.unwanted


@dataclass(frozen=True)
class StreamPlace:
    """Where each worker resumes a stream, and the order of the next turns."""

    starts: tuple[WorkerStart, ...]
    turns: tuple[int, ...]
    deal: DealStart | None = None


def first_place(workers: int, *, is_recorded: bool = False) -> StreamPlace:
    """Return the beginning of a stream, in which it may be recorded what becomes of each item."""
    start = WorkerStart(FIRST, 0, NOTHING_SETTLED if is_recorded else None)
    return StreamPlace((start,) * workers, tuple(range(workers)))


class Stand(NamedTuple):
    """What a stream's place, and a cursor, are made from when they are asked for: cheap.

    ``marks`` is each worker's mark, and how many of its items were taken.
    """

    marks: list[tuple[Noted, int]]
    turns: list[int]
    dealing: Dealing | None
    #: How many items of all workers were taken.
    taken: int

    def place(self) -> StreamPlace:
        """Return the place."""
        marks = [noted.read() for noted, _ in self.marks]
        counts = zip(marks, self.marks, strict=True)
        starts = tuple(WorkerStart(mark, taken - mark.position) for mark, (_, taken) in counts)
        deal = None if self.dealing is None else self.dealing.start(marks)
        return StreamPlace(starts, tuple(self.turns), deal)

    def forget_dealing_before(self) -> None:
        """Forget the marks of dealing before it, if there are many."""
        if self.dealing is not None and self.dealing.has_many():
            self.dealing.forget_before([noted.read() for noted, _ in self.marks])


def start_after_arrived(noted: Noted, arrived: int) -> WorkerStart:
    """Return where another worker resumes after all items of a stream that have arrived."""
    mark = noted.read()
    return WorkerStart(mark, arrived - mark.position)


def cursor_of_place(taken: int, place: StreamPlace) -> Cursor:
    """Return a place, of which so many items were taken, as a cursor."""
    cursor = Streaming(
        taken=taken,
        workers=[[_plain_mark(start.mark), start.unwanted] for start in place.starts],
        turns=list(place.turns),
    )
    if place.deal is not None:
        cursor.deal = [_plain_mark(place.deal.mark), list(place.deal.dealt)]
    return cursor.saved()


#: The form of a mark.
_MARK = row(COUNT, cursors, or_none(check_states))


class PartFacts(NamedTuple):
    """What the states of a part that ran in workers depend on.

    ``dispatch`` is the number of the pipe that dealt its items, if there was one.
    """

    workers: int
    dispatch: int | None
    #: Whether it is recorded in the workers what becomes of each item.
    is_recorded: bool = False


def _mark_form(part: PartFacts) -> Form:
    """Return the form of a worker's mark."""
    if part.dispatch is None:
        return _MARK
    return instead(_MARK, part.dispatch, form_of_state(Dealt, part))


def _deal_form(part: PartFacts) -> Form:
    return row(_MARK, each_of(part.workers, COUNT)) if part.dispatch is not None else no_cursor


class Streaming(Fields):
    """The place of a part that ran in workers: of each worker, and whose turns are next.

    ``in_order``, ``runs`` and ``told`` are of earlier states.
    """

    taken: Count
    in_order: Annotated[bool, just(True)] | None = None
    runs: Annotated[list[Any], just([])] | None = None
    told: Annotated[list[Any], just([])] | None = None
    workers: Annotated[
        list[Any], Of(lambda part: each_of(part.workers, row(_mark_form(part), COUNT)))
    ]
    turns: Annotated[
        list[int], Of(lambda part: list_of(whole(most=part.workers - 1), most=part.workers))
    ]
    deal: Annotated[list[Any], Of(_deal_form)] | None = None

    def check(self, pipe: PartFacts) -> Iterator[str]:
        if len(set(self.turns)) != len(self.turns):
            yield "each worker has one turn"
        if self.taken != sum(mark[0] + more for mark, more in self.workers):
            yield "what was taken is what was taken of all workers"
        marks = [mark for mark, _ in self.workers]
        if pipe.dispatch is not None and not _is_dealt(marks, self.deal, pipe.dispatch):
            yield "the workers resume with what was dispatched to them"


def _is_dealt(marks: Iterable[Any], deal: list[Any] | None, dispatch: int) -> bool:
    cursors = [dict(mark[1]) for mark in marks]
    dealt = [each[dispatch]["taken"] if dispatch in each else 0 for each in cursors]
    if deal is None:
        return not any(dealt)
    first = min(taken * len(dealt) + worker for worker, taken in enumerate(dealt))
    mark, had = deal
    return bool(had == dealt and mark[0] <= first)


def _shares_form(part: PartFacts) -> Form:
    share = row(COUNT, settled_form, parts_form)
    with_failures = row(COUNT, settled_form, parts_form, failed_form)

    def check(value: Any, where: str, form_of: FormOf) -> None:
        has_failures = type(value) is list and len(value) == len(SettledRuns._fields)
        (with_failures if has_failures else share)(value, where, form_of)

    return each_of(part.workers, check)


class SharesRecorded(Fields):
    """The place of a part in which it was recorded what becomes of each item.

    ``shares`` has what is settled of each worker's share; ``marks`` has from where the first item
    that is not settled, and all after it, are made again.
    """

    shares: Annotated[list[Any], Of(_shares_form)]
    marks: Annotated[list[Any], Of(lambda part: each_of(part.workers, _mark_form(part)))]
    left_out: Annotated[list[list[Any]], reasons_form] = field(default_factory=list)
    kept: Annotated[list[list[Any]], kept_form] | None = None
    deal: Annotated[list[Any], Of(_deal_form)] | None = None
    attempts: Annotated[list[list[int]], attempts_form] | None = None

    def check(self, pipe: PartFacts) -> Iterator[str]:
        kept: list[list[int]] = [[] for _ in self.shares]
        for _, number, _ in self.kept or ():
            index, at = divmod(number, len(kept))
            kept[at].append(index)
        for share, own in zip(self.shares, kept, strict=True):
            yield from contradictions(SettledRuns(*share), own)
        pairs = zip(self.shares, self.marks, strict=True)
        if any(mark[0] > share[0] for share, mark in pairs):
            yield "a worker makes all items again that are not settled"
        if pipe.dispatch is not None and not _is_dealt(self.marks, self.deal, pipe.dispatch):
            yield "the workers resume with what was dispatched to them"


class Spread(Fields):
    """The place of a part that resumes by its position alone, in any number of workers."""

    spread: Annotated[list[Any], cursors]
    deals: Annotated[int | None, Of(lambda part: just(part.dispatch))]


def place_of_cursor(cursor: Cursor) -> StreamPlace:
    """Return the place of a cursor, which was checked as ``Streaming``."""
    starts = tuple(WorkerStart(_mark(mark), unwanted) for mark, unwanted in cursor["workers"])
    return StreamPlace(starts, tuple(cursor["turns"]), _deal_of(cursor))


def cursor_of_shares(
    ledger: Ledger, marks_at: Callable[[list[int]], tuple[list[Mark], DealStart | None]]
) -> Cursor:
    """Return the place of a part in which it is recorded what becomes of each item.

    ``marks_at`` returns from where the workers make again what comes from their frontiers on, and
    from where it is dealt to them again.
    """
    shares, left_out, pending = ledger.state()
    marks, deal = marks_at([frontier for frontier, *_ in shares])
    return shares_recorded(shares, marks, left_out, deal, pending)


def shares_recorded(
    shares: Iterable[SettledRuns],
    marks: Iterable[Mark],
    left_out: list[list[Any]],
    deal: DealStart | None,
    pending: Pending,
) -> Cursor:
    """Return such a place as a cursor."""
    cursor = SharesRecorded(
        # What no pipe has failed on says nothing of failures, as in states of before.
        shares=[list(share if share.failed else share[:-1]) for share in shares],
        marks=list(map(_plain_mark, marks)),
        left_out=left_out,
    )
    cursor.kept = [list(each) for each in pending.kept] or None
    cursor.attempts = [list(each) for each in pending.attempts] or None
    if deal is not None:
        cursor.deal = [_plain_mark(deal.mark), list(deal.dealt)]
    return cursor.saved()


def place_of_shares(cursor: Cursor) -> StreamPlace:
    """Return where each worker resumes, given a cursor that was checked as ``SharesRecorded``."""
    pairs = zip(cursor["shares"], map(_mark, cursor["marks"]), strict=True)
    starts = tuple(WorkerStart(mark, 0, SettledRuns(*share)) for share, mark in pairs)
    return StreamPlace(starts, tuple(range(len(starts))), _deal_of(cursor))


def with_kept_parts(
    place: StreamPlace, ledger: Ledger, keeper: int | None, *, is_inside: bool
) -> StreamPlace:
    """Return a place in which no worker makes the items again whose parts a pipe has kept.

    If the pipe runs in the workers, they get the parts; otherwise for them these items are settled.
    """
    starts = []
    for share, start in enumerate(place.starts):
        settled = Settled.of(start.settled or NOTHING_SETTLED)
        kept = ledger.kept_of_share(keeper, share, settled)
        if not is_inside:
            for _, index, _ in kept:
                settled.add(index)
            kept = []
        starts.append(start._replace(settled=settled.plain(), kept=kept))
    return replace(place, starts=tuple(starts))


def _deal_of(cursor: Cursor) -> DealStart | None:
    if "deal" not in cursor:
        return None
    mark, dealt = cursor["deal"]
    return DealStart(_mark(mark), tuple(dealt))


def stream_form(part: PartFacts, inside: FormOf) -> Form:
    """Return the form of the cursors of a part; ``inside`` gives those of its pipes."""
    own, spread = form_of_state(Streaming, part), form_of_state(Spread, part)
    if part.is_recorded:
        own = of_now(form_of_state(SharesRecorded, part))

    def check(value: Any, where: str, form_of: FormOf) -> None:
        is_spread = type(value) is dict and SPREAD in value
        (spread if is_spread else own)(value, where, inside)

    return check


def _plain_mark(mark: Mark) -> list[Any]:
    """Return a mark as plain data."""
    own = [[place, cursor] for place, cursor in mark.cursors.items()]
    return [mark.position, own, mark.states]


def _mark(plain: list[Any]) -> Mark:
    position, own, states = plain
    return Mark(position, dict(own), states)


class Dealing:
    """The dispatching process's marks of one epoch, oldest first; it began with ``first``.

    It deals the items of the pipe with the number ``pipe``.
    """

    def __init__(self, pipe: int = 0, first: Mark = FIRST) -> None:
        self._pipe = pipe
        self._marks = [first]

    def note(self, mark: bytes) -> None:
        """Add a mark that was reported."""
        # The workers may never report that they need no older marks.
        self._marks = [*thinned(self._marks), load_mark(mark)]

    def start(self, workers: Sequence[Mark]) -> DealStart:
        """Return where dealing resumes for workers that resume at these marks."""
        dealt = self._dealt(workers)
        return DealStart(self._marks[self._newest(dealt)], dealt)

    def has_many(self) -> bool:
        """Whether there are so many marks that it is time to drop some."""
        return len(self._marks) > _MANY_MARKS

    def forget_before(self, workers: Sequence[Mark]) -> None:
        """Drop marks that workers at these marks, or later ones, do not need."""
        # One assignment: a thread that reads meanwhile sees the old list or the new one.
        self._marks = self._marks[self._newest(self._dealt(workers)) :]

    def _newest(self, dealt: tuple[int, ...]) -> int:
        # A worker gets items only in its own turn.
        first = min(taken * len(dealt) + worker for worker, taken in enumerate(dealt))
        old_enough = [at for at, mark in enumerate(self._marks) if mark.position <= first]
        return old_enough[-1] if old_enough else 0

    def _dealt(self, workers: Sequence[Mark]) -> tuple[int, ...]:
        """Return how many dealt items each worker's mark no longer needs."""
        return tuple(mark.cursors.get(self._pipe, {}).get("taken", 0) for mark in workers)


_MANY_MARKS = 64
