"""Frames of items.

This file is about what stands before the items of a frame: of which stream they are, what
they cost, and a ``Note`` of where that stream stands.
"""

from __future__ import annotations

import pickle
import struct
from typing import NamedTuple

from asyncloader.datapipes.going_on.tidings import Piece
from asyncloader.errors import TransportError
from asyncloader.workers.conversation.messages import Mark

_HEAD = struct.Struct("<QIIII")


class Note(NamedTuple):
    """What a frame says of its stream, pickled; nothing where there is nothing to say."""

    #: Where the stream stood before the frame's items.
    mark: bytes = b""
    #: What its pipes have handed out without order since the frame before.
    told: bytes = b""

    @classmethod
    def of(cls, mark: Mark | None, pieces: list[Piece]) -> Note:
        """Return the note of a mark and of what was told, if there are any."""
        return cls(
            b"" if mark is None else dump_mark(mark),
            pickle.dumps(pieces, protocol=5) if pieces else b"",
        )


NO_NOTE = Note()


def items_head(epoch: int, stream: int, cost: int, note: Note = NO_NOTE) -> bytes:
    """Return what stands before the items of a frame. ``cost`` is in credits."""
    return b"".join([_HEAD.pack(epoch, stream, cost, *map(len, note)), *note])


class ItemsFrame(NamedTuple):
    """The parts of a frame of items."""

    epoch: int
    stream: int
    cost: int
    note: Note
    items: memoryview


def split_items(payload: bytes | memoryview) -> ItemsFrame:
    """Return the parts of a frame of items; the items are still encoded."""
    size = _HEAD.size
    if len(payload) < size:
        raise TransportError(f"a frame of items has only {len(payload)} bytes")
    epoch, stream, cost, mark_bytes, told_bytes = _HEAD.unpack_from(payload)
    view = memoryview(payload)[size:]
    items_at = mark_bytes + told_bytes
    if items_at > len(view):
        raise TransportError(f"a frame of {len(payload)} bytes has a note of {items_at}")
    note = NO_NOTE
    if items_at:
        note = Note(bytes(view[:mark_bytes]), bytes(view[mark_bytes:items_at]))
    return ItemsFrame(epoch, stream, cost, note, view[items_at:])


def dump_mark(mark: Mark) -> bytes:
    """Return a mark as it stands in a frame."""
    return pickle.dumps((mark.position, mark.cursors, mark.states), protocol=5)


def load_mark(data: bytes) -> Mark:
    """Return the mark in a frame; TransportError if it holds none."""
    try:
        position, cursors, states = pickle.loads(data)
    except Exception as error:
        raise TransportError(f"a mark could not be read: {error!r}") from error
    return Mark(position, cursors, states)


def load_told(data: bytes) -> list[Piece]:
    """Return what was told with a frame; TransportError if that cannot be read."""
    try:
        pieces: list[Piece] = pickle.loads(data)
    except Exception as error:
        raise TransportError(f"what was told with a frame could not be read: {error!r}") from error
    return pieces
