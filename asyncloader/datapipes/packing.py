"""Sequences put together up to a budget of tokens.

This file is about pack_sequences: which pack each sequence goes to, and where one is cut.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.call import answer_of, calling, is_async
from asyncloader.datapipes.patterns import Pipe, closing_items
from asyncloader.datapipes.recording import Joining, of_numbered
from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    Count,
    Fields,
    Of,
    is_ascending,
    list_of,
    row,
)
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.settled import Reason
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import SnapshotError

T = TypeVar("T")


class Packed(Fields):
    """The place of a SequencePacker.

    ``taken`` sequences were packed, and ``offset`` tokens of the next one. Of each part in each
    open pack there are the number, start, stop and length.
    """

    taken: Count = 0
    offset: Count = 0
    yielded: Count = 0
    packs: Annotated[
        list[list[list[int]]],
        Of(lambda pipe: list_of(list_of(row(COUNT, COUNT, COUNT, COUNT)), most=pipe.open_packs)),
    ] = field(default_factory=list)
    #: The open packs, oldest first.
    _packs: list[Pack] = field(default_factory=list)
    #: The number of the sequence that was read last; ``offset`` tokens of it were packed, or all.
    _current: int | None = None

    def needs(self, taken: int) -> int:
        if self._packs:
            # The oldest pack begins with the oldest part that is held.
            return self._packs[0].parts[0].number
        return self.taken if self._current == self.taken else taken

    def fill(self, taken: int, yielded: int) -> None:
        self.yielded = yielded
        self.packs = [
            [[part.number, part.start, part.stop, part.length] for part in pack.parts]
            for pack in self._packs
        ]

    def check(self, pipe: Any) -> Iterator[str]:
        parts = [part for pack in self.packs for part in pack]
        fits = (
            all(self.packs)
            and pipe.may_begin_at(self.offset)
            and all(_tokens_in(pack) <= pipe.budget for pack in self.packs)
            and all(start <= stop == length for _, start, stop, length in parts)
            and all(pipe.may_begin_at(start) for _, start, _, _ in parts)
            and is_ascending(sorted(number for number, *_ in parts))
            and all(number < self.taken for number, *_ in parts)
        )
        if not fits:
            yield (
                "packs and offset are what this way of splitting leaves, and their parts were taken"
            )


@functional_datapipe("pack_sequences")
class SequencePacker(Pipe[list[T]]):
    """Yield packs: lists of sequences that have at most ``budget`` tokens together.

    ``len_fn`` says how many tokens a sequence has. ``split`` says what is cut:

    - "never": nothing. A sequence longer than the budget is a ValueError.
    - "long": a sequence longer than the budget. It fills packs of its own, and what is
      left of it is packed like any other.
    - "always": whatever reaches the end of a pack, so that all packs but the last are
      full, and everything keeps its order.

    ``cut_fn(sequence, start, stop)`` returns a piece (default: ``sequence[start:stop]``).
    Unless everything is cut, a sequence goes where it leaves least room among
    ``open_packs`` packs. A pack is yielded when it is full, or when another has to be
    begun and it is the oldest. At the end of the source come the packs that are left,
    unless ``drop_last`` says to leave them out.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> words = IterableWrapper(["five", "two", "a", "three", "no"])
    >>> list(words.pack_sequences(6))
    [['five', 'a'], ['two', 'no'], ['three']]
    >>> list(words.pack_sequences(6, split="always"))
    [['five', 'tw'], ['o', 'a', 'thre'], ['e', 'no']]
    """

    State = Packed

    def __init__(
        self,
        datapipe: Iterable[T],
        budget: int,
        *,
        len_fn: Callable[[T], Any] = len,  # type: ignore[assignment]
        split: Literal["never", "long", "always"] = "never",
        cut_fn: Callable[[T, int, int], Any] | None = None,
        open_packs: int = 16,
        drop_last: bool = False,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.budget = checked_count("budget", budget, at_least=1)
        self.len_fn = checked_function("len_fn", len_fn, takes=1)
        if split not in ("never", "long", "always"):
            raise ValueError(f'split must be "never", "long" or "always", got {split!r}')
        self.split = split
        self.cut_fn = cut_fn
        self.cut = slice_of if cut_fn is None else checked_function("cut_fn", cut_fn, takes=3)
        self.open_packs = checked_count("open_packs", open_packs, at_least=1)
        self.drop_last = drop_last
        # Called with what is left out.
        self._leave_out: Callable[[Any], None] | None = None

    def waits(self) -> bool:
        return is_async(self.len_fn) or is_async(self.cut)

    def in_section(self) -> Any:
        if self.split != "never":
            # Where a sequence is cut depends on the others, which would be others after a resume.
            return None
        self.len_fn = of_numbered(self.len_fn)
        self._leave_out = operator.methodcaller("leave_out", Reason.DROP_LAST)
        return Joining(self)

    def may_begin_at(self, start: int) -> bool:
        """Whether the last piece of a sequence may begin at ``start``."""
        match self.split:
            case "never":
                return start == 0
            case "long":
                return start % self.budget == 0
        return True

    def run(self, source: Edge[T], state: Packed) -> Iterator[list[T]]:
        numbers, first = _numbers_in(state.packs), state.taken
        again, sequences = source.again(numbers)
        with (
            calling(self.len_fn) as length_of,
            calling(self.cut) as cut_of,
            closing_items(sequences),
        ):
            self._open_again(state, dict(zip(numbers, again, strict=True)), length_of, cut_of)
            for number, sequence in enumerate(sequences, first):
                length = self._checked_length(answer_of(self, length_of, sequence))
                yield from self._pack(state, number, sequence, length, cut_of)
            while state._packs and not self.drop_last:
                yield _yielded(state, state._packs[0])
            if self._leave_out is not None:
                for pack in state._packs:
                    for part in pack.parts:
                        self._leave_out(part.piece)

    def _pack(
        self, state: Packed, number: int, sequence: T, length: int, cut_of: Callable[..., Any]
    ) -> Iterator[list[T]]:
        state._current, packs = number, state._packs
        if state.offset > length:
            raise SnapshotError(
                f"the state does not fit the data: {self!r} had packed {state.offset} tokens"
                f" of a sequence that has {length}"
            )
        while state.taken == number:
            size = self._size_of_next(packs, length - state.offset)
            pack = _pack_for(packs, size)
            # A piece that fills a pack needs no place among the open packs: it is yielded at once.
            if pack is None and size < self.budget and len(packs) == self.open_packs:
                yield _yielded(state, packs[0])
            if pack is None:
                pack = Pack(self.budget)
                packs.append(pack)
            stop = state.offset + size
            pack.add(self._part(number, sequence, state.offset, stop, length, cut_of))
            state.taken, state.offset = (number + 1, 0) if stop == length else (number, stop)
            if pack.room == 0:
                yield _yielded(state, pack)

    def _size_of_next(self, packs: list[Pack], rest: int) -> int:
        if self.split == "always" and packs:
            return min(rest, packs[0].room)
        return min(rest, self.budget)

    def _part(
        self,
        number: int,
        sequence: T,
        start: int,
        stop: int,
        length: int,
        cut_of: Callable[..., Any],
    ) -> Part:
        is_whole = stop - start == length
        piece = sequence if is_whole else answer_of(self, cut_of, sequence, start, stop)
        return Part(number, start, stop, length, piece)

    def _checked_length(self, length: Any) -> int:
        try:
            tokens = operator.index(length)
        except TypeError:
            raise TypeError(
                f"len_fn of {self!r} must return an integer, got {type(length).__name__}"
            ) from None
        if tokens < 0:
            raise ValueError(f"len_fn of {self!r} must return at least 0, got {tokens}")
        if tokens > self.budget and self.split == "never":
            raise ValueError(
                f"{self!r} got a sequence of {tokens} tokens, more than its budget; leave it"
                ' out with filter, or pass split="long" to have it cut'
            )
        return tokens

    def _open_again(
        self,
        state: Packed,
        sequences: dict[int, T],
        length_of: Callable[..., Any],
        cut_of: Callable[..., Any],
    ) -> None:
        for parts in state.packs:
            pack = Pack(self.budget)
            for number, start, stop, length in parts:
                sequence = sequences[number]
                tokens = self._checked_length(answer_of(self, length_of, sequence))
                if tokens != length:
                    raise SnapshotError(
                        f"the state does not fit the data: sequence {number} of {self!r} had"
                        f" {length} tokens, and has {tokens}"
                    )
                pack.add(self._part(number, sequence, start, stop, length, cut_of))
            state._packs.append(pack)


def _pack_for(packs: list[Pack], size: int) -> Pack | None:
    best = None
    for pack in packs:
        if pack.room >= size and (best is None or pack.room < best.room):
            best = pack
    return best


def _yielded(state: Packed, pack: Pack) -> list[Any]:
    state._packs.remove(pack)
    return [part.piece for part in pack.parts]


def _tokens_in(parts: list[list[int]]) -> int:
    return sum(stop - start for _, start, stop, _ in parts)


def slice_of(sequence: Any, start: int, stop: int) -> Any:
    """Return a piece of a sequence, from one token up to another."""
    return sequence[start:stop]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A sequence, or a piece of one, in a pack."""

    #: The sequence has ``length`` tokens; this part holds those from ``start`` to ``stop``.
    number: int
    start: int
    stop: int
    length: int
    piece: Any


@dataclass(eq=False)
class Pack:
    """Parts that will be yielded together, and the number of tokens that still fit."""

    room: int
    parts: list[Part] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Add a part, which must fit."""
        self.parts.append(part)
        self.room -= part.stop - part.start


def _numbers_in(packs: list[list[list[int]]]) -> list[int]:
    return sorted(number for parts in packs for number, *_ in parts)
