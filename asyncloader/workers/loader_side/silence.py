"""Workers that owe an answer and say nothing.

This file is about ``Silence``: it looks at the workers of a stream whose items are dealt by
the loader, whenever one of them may have been silent for too long, and never otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable

from asyncloader.datapipes.running.home import cancelled
from asyncloader.errors import WorkerTimeout
from asyncloader.runtime import begin_task
from asyncloader.workers.loader_side.link import Link
from asyncloader.workers.loader_side.worker_stream import WARN_SECONDS
from asyncloader.workers.process.watch import add_hang_dump

logger = logging.getLogger("asyncloader")

#: A timer may call a little early; it is set again for at least so long.
_TICK = 0.01

_ENDING = "asyncloader hang dump"


class Silence:
    """Gives up workers that owe an answer and say nothing for ``limit`` seconds.

    They have failed at once, and ``on_end`` is called when it is known where they stood.
    Without a limit it only says so, every half minute.
    """

    def __init__(
        self,
        links: Callable[[], Iterable[Link]],
        limit: float | None,
        on_end: Callable[[], None],
    ) -> None:
        self._links = links
        self._on_end = on_end
        self._limit = limit
        self._seconds = WARN_SECONDS if limit is None else limit
        #: Who was complained of, and when.
        self._complaints: dict[Link, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Those given up, as long as they are asked where they stand.
        self.dying: set[Link] = set()
        self._endings: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Look after the workers, until none owes anything; to be called when one does."""
        if self._timer is None:
            self._look_after(self._seconds)

    async def aclose(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await cancelled([*self._endings])

    def _look_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(seconds, _TICK), self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._complaints = {link: self._complaints.get(link, 0.0) for link in self._links()}
        for link in self._links():
            if now - self._silent_since(link) >= self._seconds:
                self._complain(link, now)
        oldest = min(map(self._silent_since, self._links()), default=math.inf)
        if oldest < math.inf:
            self._look_after(oldest + self._seconds - now)

    def _silent_since(self, link: Link) -> float:
        if link.line is None or link.failure is not None:
            return math.inf
        heard = max(link.last_heard, link.line.last_heard, self._complaints.get(link, 0.0))
        return max(link.line.owes_since(), heard)

    def _complain(self, link: Link, now: float) -> None:
        self._complaints[link] = now
        if self._limit is None:
            logger.warning("waiting for %s for %.0f s", link.name, self._seconds)
            return
        failure = WorkerTimeout(
            f"{link.name} (pid {link.process.pid}) owes an answer and said nothing for"
            f" {self._limit:g} s; it was killed",
            worker=link.worker,
        )
        # Its end, of which it is asked, is not to pass for a death by itself.
        self.dying.add(link)
        link.fail(failure)
        ending = begin_task(asyncio.get_running_loop(), self._end(link, failure), _ENDING)
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, link: Link, failure: WorkerTimeout) -> None:
        try:
            await add_hang_dump(failure, link.name, link.process)
        finally:
            link.process.kill()
            self.dying.discard(link)
            self._on_end()
