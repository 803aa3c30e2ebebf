"""Which prompts a rollout may begin, and by which policy.

This file is about ``Version``, the number of the policy that a trainer advances; ``Again``, by
which a call puts its prompt back; and ``Admission``, which says whether one more prompt may begin,
so that nothing is trained by a policy that is too new for it.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from weakref import ref

from asyncloader.arguments import checked_count
from asyncloader.waiting import LoopWaiter

#: In which order results are handed on: the source's, as they are ready, or at most so many out of
#: order.
Order = Literal["source", "ready"] | int


class Version:
    """The number of the policy that answers, which a trainer advances after it sent new weights.

    It belongs to the program: several loaders may share it, and a state does not have it.

    >>> policy = Version()
    >>> policy.advance()
    1
    >>> policy.number
    1
    """

    def __init__(self, number: int = 0) -> None:
        self._number = checked_count("number", number, at_least=0)
        self._lock = threading.Lock()
        self._waiters: set[LoopWaiter] = set()
        self._listeners: list[ref[Any]] = []

    @property
    def number(self) -> int:
        """How often it was advanced, from the first number on."""
        return self._number

    def advance(self) -> int:
        """Say that the policy is the next one now; return its number. From any thread."""
        with self._lock:
            self._number += 1
            number = self._number
            waiters, listeners = list(self._waiters), list(self._listeners)
        for each in listeners:
            if (listener := each()) is not None:
                listener.advanced()
        for waiter in waiters:
            waiter.wake()
        return number

    async def reached(self, number: int) -> None:
        """Wait until the policy has this number, or a later one."""
        waiter = LoopWaiter(asyncio.get_running_loop())
        with self._lock:
            self._waiters.add(waiter)
        try:
            await waiter.until(lambda: self._number >= number)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def tell(self, listener: Any) -> None:
        """Call ``listener.advanced()`` after each advance, as long as it lives."""
        with self._lock:
            alive = [each for each in self._listeners if each() is not None]
            self._listeners = [*alive, ref(listener)]

    def __repr__(self) -> str:
        return f"Version({self._number})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Version, (self._number,)


class Again(Exception):
    """Raised by the function of a rollout: its prompt is put back in front, and called for again.

    The next call is given what was ``partial``, whose version stays that of the call which made it.
    It is no failure: such calls count for nothing.

    >>> raise Again(partial=["a token"])
    Traceback (most recent call last):
    asyncloader.datapipes.admission.Again: put back with a partial result
    """

    def __init__(self, partial: Any = None) -> None:
        super().__init__("put back" if partial is None else "put back with a partial result")
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return Again, (self.partial,)


class Load(NamedTuple):
    """How much a rollout has on its hands."""

    #: The calls that run.
    calls: int = 0
    #: The prompts that were begun and are not settled.
    unsettled: int = 0
    #: Those of them that were not handed on.
    held: int = 0
    #: How many prompts were read since the oldest that was not handed on.
    ahead: int = 0


@dataclass(frozen=True)
class Admission:
    """How much a rollout may have on its hands.

    ``capacity`` prompts that are begun and not settled are as many as can be trained before the
    policy is ``max_lag`` versions newer; None is for no bound.

    >>> admission = Admission.of(concurrency=4, max_lag=1, per_step=8, window=1, most_ahead=100)
    >>> admission.capacity
    16
    >>> admission.admits(Load(calls=3, unsettled=15, held=4))
    True
    >>> admission.admits(Load(calls=3, unsettled=16, held=4))
    False
    """

    concurrency: int
    capacity: int | None
    most_held: int
    most_ahead: int

    @classmethod
    def of(
        cls,
        *,
        concurrency: int,
        max_lag: int | None,
        per_step: int | None,
        window: int,
        most_ahead: int,
    ) -> Admission:
        """Return what follows from a rollout's settings; a ``window`` of 1 is the source's order.

        An item may be handed on while ``window - 1`` before it are not, so these have to be
        trained later than it.
        """
        capacity = None
        if max_lag is not None and per_step is not None:
            capacity = (max_lag + 1) * per_step - (window - 1)
        return cls(concurrency, capacity, 3 * concurrency, most_ahead)

    def admits(self, load: Load) -> bool:
        """Whether one more prompt may begin."""
        return load.calls < self.concurrency and self.has_room(load)

    def has_room(self, load: Load) -> bool:
        """Whether one more prompt may be begun, whatever calls run."""
        is_full = load.held >= self.most_held or load.ahead >= self.most_ahead
        return not is_full and not self.is_used_up(load)

    def is_used_up(self, load: Load) -> bool:
        """Whether as many prompts are on their way as may be before the policy is too new."""
        return self.capacity is not None and load.unsettled >= self.capacity
