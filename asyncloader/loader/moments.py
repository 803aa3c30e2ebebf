"""The states of a run's ranks at one moment.

This file is about where a loader goes on: from its own state, or from the states of all
ranks of a run that may have had other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncloader.errors import SnapshotError
from asyncloader.loader.seeding import EpochStart
from asyncloader.ranks import ranks_in_words
from asyncloader.services.elastic import refit
from asyncloader.services.regrouping import RankPlace, Role, divides_alike, regroup
from asyncloader.snapshot import Snapshot, decode


def moment_of(state: Any) -> list[Snapshot]:
    """Return what a state says, or a list with that of every rank, which must go together."""
    if not isinstance(state, list | tuple):
        return [decode(state)]
    snapshots = sorted(map(decode, state), key=lambda snapshot: snapshot.rank)
    _check_complete(snapshots)
    _check_together(snapshots)
    return snapshots


def own_of(moment: Sequence[Snapshot], role: Role) -> Snapshot:
    """Return the snapshot of this loader's own rank; the first where the ranks are others."""
    return moment[role.rank] if len(moment) == role.ranks else moment[0]


def own_state(state: Any, role: Role) -> dict[str, Any] | None:
    """Return the state of this loader's own rank, out of what was loaded.

    There is none where other ranks took the states.
    """
    states = state if isinstance(state, list | tuple) else [state]
    for each in states:
        if (each["position"]["rank"], each["position"]["ranks"]) == (role.rank, role.ranks):
            return dict(each)
    return None


def start_for(datapipe: Any, moment: Sequence[Snapshot], role: Role) -> EpochStart | None:
    """Return where in its epoch a loader with this role goes on; None for the next epoch."""
    own = own_of(moment, role)
    if own.epoch_seed is None:
        return None
    place = _place(datapipe, moment, own, role)
    has_others = _is_begun(moment, own) and not _has_same_counts(own, role)
    return EpochStart(
        own.epoch_seed,
        place.items,
        place.cursors,
        is_resumed=True,
        ahead=place.ahead,
        taken_with=own.workers if has_others else None,
        taken_in_order=own.in_order if _is_begun(moment, own) else None,
        is_regrouped=_is_begun(moment, own) and not _has_same_items(datapipe, own, role),
    )


def _place(datapipe: Any, moment: Sequence[Snapshot], own: Snapshot, role: Role) -> RankPlace:
    if not _is_begun(moment, own):
        return RankPlace(0, {})
    if _has_same_items(datapipe, own, role):
        cursors = refit(datapipe, own.cursors, taken_with=own.workers, run_with=role.workers)
        return RankPlace(own.items, cursors, own.ahead)
    if len(moment) < own.ranks:
        raise SnapshotError(
            f"the state was taken in the middle of an epoch on {_who(own)}, and this is"
            f" {_who(role)}; load a list of the states of all {own.ranks} ranks, or each rank's"
            " own state with as many ranks and workers as before, or a state between epochs"
        )
    if not own.in_order:
        raise SnapshotError(
            "the states were taken with in_order=False, so that their items are not the first of"
            " any order; go on with as many ranks and workers as before"
        )
    places = [RankPlace(snapshot.items, snapshot.cursors) for snapshot in moment]
    return regroup(datapipe, places, taken_with=own.workers, role=role)


def _is_begun(moment: Sequence[Snapshot], own: Snapshot) -> bool:
    """Whether anything of the epoch was handed out, on any rank."""
    return any(snapshot.items for snapshot in moment) or own.ahead > 0


def _has_same_counts(own: Snapshot, role: Role) -> bool:
    """Whether there are as many workers and ranks as there were."""
    return (own.workers, own.ranks) == (role.workers, role.ranks)


def _has_same_items(datapipe: Any, own: Snapshot, role: Role) -> bool:
    """Whether a loader with this role hands out the items that the state's loader did."""
    if (own.rank, own.ranks) != (role.rank, role.ranks):
        return False
    # Where ranks divide among their workers, too, other workers are other items.
    is_same = own.ranks == 1 or own.workers == role.workers
    return is_same or divides_alike(datapipe, own.workers, role.workers)


def _who(one: Snapshot | Role) -> str:
    return f"rank {one.rank} of {one.ranks} (with {one.workers} workers)"


def _check_complete(snapshots: Sequence[Snapshot]) -> None:
    if not snapshots:
        raise SnapshotError("a list of states has one for each rank of the run, got none")
    given, count = [snapshot.rank for snapshot in snapshots], snapshots[0].ranks
    if any(snapshot.ranks != count for snapshot in snapshots):
        counts = ", ".join(str(snapshot.ranks) for snapshot in snapshots)
        raise SnapshotError(f"the states are of runs with different numbers of ranks: {counts}")
    # There may be very many: a few are as good to say.
    missing = [rank for rank in range(min(count, len(given) + 8)) if rank not in given]
    if missing:
        raise SnapshotError(
            f"the list has no state of {ranks_in_words(missing)} of {count}; it takes those of all"
        )
    if len(given) > count:
        raise SnapshotError(f"the list has {len(given)} states of a run with {count} ranks")


def _check_together(snapshots: Sequence[Snapshot]) -> None:
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
    # Before anything was handed out, the ranks have not agreed on a seed yet.
    seed = f" with the seed {snapshot.epoch_seed}" if snapshot.items else ""
    return f"after {items} items of the epoch{seed}, {workers}"
