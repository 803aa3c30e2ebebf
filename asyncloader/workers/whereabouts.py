"""Where a worker is, noted in memory that outlives it.

This file is about ``Whereabouts``. A process that is killed can say nothing any more, so a worker
notes beforehand which items it is about to make, and where the sampler saw it; and its loader reads
that after its death. Each note is a single store of eight bytes, which is there as a whole or not
at all.

    the present stream │ the newer sighting │ a word for each stream │ two sightings │ the pipes
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.watch.frames import IMPORTING, CodeOwners
from asyncloader.datapipes.running.watch.watching import Watched

#: How many bytes it takes.
NBYTES = 4096

_PRESENT, _NEWER, _FIRST, _UNREAD = 0, 1, 2, 63
_STREAMS = _UNREAD - _FIRST
_SIGHTINGS = (512, 1536)
_PIPES = 2560
_SIGHTING = struct.Struct("<QQ960s")
_NAMES = struct.Struct("<1536s")

#: So many low bits of a stream's word say how many items more it may make before it writes again.
MORE_BITS = 9
_MORE = (1 << MORE_BITS) - 1


class Whereabouts:
    """Where a worker is: which items it is about to make, and in which pipe it was seen.

    The worker writes it, and its loader reads it when the worker is dead.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory = memoryview(bytearray(NBYTES) if memory is None else memory)
        self.words = self._memory.cast("Q")

    # In the worker ----------------------------------------------------------------------

    def begin(self, stream: int, made: int) -> int:
        """Note that a stream makes items, after so many; return which of ``words`` is for them.

        A loop over items writes it itself, as that is what it may afford: how many are made,
        ``<< MORE_BITS``, and how many more it may make before it writes again, or less.
        """
        # One without a word of its own is as one that makes nothing.
        has_word = stream < _STREAMS
        at = _FIRST + stream if has_word else _UNREAD
        self.words[at] = made << MORE_BITS
        self.words[_PRESENT] = stream + 1 if has_word else 0
        return at

    def end(self) -> None:
        """Note that no items are made for now."""
        self.words[_PRESENT] = 0

    def name(self, pipes: Iterable[Any]) -> None:
        """Note which pipes there are, in their order."""
        _NAMES.pack_into(self._memory, _PIPES, _text(" → ".join(map(stage_name, pipes)), 1535))

    def now(self) -> tuple[int, int]:
        """Return the present stream, from 1, and its word; zeros between two frames."""
        stream = self.words[_PRESENT]
        return (stream, self.words[_FIRST + stream - 1]) if 0 < stream <= _STREAMS else (0, 0)

    def see(self, now: tuple[int, int], pipe: str) -> None:
        """Note that the worker was seen in a pipe, when it was there by ``now``."""
        other = 2 - (self.words[_NEWER] == 2)
        _SIGHTING.pack_into(self._memory, _SIGHTINGS[other - 1], *now, _text(pipe, 959))
        self.words[_NEWER] = other

    # After its death --------------------------------------------------------------------

    def making(self) -> range | None:
        """Return the numbers of the items of which it was making one, usually only one.

        None if it was making none.
        """
        stream, word = self.now()
        if not stream:
            return None
        made, more = word >> MORE_BITS, word & _MORE
        return range(made, made + more + 1)

    def pipe(self) -> str:
        """Return in which pipe it was seen when it made those; "" if it was not seen then."""
        newer = self.words[_NEWER]
        if not 0 < newer <= len(_SIGHTINGS):
            return ""
        stream, word, pipe = _SIGHTING.unpack_from(self._memory, _SIGHTINGS[newer - 1])
        return _of_text(pipe) if (stream, word) == self.now() and stream else ""

    def in_words(self) -> str:
        """Return both, for a message."""
        making, pipe = self.making(), self.pipe()
        if making is None:
            return "it was making none: it waited, or sent what it had made"
        what = (
            f"item {making[0]}" if len(making) == 1 else f"one of items {making[0]} to {making[-1]}"
        )
        names = _of_text(*_NAMES.unpack_from(self._memory, _PIPES))
        where = f", and was seen in {pipe}" if pipe else f", in one of {names}" if names else ""
        return f"it was making {what}, counted from 0{where}"


class SeenThread(Watched):
    """The thread of a worker that makes its items: where it is seen, it is noted."""

    def __init__(self, inside: CodeType, whereabouts: Callable[[], Whereabouts]) -> None:
        super().__init__(inside)
        self._whereabouts = whereabouts
        # Where the last look saw it, and what it was making then.
        self._seen: tuple[int, tuple[int, int]] | None = None

    def place(self, owners: CodeOwners, frames: Mapping[int, FrameType]) -> int:
        whereabouts = self._whereabouts()
        before = whereabouts.now()
        place = super().place(owners, frames)
        # It may have gone on while its frames were looked at.
        if before[0] and whereabouts.now() == before:
            self._seen = place, before
        return place

    def note(self, places: Sequence[int], weight: int) -> None:
        super().note(places, weight)
        seen, self._seen = self._seen, None
        if seen is not None and (seen[0] >= 0 or seen[0] == IMPORTING):
            place, then = seen
            pipe = "an import" if place == IMPORTING else stage_name(self.watching.pipes[place])
            self._whereabouts().see(then, pipe)


def _text(text: str, most: int) -> bytes:
    return text.encode(errors="replace")[:most]


def _of_text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="ignore")
