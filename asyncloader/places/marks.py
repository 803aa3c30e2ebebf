"""Marks: positions from which a stream can be resumed.

This file is about ``Mark``, its form as bytes beside a frame, and ``Noted``, a mark as the loader
keeps it when it has arrived.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.running.cursor_forms import Count, Fields
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.errors import TransportError
from asyncloader.generators import States


class Dealt(Fields):
    """Of dealt items: how many were taken. It has the number of the pipe that deals."""

    taken: Count


@dataclass(frozen=True)
class Mark:
    """A position from which a stream can be resumed.

    ``states`` are those of the process's random generators, or None if nothing was drawn
    from them since the epoch began.
    """

    position: int
    cursors: Cursors
    states: States | None = None


#: The beginning of every stream.
FIRST = Mark(0, {})


@dataclass(frozen=True)
class DealStart:
    """Where dealing resumes, and how many items each worker has had already."""

    mark: Mark
    dealt: tuple[int, ...]


class Noted:
    """A mark as it arrived, with the position of the next item."""

    __slots__ = ("_mark", "position")

    def __init__(self, position: int, mark: Mark | bytes) -> None:
        self.position = position
        self._mark = mark

    def read(self) -> Mark:
        """Return the mark."""
        mark = self._mark
        if isinstance(mark, bytes):
            self._mark = mark = load_mark(mark)
        return mark


def dump_mark(mark: Mark) -> bytes:
    """Return a mark as bytes."""
    return pickle.dumps((mark.position, mark.cursors, mark.states), protocol=5)


def load_mark(data: bytes) -> Mark:
    """Return the mark in a frame; TransportError if it holds none."""
    try:
        position, cursors, states = pickle.loads(data)
    except Exception as error:
        raise TransportError(f"a mark could not be read: {error!r}") from error
    return Mark(position, cursors, states)


def load_told(data: bytes) -> Any:
    """Return what was told in a frame's note; TransportError if it cannot be read."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise TransportError(f"what was told with a frame could not be read: {error!r}") from error
