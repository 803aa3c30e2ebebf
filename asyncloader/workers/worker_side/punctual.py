"""Sending in time while the worker's thread is in the user's code.

This file is about a thread that looks after open frames: an item that was made
is on its way within milliseconds, however long the next one takes.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Protocol

from asyncloader.runtime import start_thread

FRAME_SECONDS = 0.002

#: The thread may be in the middle of sending, to somebody who does not listen.
_CLOSE_SECONDS = 1.0


class Late(Protocol):
    """What may have an open frame."""

    def send_if_late(self) -> bool:
        """Send the frame if it is due; whether one may become due later."""
        ...


class Punctual:
    """Watches streams while they have an open frame; sleeps while none has."""

    def __init__(self) -> None:
        self._watched: set[Late] = set()
        self._is_over = False
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asyncloader punctual", daemon=True)
        start_thread(self._thread)

    def watch(self, stream: Late) -> None:
        """Look after a stream that has just opened a frame."""
        if stream not in self._watched:
            self._watched.add(stream)
            self._awake.set()

    def close(self) -> None:
        """Send nothing more; the channels may be closed then."""
        self._is_over = True
        self._awake.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        pause = threading.Event()
        while not self._is_over:
            self._awake.wait()
            pause.wait(FRAME_SECONDS)
            # Cleared before the look, so that a stream that comes now is not overlooked.
            self._awake.clear()
            for stream in list(self._watched):
                self._look_after(stream)
            if self._watched:
                self._awake.set()

    def _look_after(self, stream: Late) -> None:
        self._watched.discard(stream)
        # That nobody is there any more is noticed by the process's own thread.
        with contextlib.suppress(EOFError):
            if not self._is_over and stream.send_if_late():
                self._watched.add(stream)
