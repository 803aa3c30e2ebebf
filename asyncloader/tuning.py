"""A number that is found by measuring: of workers, of calls at a time.

This file is about ``Tuning``: which number to try next, given what was measured with the ones
before. It knows no clock and no process; whoever runs something gives it a ``Window`` now and
then, and follows its ``number``.

    Window ──after──▶ Tuning: try 2 ─▶ try 4 ─▶ try 3 ─▶ keep 3 ─ ─ (the load changes) ─▶ try …

Where the consumer waits, the number with the highest rate is best, and of those that are alike
the smallest. Where it does not wait, the smallest number with which it does not is best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median, quantiles
from typing import Literal

#: As a setting: measure, and choose.
AUTO: Literal["auto"] = "auto"

#: A consumer that waits for at most this share of its time has enough.
ENOUGH = 0.05

#: A rate that is at most this much lower than the highest is as good.
ALIKE = 0.03

#: So many windows tell how good a number is, after one in which buffers fill.
WINDOWS = 3

#: Where another number may be better than the best by more than this, as rates vary, the two are
#: tried again by turns, until each was tried so often.
_MATTERS = 0.05
_MOST_TRIES = 3

#: When so many windows in a row differ by more than this share, the load has changed.
_CHANGE_WINDOWS = 8
_CHANGE = 0.2

#: The best number is kept for so many seconds after the first search, and for twice as many after
#: each further one.
_HOLD_SECONDS = 5.0
_MOST_HOLD_SECONDS = 300.0

#: All changes together may cost so many seconds, and this share of the time.
_SECONDS_FOR_CHANGES = 3.0
_SHARE_FOR_CHANGES = 0.03


@dataclass(frozen=True)
class Window:
    """What was seen in a stretch of time, with the same number throughout."""

    seconds: float
    items: float
    #: For which share of the time the consumer waited, from 0 to 1.
    waited: float
    #: For which share of the time those who make the items were at work.
    busy: float = 1.0
    #: How many items a second there would be with 0, or 0 if that is not known.
    alone: float = 0.0
    #: How many seconds passed before it without an item, because the number was changed.
    lost: float = 0.0
    #: The rates of the windows that it sums up, if there are several.
    rates: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds

    def is_enough(self) -> bool:
        """Whether the consumer hardly waits."""
        return self.waited <= ENOUGH

    def range(self) -> tuple[float, float]:
        """Return between which rates the true one probably lies."""
        if len(self.rates) <= WINDOWS:
            return min(self.rates, default=self.rate), max(self.rates, default=self.rate)
        # The notch of a box plot.
        first, _, third = quantiles(self.rates)
        notch = 1.57 * (third - first) / len(self.rates) ** 0.5
        return self.rate - notch, self.rate + notch


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest number that may be tried."""

    least: int
    most: int

    def clip(self, number: int) -> int:
        """Return the nearest number that may be tried."""
        return max(self.least, min(number, self.most))


def _together(windows: Sequence[Window], before: Sequence[float] = ()) -> Window:
    """Return what several windows say together: the medians, as if in one second.

    ``before`` are rates that were measured with the same number at another time.
    """
    rates = (*before, *(each.rate for each in windows))
    return Window(
        1.0,
        median(rates),
        median(each.waited for each in windows),
        median(each.busy for each in windows),
        median(each.alone for each in windows),
        rates=rates,
    )


@dataclass(frozen=True)
class Tuning:
    """What is known of a number, and which one to use now."""

    number: int
    #: What was measured under the present load, by number.
    found: Mapping[int, Window] = field(default_factory=dict)
    #: What this number was found to do when it was kept; None while others are tried.
    kept: Window | None = None
    why: str = "the first number"
    _windows: tuple[Window, ...] = ()
    _is_filling: bool = True
    _hold: float = _HOLD_SECONDS
    _kept_for: float = 0.0
    _seconds: float = 0.0
    _lost: float = 0.0
    _last_lost: float = 0.0

    def after(self, window: Window, bounds: Bounds) -> Tuning:
        """Return what is known after a window in which ``number`` was used."""
        noted = replace(
            self,
            _seconds=self._seconds + window.seconds + window.lost,
            _lost=self._lost + window.lost,
            _last_lost=window.lost or self._last_lost,
        )
        if not bounds.least <= self.number <= bounds.most:
            return noted._using(bounds.clip(self.number), "the bounds have changed")
        if self._is_filling:
            return replace(noted, _is_filling=False)
        if self.kept is not None:
            return noted._watching(window, bounds)
        windows = (*self._windows, window)
        if len(windows) < WINDOWS:
            return replace(noted, _windows=windows)
        before = self.found[self.number].rates if self.number in self.found else ()
        found = {**self.found, self.number: _together(windows, before)}
        return replace(noted, found=found)._searching(bounds)

    def _searching(self, bounds: Bounds) -> Tuning:
        """Return the tuning that tries the next number, or keeps the best one."""
        candidate = _candidate(self.found, bounds) or _again(self.found, self.number, bounds)
        if candidate is not None and (candidate[0] == self.number or self._may_change()):
            number, why = candidate
            return self._using(number, why)
        number, why = _best(self.found)
        kept = replace(self._using(number, why), kept=self.found[number], _kept_for=0.0)
        return replace(kept, _is_filling=number != self.number)

    def _watching(self, window: Window, bounds: Bounds) -> Tuning:
        """Return the tuning that keeps its number unless the load has changed for good."""
        assert self.kept is not None
        windows, kept_for = (*self._windows, window), self._kept_for + window.seconds
        if kept_for <= _HOLD_SECONDS:
            # More windows say more exactly what is to be expected.
            return replace(self, kept=_together(windows), _windows=windows, _kept_for=kept_for)
        windows = windows[-_CHANGE_WINDOWS:]
        watched = replace(self, _windows=windows, _kept_for=kept_for)
        is_held = kept_for < self._hold or len(windows) < _CHANGE_WINDOWS
        if is_held or not (why := _change(self.kept, windows)) or not self._may_change():
            return watched
        hold = min(2 * self._hold, _MOST_HOLD_SECONDS)
        now = {self.number: _together(windows)}
        return replace(watched, found=now, kept=None, why=why, _hold=hold)._searching(bounds)

    def _using(self, number: int, why: str) -> Tuning:
        is_other = number != self.number
        return replace(self, number=number, why=why, kept=None, _windows=(), _is_filling=is_other)

    def _may_change(self) -> bool:
        allowed = _SECONDS_FOR_CHANGES + _SHARE_FOR_CHANGES * self._seconds
        return self._lost + self._last_lost <= allowed


def _candidate(found: Mapping[int, Window], bounds: Bounds) -> tuple[int, str] | None:
    """Return a number that may be better than all that were tried, and why; None if none may."""
    enough = _enough(found)
    wanted = _fewer(found, min(enough)) if enough else _more(found, bounds)
    if wanted is None:
        return None
    number = bounds.clip(wanted[0])
    return None if number in found else (number, wanted[1])


def _fewer(found: Mapping[int, Window], number: int) -> tuple[int, str] | None:
    """Return a smaller number that may be enough, as ``number`` is."""
    # Those who are at work all the time are needed, with some room.
    wanted = max(1, math.ceil(1.15 * number * found[number].busy))
    too_few = max((each for each in found if each < number), default=0)
    if not too_few < wanted < number:
        return None
    return wanted, f"with {number} the consumer does not wait: trying fewer"


def _more(found: Mapping[int, Window], bounds: Bounds) -> tuple[int, str] | None:
    """Return a number with which the consumer may wait less."""
    # None at all is no neighbour of one: it is looked at apart.
    some = {number: each for number, each in found.items() if number}
    if not some:
        return 2, "the consumer waits with 0: trying more"
    best, _ = _best(some)
    top = some[best]
    above = [number for number in some if number > best]
    below = [number for number in some if number < best]
    if not above and best < bounds.most:
        is_far = len(some) == 1 and top.waited > 0.5 and top.busy > 0.9 and best >= 4
        return max(2, best * (4 if is_far else 2)), f"the consumer waits with {best}: trying more"
    if bounds.least == 0 and 0 not in found and max(e.alone for e in some.values()) > top.rate:
        return 0, "making the items takes less than passing them on: trying none"
    if 0 in found and found[0].rate >= top.rate:
        return None
    if not below and best > max(1, bounds.least):
        return best // 2, f"more than {best} are no better: trying fewer"
    if below and (number := _knee(found, max(below), best)) is not None:
        return number, f"{best} is not as much better than {max(below)} as it could be"
    more = min(above, default=best)
    if more - best > max(1, best // 3) and found[more].rate >= (1 - _CHANGE) * top.rate:
        return (best + more) // 2, f"trying between {best} and {more}"
    return None


def _knee(found: Mapping[int, Window], fewer: int, more: int) -> int | None:
    """Return the number from which on more hardly helped, if it lies well between the two."""
    if not fewer:
        return None
    number = math.ceil(fewer * found[more].rate / found[fewer].rate)
    return number if fewer < number <= 0.8 * more else None


def _again(found: Mapping[int, Window], number: int, bounds: Bounds) -> tuple[int, str] | None:
    """Return a number to be tried again, as it may be the best; None if that is decided."""
    best, _ = _best(found)
    rivals = _rivals(found, best)
    untold = [
        each
        for each in (best, *rivals)
        if rivals and bounds.clip(each) == each and len(found[each].rates) < _MOST_TRIES * WINDOWS
    ]
    if not untold:
        return None
    # To go on with the present number costs nothing.
    again = min(untold, key=lambda each: (len(found[each].rates), each != number))
    return again, f"{best} and {' and '.join(map(str, rivals))} are too alike: trying {again} again"


def _rivals(found: Mapping[int, Window], best: int) -> list[int]:
    """Return the numbers that may be better than the best by as much as matters."""
    if found[best].is_enough():
        return []
    least = (1 + _MATTERS) * found[best].range()[0]
    return [each for each in sorted(found) if each != best and found[each].range()[1] > least]


def _enough(found: Mapping[int, Window]) -> list[int]:
    """Return the numbers with which the consumer hardly waits, and gets no less than with others.

    Where makers and consumer share the cores, it may not wait because it is slower itself.
    """
    highest = max(each.rate for each in found.values())
    return [n for n, each in found.items() if each.is_enough() and _is_alike(each, highest)]


def _is_alike(window: Window, highest: float) -> bool:
    return window.rate >= (1 - ALIKE) * highest


def _best(found: Mapping[int, Window]) -> tuple[int, str]:
    """Return the best of the numbers that were tried, why, and how sure that is."""
    enough = _enough(found)
    if enough:
        return min(enough), "the smallest number with which the consumer hardly waits"
    highest = max(each.rate for each in found.values())
    best = min(n for n, each in found.items() if _is_alike(each, highest))
    rates = ", ".join(f"{n}: {_as_rate(found[n])}" for n in sorted(found))
    if len(found) == 1:
        why = "the only one tried"
    elif found[best].rate == highest:
        why = "the highest rate"
    else:
        why = f"the smallest within {ALIKE:.0%} of the highest rate"
    rivals = " or ".join(map(str, _rivals(found, best)))
    doubt = f"; not sure, as the rates vary: {rivals} may be better" if rivals else ""
    return best, f"{why} ({rates}){doubt}"


def _as_rate(window: Window) -> str:
    low, high = window.range()
    return f"{window.rate:.3g}/s ± {(high - low) / 2 / max(window.rate, 1e-9):.0%}"


def _change(kept: Window, windows: tuple[Window, ...]) -> str:
    """Return how the load has changed since a number was kept, or ""."""
    waited = mean(each.waited for each in windows)
    if kept.is_enough():
        if all(each.waited > 2 * ENOUGH for each in windows):
            return f"the consumer waits again, {waited:.0%} of the time"
        needs_less = all(each.busy < kept.busy / 2 for each in windows)
        return "there is less to do than before" if needs_less else ""
    if all(each.rate < (1 - _CHANGE) * kept.rate for each in windows):
        return "the rate has fallen"
    if all(each.rate > (1 + _CHANGE) * kept.rate for each in windows):
        return "the rate has risen"
    if all(each.waited <= ENOUGH for each in windows):
        return "the consumer waits no longer"
    return ""
