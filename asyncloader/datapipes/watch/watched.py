"""Where the time of threads goes.

This file is about ``Watched``, a thread that iterates pipes: how long it worked, and in
which of the pipes. How long it rests it says itself; where it works it is looked at.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from types import CodeType
from typing import Any

from asyncloader.datapipes.watch.frames import OUTSIDE
from asyncloader.datapipes.watch.sampler import SAMPLER

#: A caller that is elsewhere so many times in a row may not come back for hours.
_IDLE_LOOKS = 5


#: Finds the pipes of a graph, which most epochs are too short to be asked for.
FindPipes = Callable[[], list[Any]]


class Watched:
    """A thread that iterates pipes.

    The pipes that are found begin with the one that is iterated, from within the function
    ``inside``.
    """

    def __init__(self, find: FindPipes, inside: CodeType) -> None:
        self.inside = inside
        self.thread = threading.get_ident()
        self.is_over = False
        self._pipes: list[Any] | None = None
        self.restart(find)

    @property
    def pipes(self) -> list[Any]:
        """The pipes, in an order of which the places speak."""
        if self._pipes is None:
            self._pipes = self._find()
        return self._pipes

    def restart(self, find: FindPipes) -> None:
        """Count from nothing, for these pipes."""
        self._find, self._pipes = find, None
        #: How often the thread was seen in which pipe, by the pipe's place in ``pipes``.
        self.looks: Counter[int] = Counter()
        self._rested = 0.0
        self._resting_since = 0.0
        self._begun = self._ended = perf_counter()

    def begin(self) -> None:
        """Look at the thread from now on, unless it is done already."""
        if not self.is_over:
            SAMPLER.watch(self)

    def rest(self) -> None:
        """Say that the thread begins to wait."""
        self._resting_since = perf_counter()

    def go_on(self) -> None:
        """Say that the thread works again."""
        self._rested += perf_counter() - self._resting_since
        self._resting_since = 0.0
        if SAMPLER.is_asleep:
            SAMPLER.wake()

    def end(self) -> None:
        """Look at the thread no more."""
        if not self.is_over:
            self._ended = perf_counter()
            self.is_over = True
            SAMPLER.forget(self)

    def is_resting(self) -> bool:
        """Whether the thread waits, so that there is nothing to see."""
        return self._resting_since > 0

    def note(self, places: Sequence[int]) -> None:
        """Count where the thread was seen a few times in a row."""
        self.looks.update(places)

    def elapsed(self) -> float:
        """Return for how many seconds it was watched."""
        return self._now() - self._begun

    def waiting(self) -> float:
        """Return for how many of them nothing was wanted of the thread."""
        since = self._resting_since
        return self._rested + (max(0.0, self._now() - since) if since else 0.0)

    def working(self) -> float:
        """Return for how many of them it worked."""
        return max(0.0, self.elapsed() - self.waiting())

    def seconds(self) -> dict[int, float]:
        """Return for how long it worked in which pipe, by place; HANDING is between them."""
        looks = {place: count for place, count in dict(self.looks).items() if place != OUTSIDE}
        each = self.working() / max(1, sum(looks.values()))
        return {place: count * each for place, count in looks.items()}

    def _now(self) -> float:
        return self._ended if self.is_over else perf_counter()


class WatchedCalls(Watched):
    """A thread of the caller's, which iterates pipes for as long as it is in a function.

    What the rest of its time goes to is the caller's business, and only looked at.
    """

    #: Whether the caller is to say that the function was called again.
    is_parked = False
    _idle = 0

    def go_on(self) -> None:
        self.thread = threading.get_ident()
        self._idle, self.is_parked = 0, False
        super().go_on()

    def waiting(self) -> float:
        return self.elapsed() - self.working()

    def working(self) -> float:
        looks = sum(self.looks.values())
        active = max(0.0, self.elapsed() - super().waiting())
        return active * (looks - self.looks[OUTSIDE]) / max(1, looks)

    def note(self, places: Sequence[int]) -> None:
        super().note(places)
        self._idle = self._idle + 1 if all(place == OUTSIDE for place in places) else 0
        if self._idle == _IDLE_LOOKS:
            self.is_parked = True
            self.rest()
