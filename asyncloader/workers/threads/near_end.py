"""A channel within one process.

This file is about ``NearEnd``, of a thread, and ``NearLoopEnd``, which belongs to an event loop.
Frames are put into the other end's queue, with what is sent beside them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from asyncloader.transport.ends import QueuedEnd, joined
from asyncloader.transport.frame import Buffer


def channel_to_loop() -> tuple[NearLoopEnd, NearEnd]:
    """Return the two ends of a channel: a loader's, and that of a thread of its own."""
    ends = NearLoopEnd(), NearEnd()
    _connect(*ends)
    return ends


def channel_between() -> tuple[NearEnd, NearEnd]:
    """Return the two ends of a channel between two threads."""
    ends = NearEnd(), NearEnd()
    _connect(*ends)
    return ends


def _connect(one: NearEnd, other: NearEnd) -> None:
    one.connect(other)
    other.connect(one)


class NearEnd(QueuedEnd):
    """The end of a channel whose other end is in the same process.

    An end does not keep the other one alive, and when that is gone the channel has ended: a
    loader that is dropped ends its threads.
    """

    hands_over = True

    def __init__(self) -> None:
        super().__init__()
        self._other: weakref.ref[NearEnd] | None = None

    def connect(self, other: NearEnd) -> None:
        """Learn which is the other end."""
        self._other = weakref.ref(other, lambda _: self.end())

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        frames = [
            (kind, joined(payload), tuple(fds)),
            *((each, bytes(data), ()) for each, data in then),
        ]
        other = self._other_end()
        if other is None or self._has_ended or not other.arrive(frames):
            raise EOFError(self.gone)

    def close(self) -> None:
        super().close()
        other = self._other_end()
        if other is not None:
            other.end()

    def _other_end(self) -> NearEnd | None:
        return None if self._other is None else self._other()


class NearLoopEnd(NearEnd):
    """The loader's end. What is sent to nobody is dropped."""

    gone = "the worker's thread is gone"

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        with contextlib.suppress(EOFError):
            super().send(kind, payload, fds, then)
