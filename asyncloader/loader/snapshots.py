"""Snapshots of one loader.

This file is about ``Snapshots``: it takes a loader's state apart and puts it together, and
knows what of it is the same every time, the graph.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import (
    Form,
    FormOf,
    check_cursors,
    form_of_pipe,
    has_own_state,
    no_cursor,
)
from asyncloader.datapipes.going_on.journal import settled
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import is_one_to_one
from asyncloader.datapipes.pipe.kinds import goes_by_clock, lives_with_loader
from asyncloader.errors import SnapshotError
from asyncloader.graph.cut import cut_graph, no_order_in_dealing
from asyncloader.graph.fingerprint import differences, fingerprint, read_without_fork
from asyncloader.graph.walk import breadth_first
from asyncloader.loader.moments import moment_of, own_of, start_for
from asyncloader.loader.seeding import EpochSeeds, EpochStart
from asyncloader.services.from_workers import from_workers_form
from asyncloader.services.regrouping import Role
from asyncloader.snapshot import Snapshot, SnapshotEncoder
from asyncloader.transport.code import dumps_code


class Snapshots:
    """Makes and reads the states of loaders of one graph."""

    def __init__(self, datapipe: Any) -> None:
        self._datapipe = datapipe

    def take(
        self,
        seeds: EpochSeeds,
        start: EpochStart | None,
        service_state: bytes | None,
        *,
        role: Role,
        has_order: bool,
        unnumbered: str,
        include_datapipe: bool,
    ) -> dict[str, Any]:
        """Return the state of a loader that goes on with ``start`` and then with ``seeds``.

        ``has_order`` is whether all of the epoch comes in the same order again, and ``unnumbered``
        the name of a pipe of which nobody knows what it has handed out, if there is one.
        """
        self._check_possible(role)
        if unnumbered and start is not None and start.position:
            raise SnapshotError(
                f"{unnumbered} hands out as results come, and no state says what it has handed out,"
                " as it was put into the graph by a reading service, or a function of one; put it"
                " there before the loader is made, or pass ordered=True"
            )
        snapshot = Snapshot(
            seed=seeds.seed,
            epoch=seeds.epoch,
            epoch_seed=None if start is None else start.seed,
            items=0 if start is None else start.position,
            workers=role.workers,
            in_order=role.in_order if start is None else start.is_in_order(role.in_order),
            rank=role.rank,
            ranks=role.ranks,
            ahead=0 if start is None else start.ahead,
            cursors=_settled(start, has_order),
            service_state=service_state,
            graph=self._pickled if include_datapipe else None,
        )
        return self._encoder.encode(snapshot)

    def read(self, state: Any, role: Role) -> tuple[EpochSeeds, EpochStart | None, bytes | None]:
        """Return what a state says, or the states of all ranks of a run.

        SnapshotError for one that is wrong, of another graph, or that a loader in this
        role cannot go on from.
        """
        moment = moment_of(state)
        self._check_possible(role)
        for snapshot in moment:
            self._check_graph(snapshot)
        own = own_of(moment, role)
        start = start_for(self._datapipe, moment, role)
        return EpochSeeds(own.seed, own.epoch), start, own.service_state

    def _check_graph(self, snapshot: Snapshot) -> None:
        different = differences(snapshot.fingerprint, self._fingerprint)
        if different:
            raise SnapshotError(f"the state is of another graph: {'; '.join(different)}")
        for number in snapshot.cursors:
            if number >= len(self._fingerprint):
                raise SnapshotError(
                    f"position.cursors has a pipe {number}, but the graph has only"
                    f" {len(self._fingerprint)} pipes"
                )
        form_of = self._forms(snapshot.workers, in_order=snapshot.in_order)
        check_cursors(snapshot.cursors, "position.cursors", form_of)
        self._check_reach(snapshot)

    def _check_reach(self, snapshot: Snapshot) -> None:
        """Raise SnapshotError if a pipe had yielded more items than were handed out."""
        pipes = breadth_first(self._datapipe)
        numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
        pipe, most, cursors = self._datapipe, snapshot.items, snapshot.cursors
        while is_one_to_one(pipe) and numbers.get(id(pipe)) not in cursors:
            pipe = pipe.source
        cursor = cursors.get(numbers.get(id(pipe), -1))
        if cursor is None:
            return
        # Of a part that ran in workers it is what the loader has taken of it.
        is_part = "workers" in cursor and "turns" in cursor
        yielded = cursor["taken"] if is_part else _yielded_at(pipe, cursor)
        if yielded > most:
            raise SnapshotError(
                f"position.items is {most}, but {stage_name(pipe)} had yielded {yielded} items by"
                " then"
            )

    def _forms(self, workers: int, *, in_order: bool) -> FormOf:
        """Return what says which form each cursor has that was taken with so many workers."""
        pipes = breadth_first(self._datapipe)

        def inside(number: int) -> Form:
            return form_of_pipe(pipes[number]) if 0 <= number < len(pipes) else no_cursor

        if not workers:
            return inside
        cut = cut_graph(self._datapipe)
        numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
        outlets = {}
        for part in cut.parts:
            is_dealt = any(inlet is cut.dispatch for inlet in part.inlets)
            outlets[numbers[id(part.end)]] = from_workers_form(
                workers,
                in_order=in_order,
                dispatch=numbers[id(cut.dispatch)] if is_dealt else None,
                inside=inside,
            )
        return lambda number: outlets[number] if number in outlets else inside(number)

    def _check_possible(self, role: Role) -> None:
        refusal = self._refusal
        if refusal is None and role.workers:
            refusal = self._dealing_refusal
        if refusal is not None:
            raise SnapshotError(refusal)

    @functools.cached_property
    def _dealing_refusal(self) -> str | None:
        return no_order_in_dealing(cut_graph(self._datapipe).dispatch)

    @functools.cached_property
    def _refusal(self) -> str | None:
        for pipe in breadth_first(self._datapipe):
            if lives_with_loader(pipe):
                return f"{stage_name(pipe)} answers to the present; it has no place to go back to"
            if goes_by_clock(pipe):
                return f"{stage_name(pipe)} goes by the clock, so what it yielded never comes again"
        for pipe in read_without_fork(self._datapipe):
            return (
                f"{stage_name(pipe)} is read several times, each in a pass of its own, so no"
                " place in it says how far the graph is; read it through fork()"
            )
        return None

    @functools.cached_property
    def _fingerprint(self) -> list[dict[str, Any]]:
        return fingerprint(self._datapipe)

    @functools.cached_property
    def _pickled(self) -> bytes:
        try:
            return dumps_code(self._datapipe)
        except Exception as error:
            raise SnapshotError(
                f"the graph cannot be pickled ({error}); take state_dict(include_datapipe=False)"
                " and give the same graph to the loader that goes on"
            ) from error

    @functools.cached_property
    def _encoder(self) -> SnapshotEncoder:
        return SnapshotEncoder(self._fingerprint)


def _yielded_at(pipe: Any, cursor: Cursor) -> int:
    # A source that goes on by its own state need be none of ours.
    yielded: int = cursor["yielded"] if has_own_state(pipe) else pipe.yielded_at(cursor)
    return yielded


def _settled(start: EpochStart | None, has_order: bool) -> Cursors:
    """Return the cursors of a place, to which nothing is added any more."""
    if start is None:
        return {}
    cursors: Cursors = start.cursors if has_order else settled(start.cursors)
    return cursors


def unpickled_graph(state: Any) -> Any:
    """Return the graph that travels in a state, which must come from a trusted place."""
    graph = moment_of(state)[0].graph
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
