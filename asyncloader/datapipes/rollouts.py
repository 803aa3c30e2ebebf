"""Groups of answers from a policy that changes.

This file is about rollout, which calls a function for each prompt, many calls at a time, and hands
on what is finished: begun no earlier than ``Admission`` allows, put back where a call says so or
is stopped, tried again where it fails, and left out for a reason that is counted. How the calls
run, says ``prompts.py``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from asyncloader.arguments import checked_count, checked_flag, checked_seconds, function_name
from asyncloader.datapipes.admission import Admission, Order, Version
from asyncloader.datapipes.attempts import Attempts
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import is_async, watched_async
from asyncloader.datapipes.prompts import Calls, Gate, Group, Member, RolloutCounts
from asyncloader.datapipes.recording import Joining, NumberedItem
from asyncloader.datapipes.running.cursor_forms import copied
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.run_place import present_home
from asyncloader.datapipes.running.traits import is_shuffler, waits
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.settled import Ledger, Reason, item_numbers
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import LoaderError, SnapshotError, StarvedError
from asyncloader.safe_error_text import repr_of
from asyncloader.waiting import LoopWaiter

T = TypeVar("T")

logger = logging.getLogger("asyncloader")

#: What the function of a rollout may be told, by name.
_TOLD = ("version", "attempt", "partial", "number", "member")


@functional_datapipe("rollout")
class Rollout(IterDataPipe[T]):
    """Yield what ``await generate(prompt)`` gives for each prompt, many calls at a time.

    ``generate`` cannot be repeated, so what became of each prompt is recorded from here on: a state
    resumes exactly, and no prompt is lost or answered for twice. It is given those of these
    keywords that it takes: ``version``, the policy's number; ``attempt``, from 0; ``partial``, what
    an ``Again`` kept; ``number``, the prompt's own; and ``member``, from 0 to ``group - 1``.

    With ``group=8`` there are eight calls for each prompt, and a list of eight results is yielded.
    Once ``group_timeout`` seconds have passed, ``min_group`` of them are enough.

    At most ``concurrency`` calls run. With ``max_lag`` nothing is trained by a policy that is more
    than so many versions newer than the one which answered: the trainer advances ``version`` and
    then acknowledges, and trains at least ``per_step`` prompts with each version; so not more
    prompts are begun than it can train in time. Results come in the ``order`` of the source (the
    default with ``max_lag``), as they are "ready" (otherwise), or at most so many out of order.
    What is "ready" and too old for its batch is called for ``on_stale="again"``, ``max_stale``
    times at most, or left out ("drop").

    ``raise Again(partial)`` puts a prompt back in front. A call that fails, or takes longer than
    ``timeout`` seconds, is made again after ``backoff`` seconds, then twice as much each time (30 s
    at most). After ``attempts`` failures the prompt is left out; but not as long as no other call
    has succeeded either, since then the server is at fault. ``max_failures`` in a row raise the
    last error, and ``on_error="raise"`` the first.

    ``keep_results=True`` lets a state have the results that are not settled. The pipe runs in the
    loader's process, behind the workers.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def generate(prompt, *, member):
    ...     return f"{prompt}{member}"
    >>> list(IterableWrapper("ab").rollout(generate, group=2))
    [['a0', 'a1'], ['b0', 'b1']]
    """

    #: It answers differently each time.
    repeatable = False

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        generate: Callable[..., Awaitable[T]],
        *,
        group: int | None = None,
        concurrency: int = 64,
        version: Version | None = None,
        max_lag: int | None = None,
        per_step: int | None = None,
        order: Order | None = None,
        on_stale: Literal["again", "drop"] = "again",
        on_error: Literal["again", "raise"] = "again",
        attempts: int | None = 3,
        max_stale: int | None = None,
        backoff: float = 0.1,
        timeout: float | None = None,
        min_group: int | None = None,
        group_timeout: float | None = None,
        max_failures: int = 100,
        most_ahead: int = 100_000,
        keep_results: bool = False,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.generate = generate
        self.group = group if group is None else checked_count("group", group, at_least=1)
        self.concurrency = checked_count("concurrency", concurrency, at_least=1)
        self.version = version
        self.max_lag = _checked_or_none("max_lag", max_lag, at_least=0)
        self.per_step = _checked_or_none("per_step", per_step, at_least=1)
        self.order = _checked_order(order, max_lag)
        self.on_stale = _one_of("on_stale", on_stale, "again", "drop")
        self.on_error = _one_of("on_error", on_error, "again", "raise")
        self.attempts = _checked_or_none("attempts", attempts, at_least=1)
        self.max_stale = _checked_or_none("max_stale", max_stale, at_least=0)
        self.backoff = checked_seconds("backoff", backoff)
        self.timeout = timeout if timeout is None else checked_seconds("timeout", timeout)
        self.min_group = _checked_or_none("min_group", min_group, at_least=1)
        self.group_timeout = group_timeout
        self.max_failures = checked_count("max_failures", max_failures, at_least=1)
        self.most_ahead = checked_count("most_ahead", most_ahead, at_least=1)
        self.keep_results = checked_flag("keep_results", keep_results)
        self._takes = _told_to(generate)
        self._check_groups()
        self._check_lag()
        #: How many prompts may come before an oldest one that was not handed on.
        self.window = _window_of(self.order)
        self.admission = Admission.of(
            concurrency=self.concurrency,
            max_lag=max_lag,
            per_step=per_step,
            window=self.window if isinstance(self.window, int) else 1,
            most_ahead=self.most_ahead,
        )
        self._attempt = Attempts(timeout=self.timeout)
        #: Lets calls begin, or not; there is one for each loader.
        self.gate = Gate()
        #: Whether its items are numbered.
        self.is_recorded = False

    def _check_groups(self) -> None:
        if self.min_group is None and self.group_timeout is None:
            return
        if self.min_group is None or self.group_timeout is None or self.group is None:
            raise ValueError(
                "min_group and group_timeout go together, with group: once group_timeout seconds"
                " have passed, min_group results are enough"
            )
        checked_seconds("group_timeout", self.group_timeout)
        if self.min_group > self.group:
            raise ValueError(
                f"min_group={self.min_group} is more than group={self.group}, so it is never"
                " reached; choose at most the size of a group"
            )

    def _check_lag(self) -> None:
        if self.version is not None and not isinstance(self.version, Version):
            raise TypeError(
                f"version must be an asyncloader.Version, got {type(self.version).__name__}: the"
                " trainer calls version.advance() once the new weights were sent"
            )
        if self.max_lag is None:
            return
        if self.version is None or self.per_step is None:
            raise ValueError(
                "max_lag needs version=Version(), which the trainer advances, and per_step, how"
                " many prompts it trains at least with each version"
            )
        window = self.order if isinstance(self.order, int) else 1
        if window - 1 > self.max_lag * self.per_step:
            raise ValueError(
                f"order={window} lets {window - 1} prompts be handed on before an older one, which"
                f" is more than max_lag={self.max_lag} steps of per_step={self.per_step} prompts"
                f" can wait for; use order={self.max_lag * self.per_step + 1} at most"
            )

    @property
    def judges(self) -> bool:
        """Whether a batch behind it has to look which of its members are too old."""
        return self.max_lag is not None and self.order == "ready"

    def is_async(self) -> bool:
        return True

    def waits(self) -> bool:
        return True

    def requested_for(self) -> float:
        # While it is paused nobody expects an item.
        return self.gate.open_for()

    def is_replicable(self) -> bool:
        # How many calls there may be, and which version it is, belong to all workers together.
        return False

    def has_no_order(self) -> bool:
        return self.order != "source"

    def in_section(self) -> Any:
        self.is_recorded, self.gate = True, Gate()
        return self

    def new_pass(self, edge: Edge[Any]) -> RolloutPass:
        if self.max_lag is not None and not self.is_recorded:
            raise LoaderError(
                f"{stage_name(self)} with max_lag needs a loader that is told what was trained:"
                " DataLoader2(..., acknowledge=True)"
            )
        return RolloutPass(edge)

    def call(self) -> Callable[[Member], Awaitable[Any]]:
        """Return what makes the call for a member."""
        generate, takes = watched_async(self.generate, self), self._takes

        # Plain functions: one coroutine less for each call.
        def called(member: Member) -> Any:
            return generate(member.group.prompt)

        def told(member: Member) -> Any:
            return generate(member.group.prompt, **{name: getattr(member, name) for name in takes})

        return self._attempt.of(told if takes else called)


@dataclass(frozen=True)
class RolloutStats:
    """How a rollout is doing in the present epoch.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def generate(prompt):
    ...     return prompt
    >>> with DataLoader2(IterableWrapper("abc").rollout(generate)) as loader:
    ...     answers = list(loader)
    ...     (stats,) = loader.stats().rollouts
    >>> stats.calls, stats.in_flight, stats.lags
    (3, 0, {0: 3})
    """

    #: The name of the pipe: ``rollout(generate)``.
    name: str
    #: How many calls were begun.
    calls: int
    #: How many run.
    in_flight: int
    #: How many may begin once there is room for them, such as those that were put back.
    waiting: int
    #: How many have failed, and are made again later.
    resting: int
    #: How many prompts are finished and were not handed on.
    finished: int
    #: How many prompts were begun and are not settled, and how many those may be with ``max_lag``.
    unsettled: int
    capacity: int | None
    #: How many calls were put back by ``Again``, how many failed, and how many prompts were too old
    #: for their batch.
    again: int
    failed: int
    stale: int
    #: How many prompts were trained, by how many versions newer the policy was then.
    lags: Mapping[int, int]
    #: The number of the prompt whose call has run longest, and for how many seconds.
    oldest: tuple[int, float] | None
    #: What keeps one more prompt from being begun: "the trainer", "calls to end", "the source",
    #: "the oldest prompt", "a pause", or "" where nothing does.
    waits_for: str

    def __str__(self) -> str:
        parts = [f"{self.in_flight} calls in flight"]
        if self.oldest is not None:
            number, seconds = self.oldest
            parts[0] += f" (the oldest for {seconds:.1f} s, prompt {number})"
        counts = {"waiting": self.waiting, "resting": self.resting, "finished": self.finished}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        most = "" if self.capacity is None else f" of {self.capacity}"
        parts += [f"{self.unsettled}{most} prompts not settled"]
        counts = {"put back": self.again, "failed": self.failed, "stale": self.stale}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
        if self.lags:
            lags = (f"{lag}: {count}" for lag, count in sorted(self.lags.items()))
            parts += [f"lag {', '.join(lags)}"]
        if self.waits_for:
            parts += [f"waits for {self.waits_for}"]
        return f"{self.name}: {'; '.join(parts)}"


def _told_to(generate: Any) -> tuple[str, ...]:
    """Return which of the keywords a function takes."""
    if not is_async(generate):
        raise TypeError(
            "rollout needs a function written with `async def`, or a partial of one, got"
            f" {function_name(generate)}"
        )
    signature = inspect.signature(generate)
    # The first is the prompt, whatever it is called.
    kinds = {name: each.kind for name, each in list(signature.parameters.items())[1:]}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return tuple(name for name in _TOLD if name not in list(signature.parameters)[:1])
    positional = inspect.Parameter.POSITIONAL_ONLY
    taken = tuple(name for name in _TOLD if kinds.get(name, positional) is not positional)
    try:
        signature.bind(None, **dict.fromkeys(taken))
    except TypeError as error:
        raise ValueError(
            f"generate must take a prompt and, by name, any of {', '.join(_TOLD)}:"
            f" {function_name(generate)} cannot be called so ({error})"
        ) from None
    return taken


def _checked_or_none(name: str, value: int | None, *, at_least: int) -> int | None:
    return None if value is None else checked_count(name, value, at_least=at_least)


def _one_of(name: str, value: Any, *choices: str) -> Any:
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
    return value


def _checked_order(order: Any, max_lag: int | None) -> Order:
    if order is None:
        return "ready" if max_lag is None else "source"
    if order in ("source", "ready"):
        return cast(Order, order)
    if isinstance(order, str):
        raise ValueError(f'order must be "source", "ready" or a number, got {order!r}')
    return checked_count("order", order, at_least=1)


def _window_of(order: Order) -> float:
    if isinstance(order, int):
        return order
    return 1 if order == "source" else math.inf


class RolloutPass(Pass[Any]):
    """One pass over a Rollout. What was settled before, the ledger of its section knows."""

    has_place = False
    holds_calls = True
    runs_ahead = True

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        pipe: Rollout[Any] = edge.pipe
        self.pipe_number = number_of(pipe)
        self.calls: Calls | None = None
        self._ledger: Ledger | None = None
        #: The prompts that were begun and are not settled, by their numbers.
        self.unsettled: dict[int, Group] = {}
        self.counted = RolloutCounts()
        #: How many prompts were trained with a policy so many versions newer.
        self.lag_counts: Counter[int] = Counter()
        self.yielded = 0
        # The batches that were made and not settled: how many prompts of each are not. And in which
        # batch a prompt is.
        self._batches: dict[int, int] = {}
        self._in_batch: dict[int, int] = {}
        self._made = 0
        # How many items were delivered when the policy was advanced last.
        self._delivered = 0
        self._version = pipe.version
        if pipe.version is not None:
            pipe.version.tell(self)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self._groups(most=1)) as groups:
            async for group in groups:
                yield group.pop()

    def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in lists of what is ready."""
        return self._groups(most=GROUP_ITEMS)

    async def _groups(self, most: int) -> AsyncGenerator[list[Any], None]:
        self.maker = LoopWaiter(asyncio.get_running_loop())
        self.calls = calls = Calls(self)
        calls.start(repr(self.pipe))
        try:
            while await calls.has_next():
                yield calls.group(most)
        finally:
            await calls.aclose()

    @property
    def taken(self) -> int:
        """How many prompts were read."""
        return self.source.count()

    def fullness(self) -> tuple[int, int]:
        calls = self.calls
        return (0 if calls is None else calls.at_work()), self.pipe.concurrency

    def wants_more(self) -> bool:
        calls = self.calls
        return calls is None or calls.waits_for() == "the source"

    def under_way(self) -> Iterable[UnderWay]:
        calls = self.calls
        if calls is None or calls.has_ended:
            return
        yield from calls.that_run()
        yield from calls.that_rest()
        waits_for = "" if calls.under_way else calls.waits_for()
        if waits_for == "the trainer":
            yield UnderWay(
                f"{stage_name(self.pipe)} waits for loader.ack(): {len(self.unsettled)} prompts are"
                " begun and not acknowledged, and no more may be"
            )
        elif waits_for == "a pause":
            yield UnderWay(f"{stage_name(self.pipe)} begins no call during loader.paused()")

    def set_paused(self, is_paused: bool) -> None:
        if self.calls is not None:
            self.calls.set_paused(is_paused)

    def resume_at(self, position: int, cursor: Any, cursors: Any) -> int:
        return position

    def stats(self) -> RolloutStats:
        """Return how it is doing; from any thread."""
        if self._ledger is not None:
            self._ledger.catch_up()
        calls, counted = self.calls, self.counted
        is_over = calls is None or calls.has_ended
        return RolloutStats(
            name=stage_name(self.pipe),
            calls=counted.calls,
            in_flight=0 if calls is None else len(calls.under_way),
            waiting=0 if calls is None else calls.waiting(),
            resting=0 if calls is None else calls.resting(),
            finished=0 if calls is None else calls.finished(),
            unsettled=len(self.unsettled),
            capacity=self.pipe.admission.capacity,
            again=counted.again,
            failed=counted.failed,
            stale=counted.stale,
            lags=dict(self.lag_counts),
            oldest=None if calls is None else calls.oldest(),
            waits_for="" if calls is None or is_over else calls.waits_for(),
        )

    # Prompts ------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the policy's number."""
        return 0 if self._version is None else self._version.number

    def whole_number(self, number: int) -> int:
        """Return which number a prompt has before the division among ranks."""
        return self.edge.tree.whole_number(number)

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
        if self._ledger is None or self.pipe_number is None:
            return None
        kept = self._ledger.kept_results(group.number).get(self.pipe_number)
        if kept is not None and not self._is_of_group(kept):
            raise SnapshotError(
                "the state does not fit the graph: what it kept of item"
                f" {group.whole_number} are no results of {stage_name(self.pipe)}, but"
                f" {repr_of(kept)}"
            )
        if kept is not None and self._version is not None and kept[0] > self.version():
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
        if self.pipe.keep_results and self._ledger is not None and self.pipe_number is not None:
            # What follows may change its own.
            results = copied([each.result for each in group.done()])
            kept = [group.begun_at(), results]
            self._ledger.keep(self.pipe_number, group.number, kept)

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
        if self.calls is not None:
            self.calls.wake_reader()
            self.calls.wake_consumer()

    def _note_lag(self, number: int, lag: int) -> None:
        pipe = self.pipe
        if pipe.max_lag is not None and max(self.lag_counts, default=0) <= pipe.max_lag < lag:
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
        self.lag_counts[lag] += 1

    def changed(self) -> None:
        """Let what makes batches of the results look again."""
        if self.pipe.judges:
            self.maker.wake()

    def advanced(self) -> None:
        """Note that the policy was advanced."""
        self._delivered = self.edge.tree.delivered_items()
        if self._ledger is not None:
            # What is settled by its delivery was trained before.
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
        begun = self.unsettled[self._number_of(item)].begun_at()
        return bool(self.version() + len(self._batches) - begun > self.pipe.max_lag)

    def take_back(self, item: NumberedItem) -> None:
        """Call again for what is too old, or leave it out."""
        group, pipe = self.unsettled[self._number_of(item)], self.pipe
        group.stale += 1
        self.counted.stale += 1
        is_too_often = pipe.max_stale is not None and group.stale > pipe.max_stale
        if pipe.on_stale == "drop" or is_too_often:
            item.leave_out(Reason.STALE)
        elif self.calls is not None:
            self.calls.call_again(group)

    def note_made(self, items: list[NumberedItem]) -> None:
        """Note that a batch was made of these items."""
        self._made += 1
        self._batches[self._made] = len(items)
        for item in items:
            self._in_batch[self._number_of(item)] = self._made
        if self.calls is not None:
            self.calls.wake_reader()

    def has_given_all(self, held: int) -> bool:
        """Whether all prompts were read, and those that are in no batch are the ``held`` ones."""
        calls = self.calls
        is_done = calls is not None and calls.has_read_all and calls.is_dry()
        return is_done and 0 < held == len(self.unsettled) - len(self._in_batch)

    def is_all_made(self) -> bool:
        """Whether no prompt may come back from those who read this."""
        return not self.pipe.judges or len(self.unsettled) == len(self._in_batch)

    def _number_of(self, item: NumberedItem) -> int:
        (number,) = item_numbers(item.key)
        return number

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
        tree = self.edge.tree
        for pipe in tree.pipes[: tree.pipes.index(self.pipe)]:
            begun = tree.latest_pass(pipe)
            if begun is not None and begun is not self:
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
