"""Who waits long for the items of a loader, and for what.

This file is about ``Wait``, a report of that as plain data, and about the ``Lookout``: one thread
that looks at the loaders of this process every quarter of a minute, and tells the log once of a
consumer that has waited for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

from asyncloader.datapipes.running.waits import MOST_NAMED, holding_up, of_start
from asyncloader.datapipes.running.watch.frames import can_be_looked_at
from asyncloader.datapipes.running.watch.under_way import UnderWay, seconds_text
from asyncloader.datapipes.running.watch.watching import Watching
from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import at_exit, start_thread
from asyncloader.system import in_forked_child
from asyncloader.waiting import Bell

logger = logging.getLogger("asyncloader")

#: Who waits for so long is named.
LONG_SECONDS = 60.0

_LOOKS = 4
_SAME_SECONDS = 0.01


@dataclass(frozen=True)
class Wait:
    """What the consumer of a loader has waited for, for a minute or more.

    >>> from asyncloader import UnderWay, Wait
    >>> call = UnderWay("async_map(ask)", item=7, seconds=61.0, stack=("train.py:12 in ask",))
    >>> print(Wait(61.0, 3, (call,)))
    the consumer has waited 61 s for item 3 of the epoch:
      async_map(ask): item 7, for 61 s
        train.py:12 in ask
    """

    #: For how many seconds it has waited.
    seconds: float
    #: The number of the item in the epoch, from 0.
    item: int
    #: What holds it up, what is wanted first first; empty where nobody was found.
    causes: tuple[UnderWay, ...] = ()
    #: How many more calls are under way.
    more: int = 0

    def __str__(self) -> str:
        """The report, for people."""
        waited = seconds_text(self.seconds)
        lines = [f"the consumer has waited {waited} for item {self.item} of the epoch:"]
        for cause in self.causes:
            lines += [f"  {cause}", *(f"    {line}" for line in cause.stack)]
        if not self.causes:
            lines.append("  nobody was found who works for it: its parts wait for one another")
        if self.more:
            lines.append(f"  and {self.more} more are under way")
        return "\n".join(lines)


class Since(NamedTuple):
    """A wait that goes on: since when, for which item, and in which task of a start."""

    when: float
    item: int
    task: asyncio.Task[None] | None = None

    def is_from(self, when: float) -> bool:
        """Whether it is the wait that began then; the clock of requests is another one."""
        return abs(self.when - when) < _SAME_SECONDS


class Waiting(Protocol):
    """A loader, as its waits see it."""

    watching: Watching

    def present_wait(self) -> Since | None:
        """Return what its consumer waits for; None if it does not wait, or rightly does."""


class LongWaits:
    """The long wait of one loader's consumer, if there is one now."""

    def __init__(self, loader: Waiting) -> None:
        self._loader = weakref.ref(loader)
        #: The latest report; nothing while nobody waits long.
        self.latest: tuple[Wait, ...] = ()
        # Since when the consumer had waited of whom the log was told, and when the report is from.
        self._told = self._made = 0.0

    def look(self) -> None:
        """Look at the loader, and tell the log of a wait that it has not been told of."""
        loader = self._loader()
        present = None if loader is None else loader.present_wait()
        now = perf_counter()
        if present is None or now - present.when < LONG_SECONDS:
            self.latest = ()
            return
        is_new = not present.is_from(self._told)
        if not is_new and now - self._made < LONG_SECONDS:
            return
        found = self.now()
        if found is not None and self._goes_on(present):
            self.latest, self._made = (found,), now
            if is_new:
                self._told = present.when
                logger.warning("%s", found)

    def now(self) -> Wait | None:
        """Return what the consumer waits for at this moment, however short; None if it does not."""
        loader = self._loader()
        present = None if loader is None else loader.present_wait()
        if loader is None or present is None:
            return None
        causes = _causes_of(loader, present)
        seconds = perf_counter() - present.when
        return Wait(seconds, present.item, causes[:MOST_NAMED], max(0, len(causes) - MOST_NAMED))

    def _goes_on(self, before: Since) -> bool:
        loader = self._loader()
        present = None if loader is None else loader.present_wait()
        return present is not None and present.is_from(before.when)


def _causes_of(loader: Waiting, present: Since) -> tuple[UnderWay, ...]:
    starts = [of_start(present.task)] if present.task and can_be_looked_at() else []
    return (*starts, *holding_up(loader.watching))


class Lookout:
    """A thread that looks at waits now and then, while there are loaders that may wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watched: weakref.WeakSet[LongWaits] = weakref.WeakSet()
        self._news = Bell()
        self._thread: threading.Thread | None = None

    def watch(self, waits: LongWaits) -> None:
        """Look at these waits from now on."""
        with self._lock:
            self._watched.add(waits)
            if self._thread is None:
                self._news = Bell()
                thread = threading.Thread(
                    target=self._run, args=(self._news,), name="asyncloader lookout", daemon=True
                )
                try:
                    start_thread(thread)
                except ResourceExhausted:
                    # The next epoch tries again.
                    return
                self._thread = thread

    def forget(self, waits: LongWaits) -> None:
        """Look at these waits no more; the thread ends with the last ones."""
        with self._lock:
            self._watched.discard(waits)
            if self._watched or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._news.ring()
        if thread is not threading.current_thread():
            thread.join(1.0)

    def abandon(self, waits: LongWaits) -> None:
        """Look at these waits no more, without waiting for anything, as in a garbage collection."""
        self._watched.discard(waits)
        self._news.ring()

    def close(self) -> None:
        """Forget all waits."""
        for waits in list(self._watched):
            self.forget(waits)

    def forget_parent(self) -> None:
        """Forget the waits of the parent, in a forked child."""
        self.__init__()  # type: ignore[misc]  # a fresh start

    def _run(self, news: Bell) -> None:
        while self._has_to_look(news):
            if not news.heard(LONG_SECONDS / _LOOKS):
                _look_at(list(self._watched))

    def _has_to_look(self, news: Bell) -> bool:
        """Whether the thread with this bell still has somebody to look at."""
        with self._lock:
            if self._news is news and not self._watched:
                self._thread = None
            return self._news is news and self._thread is not None


def _look_at(watched: Iterable[LongWaits]) -> None:
    for waits in watched:
        try:
            waits.look()
        except Exception:
            # The graph is in use; the next look may succeed.
            logger.debug("a wait could not be looked at", exc_info=True)


#: The one of this process.
LOOKOUT = Lookout()
at_exit(LOOKOUT.close)

in_forked_child(LOOKOUT.forget_parent)
