"""Whether the world would see it: ``python -m tests.rollouts.mutants``.

Each mutant breaks one rule of the implementation. Random programs are played with it until one of
them is wrong, or hangs, or ends with an error that it should not have.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from asyncloader.datapipes.admission import Admission, Load
from asyncloader.datapipes.prompts import Group, Member, Prompts
from asyncloader.datapipes.recording import NumberedItem, NumberingPass
from asyncloader.datapipes.rollout_calls import Calls, Gate
from asyncloader.datapipes.settled import Ledger
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.places.elastic import RankOrder
from tests.rollouts.world import Line

Broken = Callable[[], AbstractContextManager[Any]]


def instead(of: Any, name: str, function: Any) -> Broken:
    """Return what puts a function in the place of another."""
    return lambda: patch.object(of, name, function)


def around(of: Any, name: str, wrap: Callable[[Callable[..., Any]], Any]) -> Broken:
    """Return what puts a function around another."""
    return lambda: patch.object(of, name, wrap(getattr(of, name)))


def one_more(admission: Admission, load: Load) -> bool:
    """Be used up one prompt too late."""
    return admission.capacity is not None and load.unsettled > admission.capacity


def without_a_window(of: Callable[..., Admission]) -> Any:
    """Forget that items may be out of order."""
    return classmethod(lambda cls, **settings: of(**(settings | {"window": 1})))


def without_a_wake(prompts: Prompts, number: int, **_: Any) -> None:
    """Settle a number and wake nobody."""
    prompts.unsettled.pop(number, None)


def put_back_as_failed(put_back: Callable[[Calls, Member], None]) -> Any:
    """Count a put-back as an attempt."""

    def put(calls: Calls, member: Member) -> None:
        member.attempt += 1
        put_back(calls, member)

    return put


def put_back_as_new(put_back: Callable[[Calls, Member], None]) -> Any:
    """Forget how old a partial result is."""

    def put(calls: Calls, member: Member) -> None:
        put_back(calls, member)
        member.begun_at = None

    return put


def put_back_without_its_partial(put_back: Callable[[Calls, Member], None]) -> Any:
    """Forget the partial result."""

    def put(calls: Calls, member: Member) -> None:
        member.partial = None
        put_back(calls, member)

    return put


def aborted_at_once(take: Callable[..., None]) -> Any:
    """Take every call for put back that was to be cancelled, also if it gave a result."""

    def taken(calls: Calls, member: Member, task: Any, is_aborted: bool) -> None:
        if is_aborted:
            calls._put_back(member)
        else:
            take(calls, member, task, is_aborted)

    return taken


def given_up_anyway(calls: Calls, member: Member) -> bool:
    """Give up a prompt although it may be the server that is at fault."""
    most = calls.pipe.attempts
    return most is not None and member.attempt >= most


def given_up_too_early(has_had: Callable[..., bool]) -> Any:
    """Give up one failure before."""

    def given_up(calls: Calls, member: Member) -> bool:
        most = calls.pipe.attempts
        return has_had(calls, member) or (most is not None and member.attempt == most - 1 > 0)

    return given_up


def counted_as_no_end_of_a_row(calls: Calls) -> None:
    """Count a success, and go on to count failures as if there had been none."""
    calls._succeeded += 1


def opened_silently(gate: Gate) -> None:
    """Open a gate and tell no call."""
    gate._shut -= 1


def held_back_at_once(hold_back: Callable[..., Any]) -> Any:
    """Say at once that calls have ended for which a pause should wait."""
    return lambda calls, in_flight: hold_back(calls, "keep")


def as_young_as_now(kept: Callable[..., Any]) -> Any:
    """Take kept results for those of the present policy."""

    def found(prompts: Prompts, group: Group) -> Any:
        own = kept(prompts, group)
        return own and (prompts.version(), own[1])

    return found


def judged_when_handed_on(prompts: Prompts, item: NumberedItem) -> bool:
    """Forget the batches that will be trained before."""
    begun = prompts.of(item).begun_at()
    return bool(prompts.version() - begun > prompts.pipe.max_lag)


def out_of_order(has_something: Callable[[Calls], bool]) -> Any:
    """Hand on what is one further out of order than it may be."""

    def has(calls: Calls) -> bool:
        return has_something(calls) or (
            bool(calls._finished) and calls._finished[0][0] - calls._oldest() == calls.pipe.window
        )

    return has


def one_short(look_at: Callable[[Calls, Group], None]) -> Any:
    """Finish a group one member too early."""

    def looked(calls: Calls, group: Group) -> None:
        if len(group.members) > 1 and len(group.done()) == len(group.members) - 1:
            calls._finish(group)
        else:
            look_at(calls, group)

    return looked


def at_the_read_head(place: Callable[[NumberingPass], Any]) -> Any:
    """Save where the source was read, and not where the frontier is."""
    return lambda numbering: place(numbering) | numbering.source.place(numbering._next)


def without_most_ahead(of: Callable[..., Admission]) -> Any:
    """Forget how far an old prompt may fall behind."""
    return classmethod(lambda cls, **settings: of(**(settings | {"most_ahead": 10**6})))


def never(*_: Any) -> bool:
    """Say no."""
    return False


def nothing(*_: Any) -> None:
    """Do nothing."""


def of_the_whole(share_of: Callable[..., Any]) -> Any:
    """Take what all ranks have settled for what this one has."""
    return lambda order, whole: share_of(RankOrder(0, 1, order.block), whole)


MUTANTS: dict[str, Broken] = {
    "settled at delivery": instead(ItemBuffer, "settled", property(lambda buffer: buffer.passed)),
    "the source's place is the read head": around(NumberingPass, "place", at_the_read_head),
    "one prompt more than may be begun": instead(Admission, "is_used_up", one_more),
    "no capacity": instead(Admission, "is_used_up", never),
    "the capacity forgets the window": around(Admission, "of", without_a_window),
    "an old prompt falls behind without an end": around(Admission, "of", without_most_ahead),
    "nobody is woken after ack": instead(Prompts, "settled", without_a_wake),
    "a put-back prompt is lost": instead(Calls, "_put_back", nothing),
    "a put-back counts as an attempt": around(Calls, "_put_back", put_back_as_failed),
    "a partial result is lost": around(Calls, "_put_back", put_back_without_its_partial),
    "a partial result is as young as its next call": around(Calls, "_put_back", put_back_as_new),
    "an aborted call's result is thrown away": around(Calls, "_take_outcome", aborted_at_once),
    "calls begin in a pause": instead(Gate, "is_shut", property(never)),
    "nobody is woken after a pause": instead(Gate, "open", opened_silently),
    "a pause does not wait for calls": around(Calls, "hold_back", held_back_at_once),
    "stale is judged when an item is handed on": instead(
        Prompts, "is_stale", judged_when_handed_on
    ),
    "nothing is stale": instead(Prompts, "is_stale", never),
    "one further out of order": around(Calls, "has_something", out_of_order),
    "a group is finished one short": around(Calls, "_look_at", one_short),
    "prompts are given up while the server is away": instead(
        Calls, "_has_had_its_attempts", given_up_anyway
    ),
    "prompts are given up one failure too early": around(
        Calls, "_has_had_its_attempts", given_up_too_early
    ),
    "failures are in a row whatever succeeds between": instead(
        Calls, "_note_success", counted_as_no_end_of_a_row
    ),
    "a state forgets attempts": instead(Ledger, "attempts", lambda ledger, number: (0, 0)),
    "a state forgets kept results": instead(Prompts, "kept", nothing),
    "results are not kept": instead(Prompts, "keep", nothing),
    "kept results are as young as the policy": around(Prompts, "kept", as_young_as_now),
    "a prompt is told by its number on its rank": instead(
        Prompts, "whole_number", lambda prompts, number: number
    ),
    "what ranks have settled is not united": around(RankOrder, "share_of", of_the_whole),
    "nobody says who starves": instead(Calls, "_may_be_starved", never),
}

#: From which program on a mutant is looked for that the first hundred do not show.
FIRST = {
    "the source's place is the read head": 114,
    "kept results are as young as the policy": 575,
}


def caught(broken: Broken, seeds: range) -> tuple[int, int, str] | None:
    """Return after how many programs and runs a mutant is caught, and by what, or None."""
    runs = 0
    for seed in seeds:
        line = Line(seed)
        with broken():
            try:
                line.play()
            except Exception as error:  # noqa: BLE001 - a mutant may end in any way
                return seed - seeds.start + 1, runs + line.runs + 1, repr(error)
        runs += line.runs
        for each in line.wrong():
            return seed - seeds.start + 1, runs, each
    return None


def main() -> int:
    """Print which mutants are caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=800, help="how many programs for each")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--only", default="", help="the mutants with this in their names")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    missed = 0
    for name, broken in MUTANTS.items():
        if given.only in name:
            found = caught(broken, range(given.first, given.first + given.count))
            missed += found is None
            told = "NOT CAUGHT"
            if found is not None:
                programs, runs, what = found
                told = f"caught after {programs} programs, {runs} runs: {what[:90]}"
            print(f"{name}: {told}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
