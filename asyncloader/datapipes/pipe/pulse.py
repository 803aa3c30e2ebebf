"""How long nobody else could run.

This file is about ``Pulse``, a thread that does nothing but beat. While it is silent, some
other thread has the GIL and does not let go of it; nor does any event loop get on then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from time import perf_counter

from asyncloader.runtime import start_thread
from asyncloader.waiting import Bell

_BEAT_SECONDS = 0.01
_LONG_SECONDS = 0.03
#: How many silences are remembered.
_SILENCES = 16


class Pulse:
    """Beats a hundred times a second, in a thread of its own, while somebody listens."""

    def __init__(self) -> None:
        # Whoever collects garbage in here may stop listening.
        self._lock = threading.RLock()
        self._listeners = 0
        self._stop = Bell()
        self._latest = 0.0
        #: When the latest silences that were long began and ended.
        self._silences: tuple[tuple[float, float], ...] = ()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have it beat."""
        with self._lock:
            self._listeners += 1
            if self._listeners == 1:
                self._start()
        try:
            yield
        finally:
            with self._lock:
                self._listeners -= 1
                if not self._listeners:
                    self._stop.ring()

    def silence(self, since: float) -> float:
        """Return for how long at most it was silent at a stretch, from ``since`` on."""
        now = perf_counter()
        silences = (*self._silences, (self._latest, now))
        return max(end - max(begin, since) for begin, end in silences)

    def start_anew(self) -> None:
        """Forget the thread of the parent, in a forked child."""
        self.__init__()  # type: ignore[misc]  # nothing of it is good any more

    def _start(self) -> None:
        self._stop = Bell()
        self._latest = perf_counter()
        thread = threading.Thread(
            target=self._beat, args=(self._stop,), name="asyncloader pulse", daemon=True
        )
        start_thread(thread)

    def _beat(self, stop: Bell) -> None:
        while not stop.heard(_BEAT_SECONDS):
            now = perf_counter()
            if now - self._latest > _LONG_SECONDS:
                self._silences = (*self._silences, (self._latest, now))[-_SILENCES:]
            self._latest = now


#: The one of this process.
PULSE = Pulse()

if sys.platform != "win32":
    os.register_at_fork(after_in_child=PULSE.start_anew)
