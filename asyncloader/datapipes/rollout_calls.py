"""The calls of a rollout.

This file is about ``Calls``, all that one pass over a rollout has on its hands: which prompts were
begun, which of their calls run, wait or rest, and which are finished and may be handed on. And it
is about the ``Gate``, by which a trainer lets no call begin.

    prompts ──hold──▶ Group: a call for each member ──▶ finished, in the line ──▶ a consumer
                        ▲ waiting, to be called for │ put back, or failed
                        └────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import heapq
import logging
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from time import perf_counter
from typing import Any, Literal
from weakref import WeakSet

from asyncloader.datapipes.admission import Again, Load
from asyncloader.datapipes.attempts import MOST_SECONDS
from asyncloader.datapipes.prompts import NO_RESULT, Group, Member, Prompts
from asyncloader.datapipes.recording import NumberedItem
from asyncloader.datapipes.running.conveyor import RunningAhead
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.watch.under_way import UnderWay, of_task
from asyncloader.datapipes.settled import Reason, item_numbers
from asyncloader.datapipes.tolerance import Failure, failure_of
from asyncloader.runtime import Exit, begin_task, released, running_loop
from asyncloader.safe_error_text import note
from asyncloader.waiting import LoopWaiter, call_soon

logger = logging.getLogger("asyncloader")

InFlight = Literal["wait", "keep", "abort"]

#: If a pause waits so long for calls, the log names one.
_PAUSE_SECONDS = 60.0

#: So many calls are begun in one turn of the loop, as others on it have to have theirs.
_AT_ONCE = 64

#: If nothing can go on for so long, an error says who holds what is missing.
_STARVED_SECONDS = 1.0

#: Where no other prompt is left to tell whether the server or a prompt is at fault, calls for it
#: are made for so long.
_PATIENCE_SECONDS = 60.0

#: A call that has failed so often is told of where no other succeeds, if ``attempts`` says nothing.
_TOLD_AFTER = 3

#: Its own generator: waits must not change what the user's code draws.
_jitter = random.SystemRandom()


class Gate:
    """Lets the calls of a loader's rollout begin, or not."""

    def __init__(self) -> None:
        self._shut = 0
        self._opened = -math.inf
        self._lock = threading.Lock()
        self._calls: WeakSet[Calls] = WeakSet()

    @property
    def is_shut(self) -> bool:
        """Whether no call may begin."""
        return self._shut > 0

    def open_for(self) -> float:
        """Return for how many seconds it has been open; infinite where it was never shut."""
        return 0.0 if self.is_shut else perf_counter() - self._opened

    def watch(self, calls: Calls) -> None:
        """Tell these calls what to do when it is shut or opened."""
        with self._lock:
            self._calls.add(calls)

    def shut(self, in_flight: InFlight) -> list[concurrent.futures.Future[None]]:
        """Let no call begin; return what is done once those in flight have ended."""
        with self._lock:
            self._shut += 1
            return [each.hold_back(in_flight) for each in self._calls]

    def __reduce__(self) -> Any:
        # That of a copy is open.
        return Gate, ()

    def open(self) -> None:
        """Let calls begin again, at their loop's next turn."""
        with self._lock:
            self._opened = perf_counter()
            self._shut -= 1
            found = list(self._calls)
        for each in found:
            call_soon(each.loop, each.go_on)


def _failed(error: BaseException, prompt: Any, pipe: Any) -> Failure | Exit:
    """Return what a call that raised an error gave; raise what ends the task."""
    try:
        return failure_of(error, prompt, pipe)
    except SystemExit as end:
        return Exit(end)


class Calls(RunningAhead):
    """The calls of one pass, and what they have made that was not handed on.

    All but ``hold_back`` belongs to the loop.
    """

    def __init__(self, prompts: Prompts, source: Edge[Any]) -> None:
        super().__init__(source)
        pipe = prompts.pipe
        self.pipe = pipe
        self.prompts = prompts
        prompts.changed = self._note_change
        #: Woken for who makes batches of the results.
        self.maker = LoopWaiter(self.loop)
        self._call = pipe.call()
        self._size = pipe.group or 1
        #: The running calls.
        self.under_way: dict[asyncio.Task[Any], Member] = {}
        # Members to call for, lowest numbers first; and the timers of those that rest.
        self._waiting: list[Member] = []
        self._resting: dict[Member, asyncio.TimerHandle] = {}
        # The prompts that were not handed on, as a heap, and some that were.
        self._line: list[tuple[int, Group]] = []
        self._finished: list[tuple[int, Group]] = []
        self._unfinished = self._held = self._read = 0
        self._succeeded = self._failed_in_a_row = 0
        self._ended: list[concurrent.futures.Future[None]] = []
        self._hungry: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        #: Whether the source has ended.
        self.has_read_all = False
        self._has_done_its_work = self._has_told = self._has_told_of_outage = False
        # The call that only tells whether any succeeds, if one runs.
        self._asking: Member | None = None
        # How many calls were begun in this turn of the loop.
        self._begun_now = 0
        # Each call would make a copy of its own.
        self._context = contextvars.copy_context()
        pipe.gate.watch(self)

    # Reading prompts ----------------------------------------------------------------------

    async def work(self) -> None:
        try:
            await self.read()
            self.has_read_all = True
            self._note_change()
            await self.until(self._is_idle)
        finally:
            self._may_cancel, self._has_done_its_work = False, True
            if running_loop() is not None:
                await cancelled(self.under_way)

    def hold(self, item: Any) -> None:
        number = self._read
        if isinstance(item, NumberedItem):
            # Only single items come here.
            (number,) = item_numbers(item.key)
        prompts = self.prompts
        group = Group(item, number, prompts.whole_number(number), self._read, self._size)
        self._read += 1
        self.reads.passed(self._read)
        prompts.begin(group)
        failed, group.cut_off = prompts.attempts(number)
        group.failed = failed
        for member in group.members:
            member.attempt = failed
        kept = prompts.kept(group)
        self._take_up(group)
        if kept is not None:
            self._give_kept(group, *kept)
        elif self.pipe.attempts is not None and group.cut_off >= self.pipe.attempts:
            self._leave_out(group, Reason.ATTEMPTS)
        else:
            self._call_for(group.members)

    def _take_up(self, group: Group) -> None:
        self._held += 1
        self._unfinished += 1
        if not group.is_in_line:
            group.is_in_line = True
            heapq.heappush(self._line, (group.order, group))

    def _give_kept(self, group: Group, version: int, results: list[Any]) -> None:
        for member, result in zip(group.members, results, strict=False):
            member.begun_at, member.result = version, result
            group.have_come += 1
        self._finish(group)

    def has_room(self) -> bool:
        return (
            not self._is_shut() and not self._waiting and self.pipe.admission.admits(self._load())
        )

    def _load(self) -> Load:
        ahead = self._read - self._oldest()
        return Load(len(self.under_way), len(self.prompts.unsettled), self._held, ahead)

    def _oldest(self) -> int:
        line = self._line
        while line and line[0][1].is_handed_on:
            heapq.heappop(line)[1].is_in_line = False
        return line[0][0] if line else self._read

    def at_work(self) -> int:
        """Return how many calls run, or rest before they are made again."""
        return len(self.under_way) + len(self._resting)

    def waiting(self) -> int:
        """Return how many calls may begin once there is room for them."""
        return sum(member.group.wants(member) for member in list(self._waiting))

    def resting(self) -> int:
        """Return how many calls have failed, and are made again later."""
        return len(self._resting)

    def finished(self) -> int:
        """Return how many prompts are finished and were not handed on."""
        return len(self._finished)

    def oldest(self) -> tuple[int, float] | None:
        """Return the number of the prompt whose call has run longest, and for how long."""
        running = [
            (since, member.number)
            for member in list(self.under_way.values())
            if (since := member.since) is not None
        ]
        if not running:
            return None
        since, number = min(running)
        return number, self.loop.time() - since

    def that_run(self) -> Iterator[UnderWay]:
        """Yield the calls that run, for the oldest prompt first; from any thread."""
        found = sorted(self.under_way.items(), key=itemgetter(1))
        for task, member in found:
            name = stage_name(self.pipe)
            if self.pipe.group is not None:
                name = f"{name}, member {member.member}"
            since = member.since
            if since is not None:
                since = perf_counter() - (self.loop.time() - since)
            call = of_task(task, name, item=member.number, since=since)
            yield replace(call, attempt=member.attempt + 1)

    def that_rest(self) -> Iterator[UnderWay]:
        """Yield the calls that have failed and are made again later; from any thread."""
        name = f"{stage_name(self.pipe)}, which has failed and waits to be called again"
        for member in sorted(self._resting):
            yield UnderWay(name, item=member.number, attempt=member.attempt + 1)

    def waits_for(self) -> str:
        """Return what keeps one more prompt from being begun, or "" if nothing does."""
        admission, load = self.pipe.admission, self._load()
        if self._is_shut():
            return "a pause"
        if len(self.under_way) >= admission.concurrency:
            return "calls to end"
        if admission.is_used_up(load) and not (self._unfinished and self.prompts.is_all_held()):
            return "the trainer"
        if not admission.has_room(load):
            return "the oldest prompt" if self._finished else "calls to end"
        return "" if self.has_read_all or self._waiting else "the source"

    # Calls --------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Begin what may begin; on the loop."""
        self._begin_calls()
        self.wake_reader()

    def call_again(self, group: Group) -> None:
        """Call for a prompt again that was handed on; on the loop."""
        # Calls that nobody needed any more may still run; no member is called for twice at a time.
        late = {each.member for each in self.under_way.values() if each.group is group}
        group.begin_anew()
        self._take_up(group)
        self._call_for([each for each in group.members if each.member not in late])

    def _call_for(self, members: list[Member]) -> None:
        for member in members:
            heapq.heappush(self._waiting, member)
        self._begin_calls()

    def _begin_calls(self) -> None:
        most = self.pipe.concurrency
        while self._waiting and len(self.under_way) < most and not self._is_shut():
            member = self._waiting[0]
            if not member.group.wants(member):
                heapq.heappop(self._waiting)
                continue
            if not self._may_begin_now():
                return
            self._begin_call(heapq.heappop(self._waiting))

    def _begin_call(self, member: Member) -> None:
        task = begin_task(self.loop, self._made(member), "asyncloader rollout")
        self.under_way[task] = member
        task.add_done_callback(self._end_call, context=self._context)

    def _may_begin_now(self) -> bool:
        """Whether one more call may begin in this turn of the loop."""
        if not self._begun_now:
            self.loop.call_soon(self._begin_more)
        self._begun_now += 1
        return self._begun_now <= _AT_ONCE

    def _begin_more(self) -> None:
        is_more, self._begun_now = self._begun_now > _AT_ONCE, 0
        if is_more:
            self.go_on()

    def _is_shut(self) -> bool:
        return self.pipe.gate.is_shut or self._is_closing()

    def _is_closing(self) -> bool:
        # A loop that ends cancels all of its tasks, and those of the calls may end first.
        return self._has_done_its_work or self._task.cancelling() > 0

    async def _made(self, member: Member) -> Any:
        group = member.group
        is_asking = member is self._asking
        if self._is_shut() or not (is_asking or group.wants(member)):
            # That has come about since the task was made.
            return NO_RESULT
        member.version = self.prompts.version()
        if member.begun_at is None:
            member.begun_at = member.version
        self.prompts.called += 1
        member.since = self.loop.time()
        group.running += 1
        if not is_asking:
            self._note_begun(group)
        try:
            return await self._call(member)
        except Again as again:
            return again
        except BaseException as error:
            if running_loop() is None:
                raise
            return _failed(error, member.group.prompt, self.pipe)

    def _note_begun(self, group: Group) -> None:
        if group.timer is None and self.pipe.group_timeout is not None:
            group.timer = self.loop.call_later(self.pipe.group_timeout, self._be_late, group)
        if group.running == 1:
            self._note_attempts(group)

    def _end_call(self, task: asyncio.Task[Any]) -> None:
        member = self.under_way.pop(task)
        group = member.group
        if member.since is not None:
            member.since = None
            group.running -= 1
        is_aborted, member.is_aborted = member.is_aborted, False
        is_asking = member is self._asking
        if is_asking:
            self._asking = None
        if self._is_closing() or not group.wants(member):
            self._hear(task, is_asking=is_asking)
            self._call_instead(member)
        elif is_aborted and task.cancelled():
            self._put_back(member)
        else:
            self._take_outcome(member, task, is_aborted)
        if not (group.is_over or group.running):
            self._note_attempts(group)
        if not self.under_way:
            self._release_holders()
        self._begin_calls()
        self._note_change()

    def _call_instead(self, former: Member) -> None:
        """Call for the member that waits for a call of before to end, if one does."""
        member = former.group.members[former.member]
        if member is not former and former.group.wants(member):
            heapq.heappush(self._waiting, member)

    def _take_outcome(self, member: Member, task: asyncio.Task[Any], is_aborted: bool) -> None:
        try:
            outcome = released(task.result())
        except asyncio.CancelledError as error:
            # Nobody asked for that: the call has cancelled its own task, or other code of the user.
            outcome = failure_of(error, member.group.prompt, self.pipe)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._stop(error)
            return
        if outcome is NO_RESULT:
            self._put_back(member)
        elif outcome.__class__ is Again:
            self.prompts.again += 1
            member.partial = outcome.partial
            self._put_back(member)
        elif outcome.__class__ is not Failure:
            self._succeed(member, outcome)
        elif is_aborted:
            self._put_back(member)
        else:
            self._fail_call(member, outcome.error)

    def _hear(self, task: asyncio.Task[Any], *, is_asking: bool) -> None:
        """Note whether a call succeeded whose result nobody needs, or not any more."""
        try:
            outcome = released(task.result())
        except asyncio.CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            if not self._is_closing():
                self._stop(error)
            return
        if outcome.__class__ is Failure:
            # One that was told to end may fail for that.
            if is_asking and not self._is_closing():
                self._count_failure(outcome.error)
        elif outcome is not NO_RESULT and outcome.__class__ is not Again:
            self._note_success()

    def _put_back(self, member: Member) -> None:
        if member.partial is None:
            member.begun_at = None
        heapq.heappush(self._waiting, member)

    def _succeed(self, member: Member, result: Any) -> None:
        member.result, member.partial = result, None
        member.group.have_come += 1
        self._note_success()
        self._look_at(member.group)

    def _note_success(self) -> None:
        self._succeeded += 1
        self._failed_in_a_row = 0

    def _fail_call(self, member: Member, error: Exception) -> None:
        pipe, group = self.pipe, member.group
        member.attempt += 1
        group.failed = max(group.failed, member.attempt)
        self._note_attempts(group)
        member.partial = member.begun_at = None
        if group.failed_at is None:
            group.failed_at, group.failed_since = self._succeeded, self.loop.time()
        self._count_failure(error)
        if pipe.on_error == "raise":
            group.error = error
            self._finish(group)
        elif self._has_failed_too_often():
            return
        elif self._has_had_its_attempts(member):
            reason = Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.ATTEMPTS
            self._tell_of_loss(member, error)
            self._lose(member, reason)
        else:
            if member.attempt >= (pipe.attempts or _TOLD_AFTER):
                self._tell_of_outage(member, error)
            if pipe.attempts is not None and member.attempt >= pipe.attempts:
                self._ask_whether_any_succeeds()
            seconds = self._seconds_to_rest(member.attempt)
            self._resting[member] = self.loop.call_later(seconds, self._rested, member)

    def _count_failure(self, error: Exception) -> None:
        """Count a failure; with too many in a row the pass ends."""
        self.prompts.failed += 1
        self._failed_in_a_row += 1
        if self._has_failed_too_often() and self.pipe.on_error == "again":
            note(error, f"{self._failed_in_a_row} calls of {stage_name(self.pipe)} failed in a row")
            self._stop(error)

    def _has_failed_too_often(self) -> bool:
        return bool(self._failed_in_a_row >= self.pipe.max_failures)

    def _has_had_its_attempts(self, member: Member) -> bool:
        """Whether a member is given up; not as long as nothing else succeeds either."""
        most, group = self.pipe.attempts, member.group
        if most is None or member.attempt < most:
            return False
        if self._succeeded > (group.failed_at or 0):
            return True
        # At the end there may be nothing else that could.
        is_long = self.loop.time() - group.failed_since >= _PATIENCE_SECONDS
        return is_long and self._succeeded > 0 and self._is_last()

    def _ask_whether_any_succeeds(self) -> None:
        """Call once more for a prompt that has its results, if no other call can tell."""
        is_full = len(self.under_way) >= self.pipe.concurrency
        if self._asking is not None or is_full or self._is_shut():
            return
        may_read = not self.has_read_all and self.pipe.admission.admits(self._load())
        unfinished = (group for _, group in self._line if not group.is_over)
        if may_read or any(each.failed_at is None for each in unfinished):
            return
        # Of those that are not recorded, the line has all that keep others from being begun.
        begun = list(self.prompts.unsettled.values()) or [group for _, group in self._line]
        found = (each for each in begun if each.is_over and each.error is None and each.have_come)
        if (group := next(found, None)) is not None:
            self._asking = Member(group, group.done()[0].member)
            self._asking.attempt = group.failed
            self._begin_call(self._asking)

    def _is_last(self) -> bool:
        """Whether all prompts were read, and calls for each that is not finished have failed."""
        unfinished = (group for _, group in self._line if not group.is_over)
        return self.has_read_all and all(each.failed_at is not None for each in unfinished)

    def _seconds_to_rest(self, failed: int) -> float:
        doubled = self.pipe.backoff * 2.0 ** min(failed - 1, 64)
        seconds: float = min(doubled * _jitter.uniform(0.5, 1.0), MOST_SECONDS)
        return seconds

    def _rested(self, member: Member) -> None:
        del self._resting[member]
        if not member.group.is_over:
            self._call_for([member])

    def _tell_of_loss(self, member: Member, error: Exception) -> None:
        """Tell the log of the first call that is given up; others are only counted."""
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "%s gives up a call for prompt %d, which has failed %d times; if more follow, only"
                " stats() counts them. The last error:",
                stage_name(self.pipe),
                member.number,
                member.attempt,
                exc_info=error,
            )

    def _tell_of_outage(self, member: Member, error: Exception) -> None:
        """Tell the log once of a call that fails again and again while no other succeeds."""
        if self._has_told_of_outage or self._succeeded > (member.group.failed_at or 0):
            return
        self._has_told_of_outage = True
        logger.warning(
            "%s makes calls again and again: one for prompt %d has failed %d times, and none has"
            " succeeded since it failed first. After max_failures=%d in a row the error is raised."
            " The last one:",
            stage_name(self.pipe),
            member.number,
            member.attempt,
            self.pipe.max_failures,
            exc_info=error,
        )

    def _lose(self, member: Member, reason: str) -> None:
        """Do without a member, or without its prompt."""
        group = member.group
        member.is_lost = True
        group.lost += 1
        least = self.pipe.min_group
        if least is None or len(group.members) - group.lost < least:
            self._leave_out(group, reason)
        else:
            self._look_at(group)

    def _be_late(self, group: Group) -> None:
        group.is_late = True
        if not group.is_over:
            self._look_at(group)

    def _look_at(self, group: Group) -> None:
        """Finish a group that has enough results."""
        wanted = len(group.members) - group.lost
        if group.is_late and self.pipe.min_group is not None:
            wanted = min(wanted, self.pipe.min_group)
        if group.have_come >= wanted:
            self._finish(group)

    def _finish(self, group: Group) -> None:
        """Let a group be handed on, with what it has."""
        self._end_group(group)
        if group.error is None:
            group.cut_off = 0
            self._note_attempts(group)
            self.prompts.keep(group)
        heapq.heappush(self._finished, (group.order, group))
        self.wake_consumer()

    def _leave_out(self, group: Group, reason: str) -> None:
        self._end_group(group)
        group.is_handed_on = True
        self._held -= 1
        self.prompts.leave_out(group, reason)
        self._note_change()

    def _note_change(self) -> None:
        self.wake_reader()
        self.wake_consumer()
        self.maker.wake()

    def _end_group(self, group: Group) -> None:
        group.is_over = True
        self._unfinished -= 1
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        for member in group.members:
            timer = self._resting.pop(member, None) if member.result is NO_RESULT else None
            if timer is not None:
                timer.cancel()
        if group.running:
            # They count as in flight until they end.
            late = [task for task, member in self.under_way.items() if member.group is group]
            for task in late:
                task.cancel()

    def _note_attempts(self, group: Group) -> None:
        # Calls that nobody needs any more may still run.
        is_running = group.running > 0 and not group.is_over
        self.prompts.note_attempts(group.number, group.failed, group.cut_off + is_running)

    def _stop(self, error: BaseException) -> None:
        """End the pass with an error."""
        self.error = self.error or error
        self.has_ended = True
        self._task.cancel()
        self.wake_consumer()

    # Batches of what is ready -------------------------------------------------------------

    def take_back(self, item: NumberedItem) -> None:
        """Call again for what is too old, or leave it out."""
        group, pipe = self.prompts.of(item), self.pipe
        group.stale += 1
        self.prompts.stale += 1
        is_too_often = pipe.max_stale is not None and group.stale > pipe.max_stale
        if pipe.on_stale == "drop" or is_too_often:
            item.leave_out(Reason.STALE)
        else:
            self.call_again(group)

    def has_given_all(self, held: int) -> bool:
        """Whether all prompts were read, and those that are in no batch are the ``held`` ones."""
        is_done = self.has_read_all and self.is_dry()
        return is_done and 0 < held == self.prompts.in_no_batch()

    # Handing on ---------------------------------------------------------------------------

    def has_something(self) -> bool:
        if not self._finished:
            return False
        return bool(self._finished[0][0] - self._oldest() < self.pipe.window)

    def group(self, most: int) -> list[Any]:
        """Take what is finished and may be handed on."""
        taken: list[Any] = []
        while len(taken) < most and self.has_something():
            group = self._finished[0][1]
            if group.error is not None and taken:
                # Raising it would lose what was taken so far.
                break
            heapq.heappop(self._finished)
            group.is_handed_on = True
            self._held -= 1
            if group.error is not None:
                raise group.error
            taken.append(self.prompts.handed_on(group))
        self.wake_reader()
        self.maker.wake()
        return taken

    def is_over(self) -> bool:
        return self.has_ended and not (self.error is None and self.has_something())

    async def has_next(self) -> bool:
        self._begin_wait()
        try:
            await self.until_held(self._is_ready_or_starved)
        finally:
            self._is_wanted = False
            self._stop_looking()
        if self.error is not None:
            raise self.error
        return self.has_something()

    def is_empty(self) -> bool:
        return not self.under_way and not self.has_something()

    def drop(self) -> None:
        self._release_holders()
        for timer in self._resting.values():
            timer.cancel()
        for _, group in self._line:
            if group.timer is not None:
                group.timer.cancel()
        self._waiting.clear()
        self._resting.clear()
        self._line.clear()
        self._finished.clear()

    def _is_idle(self) -> bool:
        return not self._unfinished and not self.under_way and self.prompts.is_all_made()

    # Pauses -------------------------------------------------------------------------------

    def hold_back(self, in_flight: InFlight) -> concurrent.futures.Future[None]:
        """Do with the calls in flight as is said; return what is done then. From any thread."""
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        is_over = self.has_ended and not self.under_way
        if in_flight == "keep" or is_over or self.loop.is_closed():
            ended.set_result(None)
        else:
            call_soon(self.loop, self._hold_back, in_flight, ended)
        return ended

    def _hold_back(self, in_flight: InFlight, ended: concurrent.futures.Future[None]) -> None:
        self._ended.append(ended)
        if self._late is None:
            self._late = self.loop.call_later(_PAUSE_SECONDS, self._name_late)
        if in_flight == "abort":
            for task, member in self.under_way.items():
                member.is_aborted = True
                task.cancel()
        if not self.under_way:
            self._release_holders()

    def _release_holders(self) -> None:
        ended, self._ended = self._ended, []
        if self._late is not None:
            self._late.cancel()
            self._late = None
        for each in ended:
            if not each.done():
                each.set_result(None)

    def _name_late(self) -> None:
        calls = list(self.that_run())
        for call in calls[:1]:
            logger.warning(
                "a pause of the loader has waited %.0f s for %d calls to end; the oldest is %s%s",
                _PAUSE_SECONDS,
                len(calls),
                call,
                "".join(f"\n  {frame}" for frame in call.stack),
            )

    # Starved ------------------------------------------------------------------------------

    def is_dry(self) -> bool:
        """Whether nothing is done and nothing may begin: all is with those who read this."""
        is_idle = not (self.under_way or self._waiting or self._resting or self._unfinished)
        return is_idle and not self._finished and not self.pipe.gate.is_shut

    def _is_ready_or_starved(self) -> bool:
        if self.has_ended or self.has_something():
            return True
        if self._hungry is None and self._may_be_starved():
            self._hungry = self.loop.call_later(_STARVED_SECONDS, self._look_if_starved)
        return False

    def _may_be_starved(self) -> bool:
        return (
            self.is_dry()
            and not self.has_read_all
            and self.pipe.admission.is_used_up(self._load())
            and self.prompts.is_all_held()
        )

    def _look_if_starved(self) -> None:
        self._hungry = None
        if self._may_be_starved():
            if self.prompts.is_everybody_waiting():
                self._stop(self.prompts.starved())
            else:
                self._hungry = self.loop.call_later(_STARVED_SECONDS, self._look_if_starved)

    def _stop_looking(self) -> None:
        if self._hungry is not None:
            self._hungry.cancel()
            self._hungry = None
