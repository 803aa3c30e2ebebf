"""The messages between a loader and its workers.

This file is about the messages, in either direction, and about the frames of items:

    loader ──▶ worker       Setup, then per epoch StartEpoch, BeginStream for each stream,
                            Grant …, Hurry …, EndEpoch; an Instruction at any time
    worker ──▶ loader       Ready, then per stream items …, and StreamEnded or StreamFailed;
                            LeftOut …, Tallied …
    dispatcher ──▶ worker   items …, and StreamEnded, StreamFailed or EndEpoch
    worker ──▶ dispatcher   Grant
    all                     slots of shared memory that are free again

The dispatching process exchanges the same messages with the loader as a worker, but no items.

Items and free slots have frames of their own kind; everything else is one of the classes
here, pickled but for Grant, the most frequent. Closing the channel ends the conversation.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from asyncloader.datapipes.settled import SettledRuns
from asyncloader.errors import TransportError
from asyncloader.places.marks import FIRST, DealStart, Mark, dump_mark
from asyncloader.seeds import SeedGenerator
from asyncloader.worker_info import WorkerInfo


class FrameKind(IntEnum):
    """What a frame holds."""

    MESSAGE = 1
    ITEMS = 2
    RELEASED = 3


@dataclass(frozen=True)
class Setup:
    """Which worker this is and what it runs: a pickled ``WorkerPlan``.

    The first ``plan_fds`` of its descriptors belong to the plan; the others are channels
    between the dispatching process and the workers, and with ``has_memory`` the last one is of the
    memory in which it notes its whereabouts. ``homes`` are the modules that registered
    fluent methods in the loader's process.
    """

    info: WorkerInfo
    plan: bytes
    arena_bytes: int
    plan_fds: int = 0
    homes: dict[str, set[str]] = field(default_factory=dict)
    has_memory: bool = False


@dataclass(frozen=True)
class StartEpoch:
    """Get the graph ready for an epoch.

    Epochs are numbered from 1. A worker spawns its own generator from ``seed_generator``.
    ``resets`` is the composed reset and the worker's reset function, pickled by
    ``dump_resets``. ``deal`` says where the dispatching process resumes.
    """

    epoch: int
    shared_seeds: tuple[int, ...]
    seed_generator: SeedGenerator
    resets: bytes
    deal: DealStart | None = None


@dataclass(frozen=True)
class BeginStream:
    """Begin to send a stream, with these credits at first.

    With ``one_by_one`` every item has a frame of its own. The stream resumes from ``mark``;
    the first ``unwanted`` items from there are made but not sent. Where it is recorded what becomes
    of each item, ``settled`` says which items do not have to be made again, and ``kept`` has the
    parts of others that were made before.
    """

    epoch: int
    stream: int
    credits: int
    one_by_one: bool
    mark: Mark = FIRST
    unwanted: int = 0
    settled: SettledRuns | None = None
    kept: Sequence[Sequence[Any]] = ()


#: How many items, and how many bytes, one credit allows; one larger item also costs one.
CREDIT_ITEMS = 1024
CREDIT_BYTES = 1 << 20


#: What one credit allows however small ``prefetch_bytes`` is: a frame of tiny items.
LEAST_CREDIT_BYTES = 4 << 10


#: No limit, of credits or of bytes.
UNBOUNDED = 1 << 62


def credit_bytes(most: int, credits: int) -> int:
    """Return how many bytes of small items a credit allows: together at most ``most``."""
    return min(CREDIT_BYTES, share_bytes(most, credits))


def share_bytes(most: int, credits: int) -> int:
    """Return the part of ``most`` bytes that is one credit's."""
    return max(LEAST_CREDIT_BYTES, most // max(1, credits))


def credits_for(items: int, nbytes: int, credit_items: int, credit_nbytes: int) -> int:
    """Return the cost of a frame with so many items of so many bytes in total."""
    return max(-(-items // credit_items), min(items, -(-nbytes // credit_nbytes)))


@dataclass(frozen=True)
class Grant:
    """Send more of a stream; a frame says how many credits it costs."""

    epoch: int
    stream: int
    credits: int


@dataclass(frozen=True)
class Hurry:
    """The loader waits for the stream's next item: send it without waiting for free memory."""

    epoch: int
    stream: int


@dataclass(frozen=True)
class EndEpoch:
    """Send nothing more of this epoch."""

    epoch: int


class Instruction(Enum):
    """A command that needs no more words."""

    #: Make no more items until RESUME.
    PAUSE = "pause"
    RESUME = "resume"
    #: Send a ``Tallied``, which shows that the process is not stuck.
    ANSWER = "answer"


@dataclass(frozen=True)
class Ready:
    """The worker has set itself up.

    ``has_other_length`` says whether its init function returned pipes that may yield a different
    number of items.
    """

    has_other_length: bool = False


@dataclass(frozen=True)
class StartFailed:
    """The user's code failed while the worker, or an epoch in it, was set up.

    ``epoch`` is NO_EPOCH for the worker itself.
    """

    epoch: int
    error: bytes


@dataclass(frozen=True)
class StreamEnded:
    """Every item of the stream was sent.

    ``tally`` is what the process has done in the epoch, as in ``Tallied``; ``told`` as in a Note.
    """

    epoch: int
    stream: int
    tally: bytes = field(default=b"", compare=False)
    told: bytes = b""


@dataclass(frozen=True)
class StreamFailed:
    """The stream's next item is an error; nothing follows it."""

    epoch: int
    stream: int
    error: bytes
    tally: bytes = field(default=b"", compare=False)
    told: bytes = b""


@dataclass(frozen=True)
class LeftOut:
    """Items were left out since the frame before; ``told`` as in a Note."""

    epoch: int
    stream: int
    told: bytes


@dataclass(frozen=True)
class DealtMark:
    """A mark of the dispatching process, for the loader."""

    epoch: int
    mark: bytes


@dataclass(frozen=True)
class Tallied:
    """What the process has done in the epoch: pickled ``WorkerStats``."""

    epoch: int
    tally: bytes


#: The messages, besides items, from the dispatching process to a worker.
Dealt = StreamEnded | StreamFailed | EndEpoch

Command = Setup | StartEpoch | BeginStream | Grant | Hurry | EndEpoch | Instruction
Report = Ready | StartFailed | StreamEnded | StreamFailed | LeftOut | DealtMark | Tallied

_COMMANDS = (Setup, StartEpoch, BeginStream, Grant, Hurry, EndEpoch, Instruction)
_REPORTS = (Ready, StartFailed, StreamEnded, StreamFailed, LeftOut, DealtMark, Tallied)
NO_EPOCH = 0

_DEALT = (StreamEnded, StreamFailed, EndEpoch)


#: A Grant in a frame: _GRANT_MARK, epoch, stream, credits. A pickle begins with another byte.
_GRANT = struct.Struct("<cQII")
_GRANT_MARK = b"G"


def dump_message(message: Command | Report | Dealt) -> bytes:
    """Return a message as the payload of a frame."""
    if isinstance(message, Grant):
        return _GRANT.pack(_GRANT_MARK, message.epoch, message.stream, message.credits)
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
    """Return the dispatching process's message in a frame; TransportError if it holds none."""
    message: Dealt = _load(payload, _DEALT)
    return message


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
        if len(payload) == _GRANT.size and payload[:1] == _GRANT_MARK:
            message = Grant(*_GRANT.unpack(payload)[1:])
        else:
            message = pickle.loads(payload)
    except Exception as error:
        raise TransportError(f"a message could not be read: {error!r}") from error
    if not isinstance(message, kinds):
        raise TransportError(
            f"a message of type {type(message).__name__} was sent to the wrong side"
        )
    for name in ("epoch", "stream", "plan_fds"):
        number = getattr(message, name, 0)
        if type(number) is not int or number < 0:
            raise TransportError(f"a {type(message).__name__} of {name} {number!r}")
    return message


_HEAD = struct.Struct("<QIIII")


class Note(NamedTuple):
    """What a frame says of its stream, pickled; empty bytes for nothing."""

    #: A mark before the frame's items.
    mark: bytes = b""
    #: Where it is recorded what becomes of each item, what a worker has to tell of it (``Told``);
    #: elsewhere the name of a pipe without order of which nothing is recorded, once.
    told: bytes = b""

    @classmethod
    def of(cls, mark: Mark | None, told: bytes) -> Note:
        """Return the note with a mark, if there is one, and what is told."""
        return cls(b"" if mark is None else dump_mark(mark), told)


NO_NOTE = Note()


def items_head(epoch: int, stream: int, cost: int, note: Note = NO_NOTE) -> bytes:
    """Return the bytes before the items of a frame. ``cost`` is in credits."""
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
