"""Prompts, and what becomes of them.

This file is about ``Prompts``, what one pass over a rollout knows of those that were begun and are
not settled: their results, the versions of the policy that gave them, and in which batches they
are. And it is about ``Group``, which is one of them. How they are called for, says
``rollout_calls.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncloader.datapipes.recording import Joining, NumberedItem
from asyncloader.datapipes.running.cursor_forms import copied
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Pass, RunTree
from asyncloader.datapipes.running.run_place import present_home
from asyncloader.datapipes.running.traits import is_shuffler, waits
from asyncloader.datapipes.settled import Ledger, item_numbers
from asyncloader.errors import SnapshotError, StarvedError
from asyncloader.safe_error_text import repr_of

logger = logging.getLogger("asyncloader")

#: The result of a call that has none yet, and of one that was not begun.
NO_RESULT: Any = object()


class Group:
    """One prompt: the calls for it, and their results."""

    def __init__(self, item: Any, number: int, whole_number: int, order: int, size: int) -> None:
        #: What is handed on with the results: the numbered prompt, where it is recorded.
        self.item = item
        self.prompt = item.item if isinstance(item, NumberedItem) else item
        #: Which it is on this rank, and of those of all ranks together, which others are told.
        self.number = number
        self.whole_number = whole_number
        #: How many prompts were read before it.
        self.order = order
        self.members = [Member(self, index) for index in range(size)]
        #: How many of its members are not wanted any more, have their results, and are called for.
        self.lost = self.have_come = self.running = 0
        #: How many calls for one of them failed, at most.
        self.failed = 0
        #: How many calls had succeeded when one for it failed first, and when that was.
        self.failed_at: int | None = None
        self.failed_since = 0.0
        #: How many calls for it an earlier run had begun and not ended.
        self.cut_off = 0
        self.stale = 0
        self.is_late = False
        #: Whether nothing is done for it any more: it is finished, or left out.
        self.is_over = False
        self.is_handed_on = self.is_in_line = False
        self.error: BaseException | None = None
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> list[Member]:
        """Return the members that have their results."""
        return [each for each in self.members if each.result is not NO_RESULT]

    def begun_at(self) -> int:
        """Return the version of the oldest part of its results."""
        return min([each.begun_at or 0 for each in self.done()], default=0)

    def wants(self, member: Member) -> bool:
        """Whether a result of one of its members is still of use."""
        is_present = self.members[member.member] is member
        return is_present and not (self.is_over or member.is_lost)

    def begin_anew(self) -> None:
        """Forget the results, to be called for again."""
        before = self.members
        self.members = [Member(self, index) for index in range(len(before))]
        for member, former in zip(self.members, before, strict=True):
            member.attempt = former.attempt
        self.lost, self.have_come, self.is_late = 0, 0, False
        self.is_over = self.is_handed_on = False


class Member:
    """One of the calls for a prompt."""

    def __init__(self, group: Group, member: int) -> None:
        self.group = group
        #: What the user's function may be told.
        self.member = member
        self.attempt = 0
        self.partial: Any = None
        self.version = 0
        #: The version of the oldest part of its result, or of what is partial; None before.
        self.begun_at: int | None = None
        self.result: Any = NO_RESULT
        self.is_lost = False
        self.is_aborted = False
        #: Since when its call runs, by its loop's clock.
        self.since: float | None = None

    @property
    def number(self) -> int:
        """The prompt's number, on all ranks together."""
        return self.group.whole_number

    def __lt__(self, other: Member) -> bool:
        return (self.group.number, self.member) < (other.group.number, other.member)


class Prompts:
    """The prompts of one pass that were begun. What was settled before, the section's ledger knows.

    The ledger tells this of each number that is settled, and the trainer when it advances.
    """

    def __init__(self, pipe: Any, tree: RunTree) -> None:
        self.pipe = pipe
        self._tree = tree
        self._pipe_number = number_of(pipe)
        self._ledger: Ledger | None = None
        #: Those that are not settled, by their numbers.
        self.unsettled: dict[int, Group] = {}
        #: How many calls were begun, put back by ``Again``, and failed; how many prompts were too
        #: old for their batch; and how many were handed on.
        self.called = self.again = self.failed = self.stale = self.yielded = 0
        #: How many prompts were trained with a policy so many versions newer.
        self.lags: Counter[int] = Counter()
        #: What is to be done when one is settled, or in a batch.
        self.changed: Callable[[], None]
        # The batches that were made and not settled: how many prompts of each are not. And in which
        # batch a prompt is.
        self._batches: dict[int, int] = {}
        self._in_batch: dict[int, int] = {}
        self._made = 0
        # How many items were delivered when the policy was advanced last.
        self._delivered = 0
        if pipe.version is not None:
            pipe.version.tell(self)

    def version(self) -> int:
        """Return the policy's number."""
        version: int = 0 if self.pipe.version is None else self.pipe.version.number
        return version

    def whole_number(self, number: int) -> int:
        """Return which number a prompt has before the division among ranks."""
        return self._tree.whole_number(number)

    def begin(self, group: Group) -> None:
        """Note that a prompt is begun."""
        if isinstance(group.item, NumberedItem):
            if self._ledger is None:
                self._ledger = group.item.ledger
                self._ledger.watch(self)
            self.unsettled[group.number] = group

    def attempts(self, number: int) -> tuple[int, int]:
        """Return how many calls for a prompt failed, and how many were cut off."""
        return (0, 0) if self._ledger is None else self._ledger.attempts(number)

    def note_attempts(self, number: int, failed: int, cut_off: int) -> None:
        """Note the same."""
        if self._ledger is not None:
            self._ledger.note_attempts(number, failed, cut_off)

    def kept(self, group: Group) -> Sequence[Any] | None:
        """Return the version and the results that a state has of a prompt, if they are of use."""
        if self._ledger is None or self._pipe_number is None:
            return None
        kept = self._ledger.kept_results(group.number).get(self._pipe_number)
        if kept is not None and not self._is_of_group(kept):
            raise SnapshotError(
                "the state does not fit the graph: what it kept of item"
                f" {group.whole_number} are no results of {stage_name(self.pipe)}, but"
                f" {repr_of(kept)}"
            )
        if kept is not None and self.pipe.version is not None and kept[0] > self.version():
            raise SnapshotError(
                f"the state has results that version {kept[0]} of the policy gave, and it is now"
                f" version {self.version()}: save version.number with the state, and begin with"
                f" version=Version(that number)"
            )
        if kept is not None and self._would_be_late(kept[0]):
            return None
        return kept

    def _would_be_late(self, begun: int) -> bool:
        """Whether a result of a version may be trained too late, after all that was begun before.

        So it may be where another number of ranks goes on with what was kept: fewer of them have
        more to train each, and those that were ahead of others divide what is left with these.
        """
        pipe = self.pipe
        if pipe.max_lag is None or pipe.judges:
            return False
        before = len(self.unsettled) - 1 + pipe.window - 1
        return bool(self.version() + before // pipe.per_step - begun > pipe.max_lag)

    def _is_of_group(self, kept: Any) -> bool:
        """Whether what a state has are a version, and as many results as a group may have."""
        if not (isinstance(kept, list) and len(kept) == 2):
            return False
        version, results = kept
        is_version = type(version) is int and version >= 0
        most = self.pipe.group or 1
        return is_version and isinstance(results, list) and 1 <= len(results) <= most

    def keep(self, group: Group) -> None:
        """Keep the results of a prompt for a state, if it is to have them."""
        if self.pipe.keep_results and self._ledger is not None and self._pipe_number is not None:
            # What follows may change its own.
            results = copied([each.result for each in group.done()])
            kept = [group.begun_at(), results]
            self._ledger.keep(self._pipe_number, group.number, kept)

    def leave_out(self, group: Group, reason: str) -> None:
        """Settle a prompt of which nothing comes."""
        if isinstance(group.item, NumberedItem):
            group.item.leave_out(reason)

    def handed_on(self, group: Group) -> Any:
        """Return what is yielded for a prompt."""
        results = [each.result for each in group.done()]
        result = results[0] if self.pipe.group is None else results
        self.yielded += 1
        if isinstance(group.item, NumberedItem):
            return group.item.with_item(result)
        return result

    # What the ledger and the trainer say --------------------------------------------------

    def settled(self, number: int, *, is_left_out: bool) -> None:
        group, ledger = self.unsettled.pop(number, None), self._ledger
        if group is None:
            return
        if not is_left_out:
            # The policy was advanced after that, and before the ack.
            was_advanced = ledger is not None and ledger.items_settled <= self._delivered
            trained_at = self.version() - was_advanced
            self._note_lag(number, max(0, trained_at - group.begun_at()))
        if (batch := self._in_batch.pop(number, None)) is not None:
            self._batches[batch] -= 1
            if not self._batches[batch]:
                del self._batches[batch]
        self.changed()

    def _note_lag(self, number: int, lag: int) -> None:
        pipe = self.pipe
        if pipe.max_lag is not None and max(self.lags, default=0) <= pipe.max_lag < lag:
            logger.warning(
                "%s has trained prompt %d by a policy %d versions newer than the one that answered."
                " max_lag=%d holds only where each version trains at least per_step=%d prompts, in"
                " the order in which they come: choose as per_step the prompts of your smallest"
                " step",
                stage_name(pipe),
                self.whole_number(number),
                lag,
                pipe.max_lag,
                pipe.per_step,
            )
        self.lags[lag] += 1

    def advanced(self) -> None:
        """Note that the policy was advanced."""
        self._delivered = self._tree.delivered_items()
        # What is settled by its delivery was trained before.
        self.catch_up()

    def catch_up(self) -> None:
        """Settle what the loader has settled."""
        if self._ledger is not None:
            self._ledger.catch_up()

    def check_ack(self, items: int) -> None:
        if self.pipe.max_lag is not None and items > self._delivered:
            raise RuntimeError(
                f"the policy was not advanced since these items were delivered (it is version"
                f" {self.version()}), and {stage_name(self.pipe)} would begin new prompts with it:"
                " train, send the new weights, call version.advance(), and then ack()"
            )

    # What is made of the results, where those come as they are ready -----------------------

    def may_make(self) -> bool:
        """Whether one more batch may be made before one of the others is trained."""
        return bool(len(self._batches) <= self.pipe.max_lag)

    def is_stale(self, item: NumberedItem) -> bool:
        """Whether an item of the next batch would be too old when that is trained."""
        begun = self.of(item).begun_at()
        return bool(self.version() + len(self._batches) - begun > self.pipe.max_lag)

    def note_made(self, items: list[NumberedItem]) -> None:
        """Note that a batch was made of these items."""
        self._made += 1
        self._batches[self._made] = len(items)
        for item in items:
            self._in_batch[_number_of(item)] = self._made
        self.changed()

    def in_no_batch(self) -> int:
        """Return how many of the unsettled ones are in no batch."""
        return len(self.unsettled) - len(self._in_batch)

    def is_all_made(self) -> bool:
        """Whether no prompt may come back from those who read the results."""
        return not (self.pipe.judges and self.in_no_batch())

    def of(self, item: NumberedItem) -> Group:
        """Return the prompt of a result."""
        return self.unsettled[_number_of(item)]

    # Whether anybody can go on ------------------------------------------------------------

    def is_all_held(self) -> bool:
        """Whether nothing has left the section that is not settled."""
        return self._ledger is not None and self._ledger.is_nothing_on_the_way()

    def is_everybody_waiting(self) -> bool:
        """Whether no pipe behind this has anything to do."""
        home = present_home()
        if home is not None and not home.is_waiting():
            return False
        for each in self._behind():
            is_at_work = each.fullness()[0] > 0 if each.runs_ahead else waits(each.pipe)
            if is_at_work:
                return False
        return True

    def _behind(self) -> Iterator[Pass[Any]]:
        tree = self._tree
        for pipe in tree.pipes[: tree.pipes.index(self.pipe)]:
            begun = tree.latest_pass(pipe)
            if begun is not None and begun.pipe is not self.pipe:
                yield begun

    def starved(self) -> StarvedError:
        """Return the error that says who holds the prompts that are begun."""
        pipes = [each.pipe for each in self._behind()]
        holding = [each.source for each in pipes if isinstance(each, Joining)]
        holding += filter(is_shuffler, pipes)
        who = " and ".join(map(stage_name, holding)) or "a pipe behind it"
        return StarvedError(
            f"{stage_name(self.pipe)} may begin no more prompts: {len(self.unsettled)} are begun,"
            f" as many as max_lag={self.pipe.max_lag} and per_step={self.pipe.per_step} allow, and"
            f" {who} waits for more of them. Let it hold fewer, or raise per_step or max_lag"
        )


def _number_of(item: NumberedItem) -> int:
    (number,) = item_numbers(item.key)
    return number
