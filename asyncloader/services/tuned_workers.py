"""How many workers there are, and how far they run ahead, where the service may choose.

This file is about ``TunedWorkers``: it turns what a loader measures into numbers to use, by the
rule of ``tuning.py``, within what the machine and the graph allow. It starts nothing: the service
that owns it does, when the loader asks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from asyncloader.machine import available_memory, private_memory, usable_cores
from asyncloader.tuning import AUTO, Bounds, Tuning, Window

logger = logging.getLogger("asyncloader")

#: How far workers run ahead if nobody says it.
PREFETCH = 10
_PREFETCH_BOUNDS = Bounds(2, 80)

#: The most workers to begin with: more of them may be more than anybody needs.
FIRST_WORKERS = 8

#: How many workers are asked for the memory that each needs, and which part of what is free
#: further ones may take.
_ASKED = 4
_SHARE_OF_MEMORY = 0.5


class TunedWorkers:
    """The number of workers of a service and their prefetch; either may be fixed.

    By default there are as many workers as suit this machine: ``first`` of them to begin with, and
    at most ``max_workers``.
    """

    def __init__(
        self,
        workers: int | Literal["auto"],
        prefetch: int | Literal["auto"],
        max_workers: int | None = None,
        first: int | None = None,
    ) -> None:
        most = max(4, 2 * usable_cores()) if max_workers is None else max_workers
        first = min(usable_cores() if first is None else first, most, FIRST_WORKERS)
        self._workers = Tuning(first if isinstance(workers, str) else workers)
        self._prefetch = Tuning(PREFETCH if isinstance(prefetch, str) else prefetch)
        self._tunes_workers, self._tunes_prefetch = workers == AUTO, prefetch == AUTO
        self._bounds = Bounds(0, most)
        self._has_told = False

    @property
    def workers(self) -> int:
        """How many workers there should be."""
        return self._workers.number

    @property
    def prefetch(self) -> int:
        """How many portions each should run ahead."""
        return self._prefetch.number

    def bound(self, *, least: int | None = None, most: int | None = None) -> None:
        """Choose no fewer or no more workers from now on."""
        known = self._bounds
        least = known.least if least is None else max(known.least, least)
        most = known.most if most is None else min(known.most, most)
        self._bounds = Bounds(min(least, most), most)
        if self._tunes_workers:
            self._use(self._bounds.clip(self.workers))

    def begin_within(self, room: int) -> None:
        """Begin with no more workers than there is room for; it may grow later."""
        if self._tunes_workers:
            self._use(self._within(room, 0).clip(self.workers))

    def resume_with(self, workers: int) -> None:
        """Use this number first, because a state was taken with it."""
        if self._tunes_workers:
            self._use(workers)

    def refuse(self, workers: int, instead: int) -> None:
        """Use ``instead``, and never so many workers again: they could not be started."""
        if workers < instead:
            self.bound(least=workers + 1)
        else:
            self.bound(most=workers - 1)
        self._use(instead)

    def note(self, window: Window, running: int, room: int | None) -> None:
        """Note what was measured with ``workers`` and ``prefetch``.

        ``running`` is how many workers there are now, and ``room`` how many there is room for.
        """
        if self._tunes_workers and not self._is_tuning_prefetch():
            bounds = self._bounds if room is None else self._within(room, running)
            self._workers = self._workers.after(window, bounds)
        is_settled = self._workers.kept is not None or not self._tunes_workers
        if self._tunes_prefetch and is_settled and self.workers:
            self._prefetch = self._prefetch.after(window, _PREFETCH_BOUNDS)
        if not self._has_told and all(tuning.kept for tuning in self._tunings().values()):
            self._has_told = True
            logger.info("%s", "; ".join(self.choices()))

    def choices(self) -> list[str]:
        """Return what was chosen up to now for each setting that is "auto", and why."""
        return [
            f"{setting}={each.number}, chosen: {each.why}"
            for setting, each in self._tunings().items()
        ]

    def _tunings(self) -> dict[str, Tuning]:
        tunings = {}
        if self._tunes_workers:
            tunings["num_workers"] = self._workers
        if self._tunes_prefetch:
            tunings["worker_prefetch_cnt"] = self._prefetch
        return tunings

    def _is_tuning_prefetch(self) -> bool:
        # One at a time: otherwise nobody knows which of the two made a difference.
        is_begun = bool(self._workers.kept) and self._prefetch.number != PREFETCH
        return self._tunes_prefetch and is_begun and self._prefetch.kept is None

    def _use(self, number: int) -> None:
        if number != self.workers:
            self._workers = Tuning(number)

    def _within(self, room: int, running: int) -> Bounds:
        """Return the bounds, with no more workers than there is room for."""
        # Those that run already are not ended because others take the room.
        most = max(min(self._bounds.most, room), min(running, self._bounds.most), 1)
        return Bounds(min(self._bounds.least, most), most)


def room_in_memory(pids: Sequence[int]) -> int | None:
    """Return how many workers like these there is memory for, or None if nobody knows."""
    each, free = _each_needs(pids[:_ASKED]), available_memory()
    if not each or free is None:
        return None
    return len(pids) + int(_SHARE_OF_MEMORY * free / each)


def _each_needs(pids: Iterable[int]) -> int:
    needed = [each for each in map(private_memory, pids) if each]
    return max(needed, default=0)
