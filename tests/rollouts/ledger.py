"""What is known outside of the loaders of a program that uses ``rollout``.

This file is about ``Ledger``, of a line of states, and ``RankLedger``, of one rank in a run: they
are told of every call, every answer and every item that was acknowledged, and note what is not as
promised.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from asyncloader import Version
from asyncloader.datapipes.running.run_place import GRACE_SECONDS
from tests.recorded.lines import settled_in
from tests.rollouts.plan import Plan

#: What the policy answers, as plain data: the prompt's number, the member of its group, the version
#: of the oldest part, and how many answers there were before.
Answer = dict[str, int]


#: Where all that is left has failed, and nothing else can succeed, it is given up after so long.
PATIENCE = 60.0


@dataclass(frozen=True)
class Save:
    """What a program has saved: the state of each rank's loader, and what goes with them."""

    states: tuple[dict[str, Any], ...] = ()
    trained: tuple[int, ...] = ()
    filtered: frozenset[int] = frozenset()
    left_out: int = 0
    version: int = 0
    #: How often calls for prompts had failed: the most of the members of each.
    failed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Noted:
    """A rank's state, and what is known of that rank at this moment."""

    state: dict[str, Any]
    failed: dict[int, int]


@dataclass(frozen=True)
class Failed:
    """A call that failed: when, and how many had succeeded by then."""

    member: int
    at: float
    succeeded: int


@dataclass
class Ledger:
    """What has happened along a line of states, and what was wrong about it."""

    plan: Plan
    #: How many numbers there are.
    count: int
    wrong: list[str] = field(default_factory=list)
    #: Calls that failed along the line, also in runs that nothing was resumed from, by prompt.
    failed: Counter[int] = field(default_factory=Counter)
    #: How often the program has resumed, which counts as a failure of the calls that ran before.
    resumed: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        self.begin_run(Save())

    def begin_run(self, save: Save) -> None:
        """Note that a program begins, or resumes."""
        self.looks = True
        self.resumed += bool(save.states)
        self.save = save
        self.trained = list(save.trained)
        #: Numbers that a filter has left out.
        self.filtered = set(save.filtered)
        self.settled = {each for state in save.states for each in settled_by(state)}
        #: Of which version the results are that the states have, by prompt.
        self.kept = {n: old for state in save.states for n, old in kept_in(state).items()}
        #: What each rank of this run knows.
        self.ranks: list[RankLedger] = []

    def end_run(self) -> None:
        """Note that the program has ended: what is still done in this process does not count."""
        if self.looks:
            for rank in self.ranks:
                rank.look_at_order()
            self.looks = False

    def say(self, what: str) -> None:
        """Note something that is wrong."""
        if self.looks and len(self.wrong) < 20:
            self.wrong.append(what)

    def trained_now(self) -> set[int]:
        """Return the numbers that were trained in this run."""
        return set(self.trained[len(self.save.trained) :])

    def saved(self, noted: Sequence[Noted], version: int) -> Save | None:
        """Return what the program saves now, or None if there is nothing to resume."""
        states = [each.state for each in noted]
        if any(map(is_of_next_epoch, states)):
            # A rank that reads ahead may have seen the end before another did.
            left_out = sum(rank.left_out().total() for rank in self.ranks)
            if not self.plan.ranks and len(self.trained) + left_out != self.count:
                self.say(f"a state says the epoch is over: {len(self.trained)} are trained")
            return None
        settled = {each for state in states for each in settled_by(state)}
        if missing := set(self.trained) - settled:
            self.say(f"a state does not know that {sorted(missing)} were acknowledged")
        return Save(
            tuple(states),
            tuple(self.trained),
            frozenset(self.filtered & settled),
            sum(map(left_out_in, states)),
            version,
            self.save.failed | {number: n for each in noted for number, n in each.failed.items()},
        )

    def end(self, left_out: Counter[str]) -> None:
        """Note that a line has come to its end, and that so many were left out."""
        count = self.count
        twice = [each for each, times in Counter(self.trained).items() if times > 1]
        if twice:
            self.say(f"acknowledged twice: {twice}")
        if set(self.trained) - set(range(count)):
            self.say(f"of {count} numbers there are {max(self.trained)}")
        self._look_at_all(left_out)
        if left_out["filter"] != len(self.filtered):
            self.say(f"{left_out['filter']} left out by a filter that left out {self.filtered}")
        if left_out.keys() <= {"filter", "attempts", "timeout"}:
            rest = set(range(count)) - self.filtered - set(self.trained) - self._unread()
            least = (self.plan.attempts or 0) - self.resumed
            for rank in self.ranks:
                rank.look_at_given_up(rest)
            if early := {each: self.failed[each] for each in rest if self.failed[each] < least}:
                self.say(f"given up too early: {early}")

    def _look_at_all(self, left_out: Counter[str]) -> None:
        """Note if some were neither trained nor left out."""
        told = f"{len(self.trained)} trained and {dict(left_out)} left out of {self.count}"
        settled = len(self.trained) + left_out.total()
        if not self.plan.ranks:
            if settled != self.count:
                self.say(told)
            return
        # Ranks have as many items as each other, so what one has more is not read.
        begun = {number for rank in self.ranks for number in rank.begun}
        left_out_now = left_out.total() - self.save.left_out
        if settled > self.count or len(begun - set(self.trained)) > left_out_now:
            self.say(f"{told}, and {len(begun)} were begun")
        unread = min(len(self._unread(rank)) for rank in self.ranks)
        if unread > left_out["attempts"]:
            self.say(f"{told}, and no rank has read its share: {unread} are missing")

    def _unread(self, of: RankLedger | None = None) -> set[int]:
        """Return what ranks have not read, or left out without a call; all have read the rest."""
        if not self.plan.ranks:
            return set()
        known = {number for rank in self.ranks for number in rank.begun}
        known |= self.settled | self.kept.keys() | set(self.trained) | self.filtered
        share = range(self.count) if of is None else range(of.rank, self.count, len(self.ranks))
        return set(share) - known


class RankLedger:
    """What happens on one rank in one run. A program without ranks is one of one rank.

    ``left_out()`` is how many its loader has left out, and ``now()`` the time.
    """

    def __init__(
        self,
        line: Ledger,
        rank: int,
        version: Version,
        left_out: Callable[[], Counter[str]],
        now: Callable[[], float],
    ) -> None:
        self.line = line
        self.plan = line.plan
        self.rank = rank
        self.left_out = left_out
        self._version = version
        self._now = now
        #: The calls that run, by number and member.
        self.running: set[tuple[int, int]] = set()
        #: The prompts that were called for, and since when.
        self.begun: dict[int, float] = {}
        # Those that were told to end and go on for a while, and since when.
        self._told_to_end: dict[tuple[int, int], float] = {}
        self._answered: set[tuple[int, int]] = set()
        # Calls for prompts that have their answers, which only tell whether any call succeeds.
        self._asking: set[tuple[int, int]] = set()
        # When calls failed, and how many had succeeded by then.
        self._succeeded = 0
        self._failures: dict[int, list[Failed]] = {}
        # How many have failed since one succeeded, and the most that this was.
        self._in_a_row = self._most_in_a_row = 0
        self._handed_on: list[int] = []
        # What the next call may be given as its partial result.
        self._partials: dict[tuple[int, int], list[Any]] = {}
        self._is_paused = False
        line.ranks.append(self)

    @property
    def looks(self) -> bool:
        """Whether the run goes on."""
        return self.line.looks

    def say(self, what: str) -> None:
        """Note something that is wrong."""
        self.line.say(f"rank {self.rank}: {what}" if self.plan.ranks else what)

    def _left_out_before(self) -> int:
        """Return how many its loader counts that were left out in runs before."""
        states = self.line.save.states
        if len(states) == len(self.line.ranks):
            return left_out_in(states[self.rank])
        # The first of other ranks counts for all.
        return 0 if self.rank else self.line.save.left_out

    def _may_ask_whether_any_succeeds(self) -> bool:
        """Whether a prompt had its attempts, and no call is wanted for one that has not failed."""
        most, failed = self.plan.attempts, self.line.failed
        is_given_up = most is not None and any(failed[number] >= most for number in self.begun)
        wanted = self.running - self._told_to_end.keys()
        return is_given_up and all(failed[number] for number, _ in wanted)

    def look_at_pause(self, in_flight: str) -> None:
        """Note if calls run in a pause that has waited for them."""
        # A pass that ends gives up calls that do not end for so long.
        given_up = self._now() - GRACE_SECONDS + 0.001
        late = {each for each, since in self._told_to_end.items() if since <= given_up}
        if running := self.running - late:
            self.say(f"in a pause by {in_flight} calls run: {running}")

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Know that no call may begin in here."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    # Calls ----------------------------------------------------------------------------------

    def begin_call(
        self, number: int, member: int, version: int, attempt: int, partial: Any
    ) -> None:
        """Note that the policy is called."""
        if not self.looks:
            return
        plan, line, call = self.plan, self.line, f"the call for {number}/{member}"
        line.calls += 1
        if number in line.settled or number in line.filtered or number in line.trained:
            self.say(f"{call} is for a prompt that is settled")
        if not self._may_be_stale:
            is_answered = (number, member) in self._answered or self._is_kept(number)
            if is_answered and not self._may_ask_whether_any_succeeds():
                self.say(f"{call} is for one that is answered")
            if is_answered:
                self._asking.add((number, member))
            before = line.save.failed.get(number, 0)
            if attempt < before and not is_answered and plan.more["on_error"] == "again":
                self.say(f"{call} is attempt {attempt}: {before} were saved")
        if (number, member) in self.running:
            self.say(f"{call} begins while another runs")
        self.running.add((number, member))
        if len(self.running) > plan.concurrency:
            self.say(f"{len(self.running)} calls run, and concurrency is {plan.concurrency}")
        if self._is_paused:
            self.say(f"{call} begins in a pause")
        if version != self._version.number:
            self.say(f"{call} is told version {version}, and it is {self._version.number}")
        if attempt > (failed := line.failed[number]):
            self.say(f"{call} is attempt {attempt}, and {failed} have failed")
        if (number, member) in self._asking:
            return
        partials = self._partials.pop((number, member), [None])
        # What is too old is begun anew.
        if partial not in partials and (partial is not None or not self._may_be_stale):
            self.say(f"{call} goes on with {partial}, and not with {partials}")
        if number not in self.begun:
            self.begun[number] = self._now()
            self._look_at_capacity(call)
            self._look_at_most_ahead(call)

    def _is_kept(self, number: int) -> bool:
        """Whether the states have results of a prompt that are of use."""
        kept, line = self.line.kept.get(number), self.line
        if kept is None:
            return False
        # Another number of ranks may train them later than those that have kept them would.
        is_late = len(line.ranks) != len(line.save.states) and kept < self._version.number
        return self.plan.max_lag is None or not is_late

    def tell_to_end(self, number: int, member: int) -> None:
        """Note that a call is told to end, and does not yet."""
        self._told_to_end[number, member] = self._now()

    def end_call(self, number: int, member: int, partials: list[Any]) -> None:
        """Note that it ended with no answer, and what it may leave to the next one."""
        if self.looks:
            self.running.discard((number, member))
            self._told_to_end.pop((number, member), None)
            if (number, member) not in self._asking:
                self._partials[number, member] = partials
            self._asking.discard((number, member))

    def fail_call(self, number: int, member: int) -> None:
        """Note that it failed."""
        is_asking = (number, member) in self._asking
        self.end_call(number, member, [None])
        # When the error of one is raised, what still fails counts for nothing.
        is_over = self.plan.more["on_error"] == "again" and self.may_raise()
        self._in_a_row += is_asking or not self._has_enough(number)
        self._most_in_a_row = max(self._most_in_a_row, self._in_a_row)
        if self.looks and not is_asking:
            self.line.failed[number] += 1
        if self.looks and not (is_asking or is_over or self._has_enough(number)):
            failed = Failed(member, self._now(), self._succeeded)
            self._failures.setdefault(number, []).append(failed)

    def _has_enough(self, number: int) -> bool:
        """Whether a group has come so late that what it has is enough, and no failure counts."""
        least = self.plan.more.get("min_group")
        # Where results may be stale, the prompt may have been begun anew since.
        if least is None or number not in self.begun or self._may_be_stale:
            return False
        late = self.begun[number] + self.plan.more["group_timeout"] - 0.001
        return self._now() >= late and sum(n == number for n, _ in self._answered) >= least

    def answer_call(self, number: int, member: int) -> None:
        """Note that it gave an answer."""
        self.end_call(number, member, [None])
        if self.looks:
            self._succeeded += 1
            self._in_a_row = 0
            self._answered.add((number, member))

    def may_raise(self) -> bool:
        """Whether so many calls have failed that the error of one may be raised."""
        least = 1 if self.plan.more["on_error"] == "raise" else self.plan.more["max_failures"]
        return bool(self._most_in_a_row >= least)

    @property
    def _may_be_stale(self) -> bool:
        return self.plan.max_lag is not None and self.plan.order == "ready"

    def _look_at_capacity(self, call: str) -> None:
        capacity = self.plan.capacity
        if capacity is None or len(self.begun) <= capacity:
            return
        left_out = self.left_out().total() - self._left_out_before()
        unsettled = len(self.begun.keys() - self.line.trained_now()) - left_out
        if unsettled > capacity:
            self.say(f"{call} makes {unsettled} that are not settled, and {capacity} may be")

    def _look_at_most_ahead(self, call: str) -> None:
        """Note if more prompts are begun after one whose call runs than may be."""
        most = self.plan.more["most_ahead"]
        wanted = self.running - self._asking - self._told_to_end.keys()
        waiting = {number for number, _ in wanted}.difference(self._handed_on)
        if len(self.begun) > most and waiting:
            oldest = min(waiting)
            if (ahead := sum(each > oldest for each in self.begun)) >= most:
                self.say(f"{call} is {ahead} ahead of {oldest}, and {most} may be")

    # Answers --------------------------------------------------------------------------------

    def hand_on(self, answers: list[Answer]) -> None:
        """Note that the answers for a prompt come out of the rollout."""
        if not self.looks:
            return
        numbers, members = (
            [each["number"] for each in answers],
            [each["member"] for each in answers],
        )
        if len(set(numbers)) != 1 or members != sorted(set(members)):
            self.say(f"a group has the answers {answers}")
        size = self.plan.group or 1
        if not self.plan.more.get("min_group", size) <= len(members) <= size:
            self.say(f"a group of {size} has {len(members)} answers")
        self._handed_on.append(numbers[0])

    def leave_out(self, number: int) -> None:
        """Note that the program's filter says no to an answer."""
        if self.looks:
            self.line.filtered.add(number)

    def train(self, answers: Iterable[Answer]) -> None:
        """Note that answers are trained by the present policy."""
        most = self.plan.max_lag
        for each in answers:
            if most is not None and (lag := self._version.number - each["version"]) > most:
                self.say(f"{each} is trained {lag} versions later, and max_lag is {most}")

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """Note that an item was acknowledged."""
        if self.looks:
            self.line.trained += numbers

    # States -----------------------------------------------------------------------------------

    def note(self, state: dict[str, Any]) -> Noted:
        """Return the state of the rank's loader, with what is known now."""
        keeps = self.plan.more["keep_results"] and not self._may_be_stale
        known = settled_by(state) | kept_in(state).keys()
        if keeps and not is_of_next_epoch(state) and (lost := set(self._handed_on) - known):
            self.say(f"a state does not keep the answers for {sorted(lost)}")
        return Noted(state, self._failed_by_now())

    def _failed_by_now(self) -> dict[int, int]:
        found = {}
        for number, failures in self._failures.items():
            # What fails at this moment the loader learns of a moment later.
            members = Counter(each.member for each in failures if each.at < self._now())
            before = self.line.save.failed.get(number, 0)
            found[number] = before + max(members.values(), default=0)
        return found

    def look_at_given_up(self, numbers: set[int]) -> None:
        """Note if one of these, which were left out, was given up too early."""
        # Those of which nothing was called in this run were given up before.
        for number in numbers & self._failures.keys():
            first, last = self._failures[number][0], self._failures[number][-1]
            is_at_end = last.at - first.at >= PATIENCE
            if first.succeeded == last.succeeded and not is_at_end:
                self.say(f"{number} was given up, and nothing had succeeded since it failed first")

    def look_at_order(self) -> None:
        """Note if prompts were handed on out of order."""
        most = self.plan.window - 1
        if self.plan.order == "ready" or (self.plan.order is None and self.plan.max_lag is None):
            return
        for number, late in displacements(self._handed_on):
            if late > most:
                self.say(f"{number} comes before {late} older ones, and {most} may be")


def displacements(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield each number, and how many smaller ones come after it."""
    for at, number in enumerate(numbers):
        yield number, sum(later < number for later in numbers[at + 1 :])


def is_of_next_epoch(state: dict[str, Any]) -> bool:
    """Whether a state was taken after the end of an epoch."""
    randomness = state["randomness_state"]
    return randomness["epoch"] > 0 and randomness["epoch_seed"] is None


def settled_by(state: dict[str, Any]) -> set[int]:
    """Return the numbers that the state of a rank says are settled."""
    return {whole_number(state, number) for number in settled_in(state)}


def kept_in(state: dict[str, Any]) -> dict[int, int]:
    """Return the numbers whose results a state has, and of which version these are."""
    cursors = json.loads(state["position"]["cursors"]).values()
    kept = [each for cursor in cursors for each in cursor.get("kept") or ()]
    return {whole_number(state, number): version for _, number, (version, _) in kept}


def whole_number(state: dict[str, Any], number: int) -> int:
    """Return which number of all ranks a number in the state of a rank is."""
    rank, ranks = state["position"]["rank"], state["position"]["ranks"]
    return int(rank + ranks * number)


def left_out_in(state: dict[str, Any]) -> int:
    """Return how many numbers a state says were left out."""
    cursors = json.loads(state["position"]["cursors"]).values()
    return sum(count for cursor in cursors for _, count in cursor.get("left_out", ()))
