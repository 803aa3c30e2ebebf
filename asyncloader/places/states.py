"""The states of a loader, and where in its epochs it begins.

This file is about ``LoaderStates``: it makes a state of a loader's place, and reads where a
loader resumes from its own state or from the states of all ranks of a run. And it is about
that place: ``EpochSeeds``, the seeds of the coming epochs, and ``EpochStart``, where in an
epoch a loader begins.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from asyncloader.datapipes.base import COPIES
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.converting import MapToIterConverter
from asyncloader.datapipes.one_to_one import is_one_to_one
from asyncloader.datapipes.rollouts import Rollout
from asyncloader.datapipes.running.cursor_forms import (
    Form,
    FormOf,
    check_cursors,
    form_of_pipe,
    form_of_state,
    no_cursor,
)
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import calls_for_each, draws, has_own_state, is_ours
from asyncloader.datapipes.selecting import Header
from asyncloader.datapipes.settled import Recorded, of_now
from asyncloader.datapipes.sharding import ShardingFilter
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.errors import SnapshotError
from asyncloader.garbage import collecting_nothing
from asyncloader.graph.cut import NOT_CUT, cut_graph
from asyncloader.graph.fingerprint import Fingerprint, differences, fingerprint
from asyncloader.graph.recorded import recorded_from
from asyncloader.graph.refusals import Purpose, Refusal, first_refusal
from asyncloader.graph.walk import Graph
from asyncloader.places.elastic import (
    Role,
    divides_alike,
    recorded_part,
    refit,
    regroup,
    united,
    whole_number,
)
from asyncloader.places.snapshot import Snapshot, SnapshotEncoder, check_plain, decode, decode_each
from asyncloader.places.stream_place import PartFacts, stream_form
from asyncloader.ranks import ranks_in_words
from asyncloader.seeds import SeedGenerator, SeedStream, checked_seed, entropy
from asyncloader.transport.code import dumps_code

T = TypeVar("T")


class LoaderStates:
    """Makes and reads the states of loaders of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: The latest epoch of which a state was taken, and the lengths of the sources in it.
        self._epoch_lengths: tuple[int | None, dict[int, int]] = (None, {})

    def take(
        self,
        seeds: EpochSeeds,
        start: EpochStart | None,
        service_state: bytes | None,
        *,
        role: Role,
        why_not: str,
        include_datapipe: bool,
    ) -> dict[str, Any]:
        """Return the state of a loader that continues with ``start`` and then with ``seeds``.

        ``why_not`` says why no state can be taken in the middle of this epoch, or "".
        """
        self._check_possible(role)
        if why_not and start is not None and start.position:
            raise SnapshotError(why_not)
        self._check_kept({} if start is None else start.cursors)
        snapshot = Snapshot(
            seed=seeds.seed,
            epoch=seeds.epoch,
            drawn=seeds.drawn,
            epoch_seed=None if start is None else start.seed,
            items=0 if start is None else start.position,
            workers=role.workers,
            in_order=role.in_order,
            rank=role.rank,
            ranks=role.ranks,
            ahead=0 if start is None else start.ahead,
            padding=(0 if start is None else start.padding) if role.pads else None,
            cursors={} if start is None else start.cursors,
            lengths=self._lengths_in(seeds.epoch),
            service_state=service_state,
            graph=self._pickled if include_datapipe else None,
        )
        return self._encoder.encode(snapshot)

    def _check_kept(self, cursors: Cursors) -> None:
        """Raise SnapshotError, naming the pipe, for a kept result that is no plain data."""
        for cursor in cursors.values():
            for pipe, number, result in cursor.get("kept", ()):
                check_plain(
                    result,
                    f"the kept result of {stage_name(self._graph.pipes[pipe])} for item {number}",
                )

    def read(self, state: Any, role: Role) -> tuple[EpochSeeds, EpochStart | None, bytes | None]:
        """Return what a state says, or the list of the states of all ranks of a run.

        SnapshotError for one that is damaged, of another graph, or that a loader in this role
        cannot resume.
        """
        # Of very many states nearly every object that is made stays.
        with collecting_nothing():
            return self._read(rank_snapshots(state), role)

    def _read(
        self, snapshots: Sequence[Snapshot], role: Role
    ) -> tuple[EpochSeeds, EpochStart | None, bytes | None]:
        self._check_possible(role)
        for before in _each_once(snapshot.fingerprint for snapshot in snapshots):
            self._check_graph(before)
        own = own_snapshot(snapshots, role)
        is_between = own.epoch_seed is None
        if not is_between:
            is_same_rank = (own.rank, own.ranks) == (role.rank, role.ranks)
            self._check_lengths(own.lengths if is_same_rank else _same_lengths(snapshots))
            self._check_source(own)
        self._check_cursors(snapshots)
        start = _start_for(self._graph, snapshots, role)
        return EpochSeeds(own.seed, own.epoch, own.drawn), start, own.service_state

    def forget_lengths(self) -> None:
        """Ask for the lengths again: an epoch that is begun again has the number it had before."""
        self._epoch_lengths = None, {}

    def whole_number(self, role: Role) -> Callable[[int], int]:
        """Return what says which number an item of this rank has before their division."""
        return whole_number(self._graph, role)

    def _check_graph(self, before: Fingerprint) -> None:
        different = differences(before, self._fingerprint)
        if different:
            raise SnapshotError(f"the state is of another graph: {'; '.join(different)}")

    def _check_cursors(self, snapshots: Sequence[Snapshot]) -> None:
        pipes, forms = len(self._graph.pipes), functools.cache(self._forms)
        for snapshot in snapshots:
            for number in snapshot.cursors:
                if number >= pipes:
                    raise SnapshotError(
                        f"position.cursors has a pipe {number}, but the graph has only"
                        f" {pipes} pipes"
                    )
            form_of = forms(snapshot.workers, in_order=snapshot.in_order)
            check_cursors(snapshot.cursors, "position.cursors", form_of)
            self._check_reach(snapshot)

    def _check_lengths(self, then: dict[int, int]) -> None:
        """Raise SnapshotError if there are more or fewer items to draw an order of than then."""
        pipes = self._graph.pipes
        lengths = self._lengths()
        for number, before in then.items():
            now = lengths.get(number, before)
            if now != before and number < len(pipes):
                raise SnapshotError(
                    f"the state does not fit the data: {stage_name(pipes[number])} had {before}"
                    f" items and has {now}, so the rest of its epoch would come in another order,"
                    " with items twice or not at all. Resume with the data of before, or with a"
                    " state that was taken between two epochs"
                )

    def _check_source(self, snapshot: Snapshot) -> None:
        """Raise SnapshotError if the source surely has fewer items than were read of it."""
        cut = cut_graph(self._graph) if snapshot.workers else NOT_CUT
        if not all(part.is_sharded for part in cut.parts):
            # Each worker has read the same items.
            return
        pipe, read = self._graph.end, snapshot.items - (snapshot.padding or 0)
        while (taken := _least_taken(pipe, read, shares=max(1, snapshot.workers))) is not None:
            pipe, read = pipe.source, taken
        length = _length_of(pipe) if _is_in_memory(pipe) else None
        if length is not None and length < read:
            raise SnapshotError(
                f"the state does not fit the data: {read} items of {stage_name(pipe)} were read by"
                f" then, and it has only {length}. Resume with the data of before, or with a state"
                " that was taken between two epochs"
            )

    def _check_reach(self, snapshot: Snapshot) -> None:
        """Raise SnapshotError if a pipe had yielded more items than the loader."""
        if recorded_from(self._graph) is not None or not snapshot.in_order:
            # From there on pipes begin anew, with the items that are not settled.
            return
        numbers = self._graph.numbers
        pipe, most, cursors = self._graph.end, snapshot.items, snapshot.cursors
        while is_one_to_one(pipe) and numbers.get(id(pipe)) not in cursors:
            pipe = pipe.source
        cursor = cursors.get(numbers.get(id(pipe), -1))
        # What may be spread over any number of workers does not say what was yielded.
        if cursor is None or "spread" in cursor:
            return
        # For a part that ran in workers it is what the loader took from it.
        is_part = "workers" in cursor and "turns" in cursor
        yielded = cursor["taken"] if is_part else _yielded_at(pipe, cursor)
        if yielded > most:
            raise SnapshotError(
                f"position.items is {most}, but {stage_name(pipe)} had yielded {yielded} items by"
                " then"
            )

    def _forms(self, workers: int, *, in_order: bool) -> FormOf:
        """Return a function that tells the form of each cursor taken with so many workers."""
        pipes = self._graph.pipes

        first = recorded_from(self._graph)
        recorded = recorded_part(self._graph, in_order=in_order) if workers else None
        cut = cut_graph(self._graph) if workers else NOT_CUT
        copies = 1 if all(part.is_sharded for part in cut.parts) else workers

        @functools.cache
        def inside(number: int) -> Form:
            pipe = pipes[number] if 0 <= number < len(pipes) else None
            if pipe is None:
                return no_cursor
            if pipe is first:
                return of_now(form_of_state(Recorded, pipe))
            return copy_context().run(_form_of_copies, copies, pipe)

        if not workers:
            return inside
        numbers = self._graph.numbers
        outlets = {}
        for part in cut.parts:
            is_dealt = any(inlet is cut.dispatch for inlet in part.inlets)
            dispatch = numbers[id(cut.dispatch)] if is_dealt else None
            is_recorded = recorded is not None and part.end is recorded.end
            facts = PartFacts(workers, dispatch, is_recorded)
            outlets[numbers[id(part.end)]] = stream_form(facts, inside)
        return lambda number: outlets[number] if number in outlets else inside(number)

    def _check_possible(self, role: Role) -> None:
        refusal = self._refusal_as_ready if role.workers and not role.in_order else self._refusal
        if refusal is None and role.ranks > 1:
            refusal = self._refusal_on_ranks
        if refusal is not None:
            raise SnapshotError(str(refusal))

    @functools.cached_property
    def _refusal(self) -> Refusal | None:
        return first_refusal(self._graph, Purpose.STATE)

    @functools.cached_property
    def _refusal_on_ranks(self) -> Refusal | None:
        return first_refusal(self._graph, Purpose.STATE_ON_RANKS)

    @functools.cached_property
    def _refusal_as_ready(self) -> Refusal | None:
        return self._refusal or first_refusal(self._graph, Purpose.STATE_AS_READY)

    def _lengths_in(self, epoch: int) -> dict[int, int]:
        """Return the lengths of the sources, asked for once an epoch: data may grow between two."""
        known, lengths = self._epoch_lengths
        if known != epoch:
            lengths = self._lengths()
            self._epoch_lengths = epoch, lengths
        return lengths

    def _lengths(self) -> dict[int, int]:
        """Return how many items each source has that knows it, where an order is drawn of them."""
        pipes = self._graph.pipes
        if not any(map(draws, pipes)):
            return {}
        sources = (
            (number, pipe) for number, pipe in enumerate(pipes) if not self._graph.sources(pipe)
        )
        known = ((number, _length_of(pipe)) for number, pipe in sources)
        return {number: length for number, length in known if length is not None}

    @property
    def _fingerprint(self) -> Fingerprint:
        return fingerprint(self._graph)

    @functools.cached_property
    def _pickled(self) -> bytes:
        try:
            return dumps_code(self._graph.end)
        except Exception as error:
            raise SnapshotError(
                f"the graph cannot be pickled ({error}); call state_dict(include_datapipe=False)"
                " and give the same graph to the loader that resumes"
            ) from error

    @functools.cached_property
    def _encoder(self) -> SnapshotEncoder:
        return SnapshotEncoder(self._fingerprint)


def _each_once(values: Iterable[T]) -> list[T]:
    """Return the different objects among these: those of ranks are often one."""
    return list({id(value): value for value in values}.values())


def _same_lengths(snapshots: Sequence[Snapshot]) -> dict[int, int]:
    """Return the lengths of the sources, if all ranks had the same; else each has its own data."""
    first = snapshots[0].lengths
    return first if all(snapshot.lengths == first for snapshot in snapshots) else {}


def _form_of_copies(copies: int, pipe: Any) -> Form:
    """Return the form of a pipe's cursors where each item may come so often."""
    COPIES.set(copies)
    return form_of_pipe(pipe)


def _yielded_at(pipe: Any, cursor: Cursor) -> int:
    if has_own_state(pipe):
        return int(cursor["yielded"])
    return int(pipe.yielded_at(pipe.State.loaded(cursor)))


def _least_taken(pipe: Any, yielded: int, *, shares: int) -> int | None:
    """Return how many items a pipe took at least to yield so many; None where nobody can say."""
    if not is_ours(pipe):
        return None
    if isinstance(pipe, Header):
        # Where it has reached its limit, nothing of the source is wanted any more.
        return yielded if pipe.limit is None or yielded < pipe.limit else None
    if isinstance(pipe, Batcher) and not pipe.goes_by_clock():
        # The last batch of each share may be short.
        short = 0 if pipe.drop_last else min(yielded, shares)
        return short + (yielded - short) * pipe.batch_size
    is_at_most_one = is_one_to_one(pipe) or calls_for_each(pipe)
    return yielded if is_at_most_one or isinstance(pipe, ShardingFilter | Rollout) else None


def _is_in_memory(source: Any) -> bool:
    """Whether a source's length is what it yields in an epoch, and no guess of the user's."""
    if isinstance(source, IterableWrapper):
        is_whole = isinstance(source.iterable, Sequence) and not source.shards_itself
        return type(source) is IterableWrapper and is_whole
    return type(source) is MapToIterConverter


def _length_of(source: Any) -> int | None:
    try:
        return len(source)
    except Exception:  # noqa: BLE001 - a user's ``__len__`` ran; most say TypeError
        return None


def unpickled_graph(state: Any) -> Any:
    """Return the graph in a state, which must come from a trusted source."""
    graph = rank_snapshots(state)[0].graph
    if graph is None:
        raise SnapshotError(
            "the state holds no graph (include_datapipe=False); give the loader its datapipe"
        )
    try:
        return pickle.loads(graph)
    except Exception as error:
        raise SnapshotError(
            f"the graph in serialized_datapipe cannot be read: {error!r}"
        ) from error


def rank_snapshots(state: Any) -> list[Snapshot]:
    """Return the snapshots in a state or in a list of the states of all ranks, by rank."""
    if not isinstance(state, list | tuple):
        return [decode(state)]
    snapshots = sorted(decode_each(state), key=lambda snapshot: snapshot.rank)
    _check_complete(snapshots)
    _check_same_moment(snapshots)
    return snapshots


def workers_of(state: Any, otherwise: int) -> int:
    """Return with how many workers a state was taken, if that was in the middle of an epoch."""
    snapshot = decode(state)
    return snapshot.workers if snapshot.epoch_seed is not None and snapshot.items else otherwise


def _check_complete(snapshots: Sequence[Snapshot]) -> None:
    if not snapshots:
        raise SnapshotError("a list of states must have one for each rank of the run, got none")
    given, count = {snapshot.rank for snapshot in snapshots}, snapshots[0].ranks
    if any(snapshot.ranks != count for snapshot in snapshots):
        counts = ", ".join(str(snapshot.ranks) for snapshot in snapshots)
        raise SnapshotError(f"the states are of runs with different numbers of ranks: {counts}")
    # There may be very many: a few are enough to say.
    missing = [rank for rank in range(min(count, len(snapshots) + 8)) if rank not in given]
    if missing:
        raise SnapshotError(
            f"the list has no state of {ranks_in_words(missing)} of {count}; load the states of all"
            " ranks"
        )
    if len(snapshots) > count:
        raise SnapshotError(f"the list has {len(snapshots)} states of a run with {count} ranks")


def _check_same_moment(snapshots: Sequence[Snapshot]) -> None:
    moments = list(map(_moment_in_words, snapshots))
    others = [rank for rank, moment in enumerate(moments) if moment != moments[0]]
    if others:
        raise SnapshotError(
            f"the state of {ranks_in_words(others)} is of another moment than that of rank 0:"
            f" {moments[others[0]]}, not {moments[0]}. Load states that were taken after the same"
            " item on every rank"
        )


def _moment_in_words(snapshot: Snapshot) -> str:
    if snapshot.epoch_seed is None:
        return "between epochs"
    items, workers = snapshot.items - snapshot.ahead, f"with {snapshot.workers} workers"
    # Before the first item, the ranks have not agreed on a seed yet.
    seed = f" with the seed {snapshot.epoch_seed}" if snapshot.items else ""
    return f"after {items} items of the epoch{seed}, {workers}"


def own_snapshot(moment: Sequence[Snapshot], role: Role) -> Snapshot:
    """Return the snapshot of this loader's own rank; the first one if the ranks are others."""
    return moment[role.rank] if len(moment) == role.ranks else moment[0]


def own_state(state: Any, role: Role) -> dict[str, Any] | None:
    """Return the state of this loader's own rank, or None if other ranks took the states."""
    states = state if isinstance(state, list | tuple) else [state]
    for each in states:
        if (each["position"]["rank"], each["position"]["ranks"]) == (role.rank, role.ranks):
            return dict(each)
    return None


def _start_for(graph: Graph, moment: Sequence[Snapshot], role: Role) -> EpochStart | None:
    """Return where in an epoch a loader with this role resumes; None for the next epoch."""
    own = own_snapshot(moment, role)
    if own.epoch_seed is None:
        return None
    place = _place(graph, moment, own, role)
    has_others = _is_begun(moment, own) and not _has_same_counts(own, role)
    return EpochStart(
        own.epoch_seed,
        place.items,
        place.cursors,
        # A state names the epoch that follows.
        epoch=max(own.epoch - 1, 0),
        is_resumed=True,
        ahead=place.ahead,
        padding=place.padding or 0,
        taken_with=own.workers if has_others else None,
        is_regrouped=_is_begun(moment, own) and not _has_same_items(graph, own, role),
    )


def _place(graph: Graph, moment: Sequence[Snapshot], own: Snapshot, role: Role) -> Snapshot:
    """Return a snapshot with the items and the cursors that a loader with this role has."""
    if not _is_begun(moment, own):
        return replace(own, items=0, cursors={}, ahead=0)
    _check_pads(own, role)
    _check_order(graph, own, role)
    if _has_same_items(graph, own, role):
        cursors = refit(
            graph,
            own.cursors,
            taken_with=own.workers,
            run_with=role.workers,
            in_order=role.in_order,
        )
        return replace(own, cursors=cursors)
    if own.padding is not None:
        raise SnapshotError(
            f'the state was taken with uneven="pad" in the middle of an epoch on {_who(own)}, and'
            f" this is {_who(role)}, which has another share; load each rank's own state with as"
            " many ranks and workers as before, or a state between epochs"
        )
    if len(moment) < own.ranks:
        raise SnapshotError(
            f"the state was taken in the middle of an epoch on {_who(own)}, and this is"
            f" {_who(role)}; load a list of the states of all {own.ranks} ranks, or each rank's"
            " own state with as many ranks and workers as before, or a state between epochs"
        )
    if recorded_from(graph) is not None or not own.in_order:
        items, cursors = united(graph, moment, role)
        return replace(own, items=items, cursors=cursors, ahead=0)
    items, cursors, ahead = regroup(graph, moment, role)
    return replace(own, items=items, cursors=cursors, ahead=ahead)


def _check_pads(own: Snapshot, role: Role) -> None:
    """Raise SnapshotError where padded shares would be resumed as others, or the reverse."""
    is_padded = own.padding is not None
    if is_padded != role.pads:
        found, wanted = ("with", "without") if is_padded else ("without", "with")
        raise SnapshotError(
            f'the state was taken in the middle of an epoch {found} uneven="pad", and this loader'
            f" is {wanted} it; give its DistributedReadingService the same, or load a state between"
            " epochs"
        )


def _check_order(graph: Graph, own: Snapshot, role: Role) -> None:
    """Raise SnapshotError where items would be taken in turn, and were not before; or vice versa.

    It does not matter where it is recorded in the workers what becomes of each item.
    """
    if own.in_order == role.in_order or recorded_part(graph, in_order=True) is not None:
        return
    found = "in_order=False" if role.in_order else "items in turn, or without workers,"
    raise SnapshotError(
        f"the state was taken in the middle of an epoch with {found}, and this loader takes items"
        f" {'in turn' if role.in_order else 'as workers have them ready'}; make it with"
        f" in_order={own.in_order} for the rest of the epoch, or load a state between epochs"
    )


def _is_begun(moment: Sequence[Snapshot], own: Snapshot) -> bool:
    """Whether any rank has yielded an item of the epoch, or keeps the result of one."""
    return any(each.items or each.cursors for each in moment) or own.ahead > 0


def _has_same_counts(own: Snapshot, role: Role) -> bool:
    """Whether there are as many workers and ranks as before."""
    return (own.workers, own.ranks) == (role.workers, role.ranks)


def _has_same_items(graph: Graph, own: Snapshot, role: Role) -> bool:
    """Whether a loader with this role yields the same items as the state's loader."""
    if (own.rank, own.ranks) != (role.rank, role.ranks):
        return False
    # If a rank's share depends on its workers, other workers mean other items.
    is_same = own.ranks == 1 or own.workers == role.workers
    return is_same or divides_alike(graph, own.workers, role.workers)


def _who(one: Snapshot | Role) -> str:
    return f"rank {one.rank} of {one.ranks} (with {one.workers} workers)"


#: The seeds of later epochs come from this far along a seed's stream, where nothing else draws.
_EPOCHS_AT = 2**64


@dataclass(frozen=True)
class EpochSeeds:
    """The place in a loader's sequence of epochs.

    The first epoch has the seed that was given, or one that is drawn when it begins, or when a
    state is taken before. The seeds of all later epochs follow from that.
    """

    #: The seed that was given, or None.
    seed: int | None = None
    #: The number of the next epoch.
    epoch: int = 0
    #: The seed that was drawn because none was given; None before that.
    drawn: int | None = None

    @classmethod
    def from_seed(cls, seed: int) -> EpochSeeds:
        """Return the beginning of a seed's sequence; ValueError if it is no 64-bit number."""
        return cls(checked_seed(seed))

    def next_epoch(self) -> tuple[EpochStart, EpochSeeds]:
        """Return the beginning of the next epoch, and the place after it."""
        known = self.known()
        first = known.drawn if known.seed is None else known.seed
        assert first is not None
        seed = first if self.epoch == 0 else SeedStream(first, _EPOCHS_AT + self.epoch).draw()
        start = EpochStart(seed, is_chosen=self.seed is not None, epoch=self.epoch)
        return start, replace(known, epoch=self.epoch + 1)

    def known(self) -> EpochSeeds:
        """Return the same place with a seed, which is drawn now if there is none.

        A state of 0.1 that was taken in an epoch without a seed does not say which one.
        """
        has_seed = self.seed is not None or self.drawn is not None
        return self if has_seed else replace(self, drawn=entropy())


@dataclass(frozen=True)
class EpochStart:
    """Where a loader begins an epoch: its seed, and how many items were yielded before.

    The cursors were taken at the last of those items, or earlier.
    """

    seed: int
    position: int = 0
    cursors: Cursors = field(default_factory=dict)
    #: Whether the user gave the seed from which this one comes.
    is_chosen: bool = False
    #: The number of the epoch.
    epoch: int = 0
    #: Whether the epoch comes from a state.
    is_resumed: bool = False
    #: How many more items this rank had yielded than the rank with the fewest.
    ahead: int = 0
    #: How many of the items that were yielded before are padding.
    padding: int = 0
    #: With how many workers the state was taken, if those or the ranks were others.
    taken_with: int | None = None
    #: Whether the state's ranks, or their workers, had other shares of the items.
    is_regrouped: bool = False
    #: How many items the iterator had yielded before, if this is the rest of its epoch.
    before: int = 0

    def generator(self) -> SeedGenerator:
        """Return the seed generator of the epoch, for its services and pipes."""
        generator = SeedGenerator(self.seed)
        generator.is_chosen, generator.epoch = self.is_chosen, self.epoch
        generator.resumed_after = self.position - self.ahead if self.is_resumed else None
        generator.padding = self.padding
        generator.taken_with = self.taken_with
        return generator
