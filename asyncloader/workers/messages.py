"""The whole conversation between a loader and a worker.

This file is about what may be said, in either direction:

    loader ──▶ worker       Setup, then per epoch StartEpoch, Grant …, Hurry …, EndEpoch;
                            Pause, Resume
    worker ──▶ loader       Ready, then per stream items …, and StreamEnded or StreamFailed
    dispatcher ──▶ worker   items …, and StreamEnded, StreamFailed or EndEpoch
    worker ──▶ dispatcher   Grant
    all                     slots of shared memory that are free again

The dispatching process hears and says to the loader what a worker does, but no items.

Items and free slots have frames of their own kind; everything else is one of the
dataclasses. Closing the channel ends the conversation.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from asyncloader.errors import TransportError
from asyncloader.runtime import WorkerInfo
from asyncloader.seeds import SeedGenerator


class Kind(IntEnum):
    """What a frame holds."""

    MESSAGE = 1
    ITEMS = 2
    RELEASED = 3


@dataclass(frozen=True)
class Setup:
    """Which worker this is and what it runs: a pickled ``WorkerPlan``.

    Of the descriptors that come with it the first ``plan_fds`` belong to the plan; the
    others are channels, between the dispatching process and the workers.
    """

    info: WorkerInfo
    plan: bytes
    arena_bytes: int
    plan_fds: int = 0


@dataclass(frozen=True)
class StartEpoch:
    """Begin to send items, at first as many frames of each stream as there are credits.

    With ``one_by_one`` every item has a frame of its own. Epochs are numbered from 1.
    ``resets`` is a pickled tuple: the composed reset, and the worker's reset function.
    """

    epoch: int
    credits: int
    one_by_one: bool
    shared_seeds: tuple[int, ...]
    seed_generator: SeedGenerator
    resets: bytes


#: How many items a credit is good for. Tiny ones may travel many more to a frame.
CREDIT_ITEMS = 64


def credits_for(items: int) -> int:
    """Return what a frame of so many items costs."""
    return -(-items // CREDIT_ITEMS)


@dataclass(frozen=True)
class Grant:
    """Send more of a stream: a frame for each credit, of at most 64 items."""

    epoch: int
    stream: int
    credits: int


@dataclass(frozen=True)
class Hurry:
    """The stream's next item is waited for: do not wait for memory to come back first."""

    epoch: int
    stream: int


@dataclass(frozen=True)
class EndEpoch:
    """Send nothing more of this epoch."""

    epoch: int


@dataclass(frozen=True)
class Pause:
    """Make nothing more until Resume."""


@dataclass(frozen=True)
class Resume:
    """Go on after Pause."""


@dataclass(frozen=True)
class Ready:
    """The worker has set itself up."""


@dataclass(frozen=True)
class StartFailed:
    """The user's code failed while the worker, or an epoch in it, was set up.

    ``epoch`` is NO_EPOCH for the worker itself.
    """

    epoch: int
    error: bytes


@dataclass(frozen=True)
class StreamEnded:
    """Every item of the stream was sent."""

    epoch: int
    stream: int


@dataclass(frozen=True)
class StreamFailed:
    """The stream's next item is an error; nothing follows it."""

    epoch: int
    stream: int
    error: bytes


#: What the dispatching process may say to a worker, besides items.
Dealt = StreamEnded | StreamFailed | EndEpoch

Command = Setup | StartEpoch | Grant | Hurry | EndEpoch | Pause | Resume
Report = Ready | StartFailed | StreamEnded | StreamFailed

_COMMANDS = (Setup, StartEpoch, Grant, Hurry, EndEpoch, Pause, Resume)
_REPORTS = (Ready, StartFailed, StreamEnded, StreamFailed)
NO_EPOCH = 0

_DEALT = (StreamEnded, StreamFailed, EndEpoch)
_ITEMS_HEAD = struct.Struct("<QI")


def dump_message(message: Command | Report | Dealt) -> bytes:
    """Return a message as the payload of a frame."""
    return pickle.dumps(message, protocol=5)


def load_command(payload: bytes | memoryview) -> Command:
    """Return the command in a frame; TransportError if it holds none."""
    message: Command = _load(payload, _COMMANDS)
    return message


def load_report(payload: bytes | memoryview) -> Report:
    """Return the report in a frame; TransportError if it holds none."""
    message: Report = _load(payload, _REPORTS)
    return message


def load_dealt(payload: bytes | memoryview) -> Dealt:
    """Return what the dispatching process said in a frame; TransportError if it said nothing."""
    message: Dealt = _load(payload, _DEALT)
    return message


def items_head(epoch: int, stream: int) -> bytes:
    """Return what stands before the items of a frame."""
    return _ITEMS_HEAD.pack(epoch, stream)


def split_items(payload: bytes | memoryview) -> tuple[int, int, memoryview]:
    """Return the epoch, the stream and the encoded items of a frame."""
    if len(payload) < _ITEMS_HEAD.size:
        raise TransportError(f"a frame of items has only {len(payload)} bytes")
    epoch, stream = _ITEMS_HEAD.unpack_from(payload)
    return epoch, stream, memoryview(payload)[_ITEMS_HEAD.size :]


def dump_slots(slots: Iterable[int]) -> bytes:
    """Return the numbers of free slots as the payload of a frame."""
    return array("Q", slots).tobytes()


def load_slots(payload: bytes | memoryview) -> list[int]:
    """Return the numbers of free slots in a frame."""
    slots = array("Q")
    try:
        slots.frombytes(bytes(payload))
    except ValueError as error:
        raise TransportError(f"a frame of free slots has {len(payload)} bytes") from error
    return slots.tolist()


def _load(payload: bytes | memoryview, kinds: tuple[type, ...]) -> Any:
    try:
        message = pickle.loads(payload)
    except Exception as error:
        raise TransportError(f"a message could not be read: {error!r}") from error
    if not isinstance(message, kinds):
        raise TransportError(f"a message of type {type(message).__name__} is not for this side")
    for name in ("epoch", "stream", "plan_fds"):
        number = getattr(message, name, 0)
        if type(number) is not int or number < 0:
            raise TransportError(f"a {type(message).__name__} of {name} {number!r}")
    return message
