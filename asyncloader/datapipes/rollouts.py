"""Groups of answers from a policy that changes.

This file is about rollout, which calls a function for each prompt, many calls at a time, and hands
on what is finished: begun no earlier than ``Admission`` allows, put back where a call says so or
is stopped, tried again where it fails, and left out for a reason that is counted. How the calls
run, says ``rollout_calls.py``.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from asyncloader.arguments import checked_count, checked_flag, checked_seconds, function_name
from asyncloader.datapipes.admission import Admission, Order, Version
from asyncloader.datapipes.attempts import Attempts
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import is_async, watched_async
from asyncloader.datapipes.prompts import Member, Prompts
from asyncloader.datapipes.rollout_calls import Calls, Gate
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import LoaderError

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
        self.calls: Calls | None = None
        self.prompts = Prompts(edge.pipe, edge.tree)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self._groups(most=1)) as groups:
            async for group in groups:
                yield group.pop()

    def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in lists of what is ready."""
        return self._groups(most=GROUP_ITEMS)

    async def _groups(self, most: int) -> AsyncGenerator[list[Any], None]:
        self.calls = calls = Calls(self.prompts, self.source)
        calls.start(repr(self.pipe))
        try:
            while await calls.has_next():
                yield calls.group(most)
        finally:
            await calls.aclose()

    def counts(self) -> tuple[int, int, bool, int]:
        return self.source.count(), self.prompts.yielded, False, 0

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
                f"{stage_name(self.pipe)} waits for loader.ack(): {len(self.prompts.unsettled)}"
                " prompts are begun and not acknowledged, and no more may be"
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
        calls, prompts = self.calls, self.prompts
        prompts.catch_up()
        is_over = calls is None or calls.has_ended
        return RolloutStats(
            name=stage_name(self.pipe),
            calls=prompts.called,
            in_flight=0 if calls is None else len(calls.under_way),
            waiting=0 if calls is None else calls.waiting(),
            resting=0 if calls is None else calls.resting(),
            finished=0 if calls is None else calls.finished(),
            unsettled=len(prompts.unsettled),
            capacity=self.pipe.admission.capacity,
            again=prompts.again,
            failed=prompts.failed,
            stale=prompts.stale,
            lags=dict(prompts.lags),
            oldest=None if calls is None else calls.oldest(),
            waits_for="" if calls is None or is_over else calls.waits_for(),
        )
