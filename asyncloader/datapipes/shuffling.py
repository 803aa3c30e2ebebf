"""Items in another order.

This file is about shuffle, in its iter and map forms, and in_batch_shuffle. Equal
seeds give equal orders. A pass knows its seed and how many draws it has made, and any draw
can be made without those before it. So a resumed pass finds what its buffer held from the
latest draws alone: an item is in the place that was drawn when it was put in, unless that
place was drawn again. Ten draws for each place of the buffer tell nearly all of them.

An order of the keys of a map pipe is a permutation that need not be stored: where the order
goes at any position is computed from the seed, so resuming at position n takes no longer than
beginning at 0. Up to 4,096 numbers are simply shuffled. More are laid out in a grid of about
√n rows by √n columns; every row is rotated by a random distance, then every column, three times
over. Rotations lose nothing and double nothing, and their distances are 6 √n numbers where the
order itself would be n: a grid over a million takes half a millisecond to set up. The few cells
by which the grid is larger than n are walked through until the way leads back to one of the n.
Up to 65,536 numbers are laid out at once, which is quicker than to compute most of them one by one.
Of more, as many as stay in the cache are computed together where NumPy is loaded.
"""

from __future__ import annotations

import importlib
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from itertools import chain, compress, count, islice
from random import Random
from typing import Any, TypeVar, overload

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import (
    MapDataPipe,
    OfSource,
    functional_datapipe,
)
from asyncloader.datapipes.batching import largest_batch
from asyncloader.datapipes.converting import LookupPass, MapToIterConverter
from asyncloader.datapipes.flattening import UnBatcher
from asyncloader.datapipes.one_to_one import OneToOnePass
from asyncloader.datapipes.patterns import Pipe
from asyncloader.datapipes.randomness import BLOCK, Shuffling, fractions
from asyncloader.datapipes.running.cursor_forms import (
    MOST,
    Count,
    Fields,
    Seed,
    Seeding,
)
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.traits import picks
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import SnapshotError
from asyncloader.worker_info import this_worker

T = TypeVar("T")

STORED = 4096
LAID_OUT = 65_536
ROUNDS = 3


def permutation(length: int, seed: int) -> Sequence[int]:
    """Return the numbers from 0 to ``length - 1`` in a random order given by the seed."""
    random = Random(seed)
    if length <= STORED:
        return random.sample(range(length), length)
    grid = GridPermutation(length, random)
    return grid.laid_out() if length <= LAID_OUT else grid


class GridPermutation(Sequence[int]):
    """A permutation by rotating the rows and columns of a grid."""

    def __init__(self, length: int, random: Random) -> None:
        self.length = length
        self.width = math.isqrt(length - 1) + 1
        self.height = -(-length // self.width)
        draw = _drawing(random, self.width)
        self.rounds = [self._draw_round(draw) for _ in range(ROUNDS)]

    def _draw_round(self, draw: Drawing) -> tuple[Sequence[int], Sequence[int]]:
        width, height = self.width, self.height
        return draw(height, width), draw(width, height)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self[index] for index in range(*position.indices(self.length))]
        if not 0 <= position < self.length:
            raise IndexError(f"position {position} is out of range for {self.length} numbers")
        return next(self._one_by_one([position]))

    def at(self, positions: Iterable[int]) -> Iterator[int]:
        """Yield the numbers at these positions, which must be in range.

        Where NumPy is loaded, many are computed together, which takes an eighth of the time.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return self._one_by_one(positions)
        return chain.from_iterable(self._in_blocks(numpy, positions))

    def _in_blocks(self, numpy: Any, positions: Iterable[int]) -> Iterator[list[int]]:
        rounds = [(numpy.asarray(rows), numpy.asarray(columns)) for rows, columns in self.rounds]
        for cells in _blocks(numpy, positions):
            led = self._led(cells, rounds)
            while len(beyond := numpy.flatnonzero(led >= self.length)):
                led[beyond] = self._led(led[beyond], rounds)
            yield led.tolist()

    def _led(self, cells: Any, rounds: list[tuple[Any, Any]]) -> Any:
        """Return where the rounds lead from these cells, as arrays."""
        width, height = self.width, self.height
        row = cells // width
        column = cells - row * width
        for rows, columns in rounds:
            column += rows.take(row)
            _wrap(column, width)
            row += columns.take(column)
            _wrap(row, height)
        row *= width
        row += column
        return row

    def _one_by_one(self, positions: Iterable[int]) -> Iterator[int]:
        width, height, length = self.width, self.height, self.length
        # A loop over the rounds would take half as long again.
        (rows, columns), (rows_2, columns_2), (rows_3, columns_3) = self.rounds
        for position in positions:
            cell = position
            while True:
                row, column = divmod(cell, width)
                column = (column + rows[row]) % width
                row = (row + columns[column]) % height
                column = (column + rows_2[row]) % width
                row = (row + columns_2[column]) % height
                column = (column + rows_3[row]) % width
                row = (row + columns_3[column]) % height
                cell = row * width + column
                if cell < length:
                    break
            yield cell

    def laid_out(self) -> Sequence[int]:
        """Return the whole permutation."""
        width, height = self.width, self.height
        # To rotate a column moves whole numbers instead of objects: that takes half the time.
        cells = array("I", range(width * height))
        # From the last rotation to the first: where the way from each cell leads.
        for of_rows, of_columns in reversed(self.rounds):
            for at, distance in enumerate(of_columns):
                split = at + distance * width
                cells[at::width] = cells[split::width] + cells[at:split:width]
            for at, distance in zip(range(0, len(cells), width), of_rows, strict=True):
                split, end = at + distance, at + width
                cells[at:end] = cells[split:end] + cells[at:split]
        numbers = cells[: self.length]
        # The way walks on through cells beyond the length. They are few, so look for who meets
        # them: to look at each number would take as long as the rotations.
        for beyond in range(self.length, len(cells)):
            position = self._leading_to(beyond)
            if position < self.length:
                number = cells[beyond]
                while number >= self.length:
                    number = cells[number]
                numbers[position] = number
        return numbers

    def _leading_to(self, cell: int) -> int:
        """Return the cell from which the way leads to this one."""
        row, column = divmod(cell, self.width)
        for of_rows, of_columns in reversed(self.rounds):
            row = (row - of_columns[column]) % self.height
            column = (column - of_rows[row]) % self.width
        return row * self.width + column


#: Returns so many random distances below a limit.
Drawing = Callable[[int, int], Sequence[int]]


def _drawing(random: Random, most: int) -> Drawing:
    """Return what draws up to ``most`` distances as ``random`` draws fractions."""
    numpy = sys.modules.get("numpy")
    if most <= _IN_LIST:
        return partial(_drawn, random)
    if numpy is None:
        return partial(_drawn_in_blocks, partial(_drawn, random))
    return partial(_drawn_in_blocks, partial(_drawn_together, _words_of(numpy, random, most)))


#: So many distances are held in a list.
_IN_LIST = 16_384

#: Of more, so many are drawn at once: their arrays are small enough to be used again by malloc.
_AT_ONCE = 4096


def _drawn(random: Random, count: int, limit: int) -> list[int]:
    # A product with a fraction is six times faster than randrange, and its bias
    # is of the order of limit / 2**53.
    return [int(random.random() * limit) for _ in range(count)]


def _drawn_in_blocks(draw: Drawing, count: int, limit: int) -> Sequence[int]:
    # Ten times smaller, and quicker to look up where a list is too large for the cache.
    distances = array("I")
    for first in range(0, count, _AT_ONCE):
        distances.extend(draw(min(_AT_ONCE, count - first), limit))
    return distances


def _drawn_together(words: Callable[[int], Any], count: int, limit: int) -> array[int]:
    """Return the same as ``_drawn``, of words that its generator draws."""
    drawn = words(2 * count)
    # Random makes a fraction of the upper 27 bits of a word and the upper 26 of the next.
    bits = drawn[::2] >> 5 << 26 | drawn[1::2] >> 6
    return array("I", (bits * (limit * 2.0**-53)).astype("u4").tobytes())


def _words_of(numpy: Any, random: Random, count: int) -> Callable[[int], Any]:
    """Return what draws words of 32 bits into arrays of 64, the same that ``random`` would draw.

    NumPy draws them in a third of the time. To import ``numpy.random`` takes as long as to draw a
    few hundred thousand, and would add the state of its generator to those of a worker.
    """
    if count >= _WORTH_AN_IMPORT and this_worker() is None:
        importlib.import_module("numpy.random")
    # Another thread may be in the middle of importing it.
    kind = getattr(sys.modules.get("numpy.random"), "MT19937", None)
    if kind is None:
        return lambda count: numpy.frombuffer(random.randbytes(4 * count), "<u4").astype("u8")
    _, (*key, position), _ = random.getstate()
    bits = kind(0)
    bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
    draw: Callable[[int], Any] = bits.random_raw
    return draw


_WORTH_AN_IMPORT = 250_000


def _blocks(numpy: Any, positions: Iterable[int]) -> Iterator[Any]:
    """Yield positions in arrays, first a few, so that the first item does not wait for many."""
    size, following = 64, iter(positions)
    at = 0
    while True:
        if isinstance(positions, range):
            some = positions[at : at + size]
            block = numpy.arange(some.start, some.stop, some.step)
        else:
            block = numpy.array([*islice(following, size)], numpy.int64)
        if not len(block):
            return
        yield block
        at, size = at + size, min(2 * size, _BLOCK)


def _wrap(numbers: Any, limit: int) -> None:
    """Take a limit from those numbers of an array that have reached it; they are below twice it."""
    numbers -= limit
    # The sign of a number, as all of its bits: a quarter faster than ``where``.
    numbers += (numbers >> 63) & limit


#: Arrays of so many numbers stay in the cache.
_BLOCK = 8192


def permuted(positions: Iterable[int], length: int, seed: int) -> Iterator[int]:
    """Yield the numbers at some positions of ``permutation(length, seed)``."""
    order = permutation(length, seed)
    if isinstance(order, GridPermutation):
        return order.at(positions)
    if isinstance(positions, range) and positions.step == 1:
        # All that are left, as usual: this takes a third of the time.
        return islice(order, positions.start, positions.stop)
    return map(order.__getitem__, positions)


class Shuffled(Fields):
    """The place of a Shuffler, of which each item takes one draw."""

    seed: Seed
    taken: OfSource = 0
    drawn: Count = 0
    #: The items that are held, and their positions.
    _buffer: list[Any] = field(default_factory=list)
    _positions: Any = field(default_factory=partial(array, "q"))
    #: A position that no held item comes before, and how many were taken when it was looked for.
    _oldest: int = 0
    _looked_at: int = 0
    #: Whether a resumed pass reads again from the oldest item on: what can be picked need not be.
    _looks_back: bool = True

    def position(self) -> int:
        return self.drawn

    def lags(self) -> bool:
        return self._looks_back

    def needs(self, taken: int) -> int:
        # Held items only get younger, so what was found before may be told again. To look at all
        # of a large buffer each time would take longer than the items in between.
        held = len(self._positions)
        if held < _FEW or taken - self._looked_at >= held // _LOOKS:
            self._oldest, self._looked_at = least(self._positions, self._oldest), taken
        return self._oldest if self._buffer else taken

    def fill(self, taken: int, yielded: int) -> None:
        self.taken, self.drawn = taken, yielded

    def check(self, pipe: Any) -> Iterator[str]:
        size = pipe.buffer_size if pipe.shuffles else 0
        if not 0 <= self.taken - self.drawn <= size:
            yield f"from 0 to {size} of the taken items are not drawn yet"


@functional_datapipe("shuffle")
class Shuffler(Shuffling, Pipe[T]):
    """Yield the source's items in an order drawn from a seed.

    At most ``buffer_size`` items are held. The order is uniform where the whole
    source fits in the buffer, and local to the buffer otherwise. An
    ``unbatch_level`` other than 0 takes the source's batches apart first.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper(range(5)).shuffle().set_seed(1))
    [0, 1, 2, 3, 4]
    """

    State = Shuffled

    def __init__(
        self, datapipe: Iterable[Any], *, buffer_size: int = 10000, unbatch_level: int = 0
    ) -> None:
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.unbatch_level = unbatch_level
        self.source = iterable_source(datapipe)
        if unbatch_level != 0:
            self.source = UnBatcher(datapipe, unbatch_level)

    def __len__(self) -> int:
        return len(self.source)

    def in_section(self) -> Shuffler[T]:
        return self

    def new_state(self) -> Shuffled:
        return Shuffled(seed=self.next_seed(), _looks_back=not picks(self.source))

    def new_pass(self, edge: Edge[Any]) -> Pass[T]:
        return super().new_pass(edge) if self.shuffles else OneToOnePass(edge)

    def run(self, source: Edge[T], state: Shuffled | None) -> Iterator[T]:
        if state is None:
            # It was told not to shuffle.
            return iter(source)
        return self._shuffled(source, state)

    def _shuffled(self, source: Edge[T], state: Shuffled) -> Iterator[T]:
        buffer, positions, size = state._buffer, state._positions, self.buffer_size
        draw, taken = fractions(state.seed, state.drawn).__next__, state.taken
        following = self._refilled(source, state)
        before = len(buffer)
        try:
            buffer += islice(following, size - before)
            positions.extend(range(taken, taken + len(buffer) - before))
            position = count(taken + len(buffer) - before).__next__
            for item in following:
                # A product with a fraction is several times faster than randrange,
                # and its bias is of the order of buffer_size / 2**53.
                pick = int(draw() * size)
                positions[pick] = position()
                item, buffer[pick] = buffer[pick], item
                yield item
                # Do not keep the yielded item alive while the next one is made.
                del item
            while buffer:
                pick = int(draw() * len(buffer))
                positions[pick] = positions[-1]
                positions.pop()
                # As ``swapped_out`` does it; a call takes as long as the rest of the draw.
                buffer[pick], buffer[-1] = buffer[-1], buffer[pick]
                yield buffer.pop()
        finally:
            buffer.clear()
            close_items(following)

    def _refilled(self, source: Edge[T], state: Shuffled) -> Iterator[T]:
        """Fill the buffer as it was at the state; return the items after those."""
        taken, drawn = state.taken, state.drawn
        places = held_places(state.seed, self.buffer_size, taken, drawn)
        items, following = source.again([*places])
        if drawn > max(0, taken - self.buffer_size):
            self._check_ended(following, taken)
        state._buffer += [None] * len(places)
        state._positions.frombytes(bytes(8 * len(places)))
        for (position, place), item in zip(places.items(), items, strict=True):
            state._buffer[place], state._positions[place] = item, position
        return following

    def _check_ended(self, following: Iterator[T], taken: int) -> None:
        """Raise SnapshotError if there are items: a buffer that is not full is drawn of at last."""
        for _ in following:
            raise SnapshotError(
                f"the state does not fit the data: {self!r} had taken {taken} items, and"
                " no more were left, but there are more now"
            )


#: The oldest item of a large buffer is looked for whenever an eighth of it is new.
_LOOKS = 8

#: Fewer numbers are looked at in no time.
_FEW = 1024


def least(numbers: array[int], otherwise: int) -> int:
    """Return the least of some numbers, which another thread may change; or else a number."""
    copied = numbers[:]
    numpy = sys.modules.get("numpy")
    if numpy is None or len(copied) < _FEW:
        return min(copied, default=otherwise)
    return int(numpy.frombuffer(copied, numpy.int64).min())


def held_places(seed: int, buffer_size: int, taken: int, drawn: int) -> dict[int, int]:
    """Return the places in a shuffle's buffer of the items that it holds, by their positions.

    The positions ascend. The shuffle had taken and drawn so many items, as ``Shuffler`` does
    it: of a full buffer it drew whenever it took one more, and without another after the
    source's end.
    """
    swaps = max(0, taken - buffer_size)
    places = _places_while_full(seed, buffer_size, min(taken, buffer_size), swaps)
    if drawn == swaps:
        return places
    buffer = sorted(places, key=places.__getitem__)
    for fraction in islice(fractions(seed, swaps), drawn - swaps):
        swapped_out(buffer, int(fraction * len(buffer)))
    return dict(sorted(zip(buffer, count(), strict=False)))


def _places_while_full(seed: int, buffer_size: int, held: int, swaps: int) -> dict[int, int]:
    # Positions are found in descending order, so that a million need not be sorted.
    newest_first: dict[int, int] = {}
    # Of which places it is not known what they hold: bytes tell it quicker than a set.
    unknown = bytearray(b"\1") * held
    for first, picks_of_block in _picks_before(seed, buffer_size, swaps):
        if len(newest_first) == held:
            break
        may_be_found = compress(
            range(len(picks_of_block)), map(unknown.__getitem__, picks_of_block)
        )
        # The later of two that are in the same place stays.
        for number in reversed([*may_be_found]):
            place = picks_of_block[number]
            if unknown[place]:
                unknown[place] = 0
                newest_first[buffer_size + first + number] = place
    newest_first |= {place: place for place in reversed(range(held)) if unknown[place]}
    return dict(reversed(newest_first.items()))


def _picks_before(seed: int, buffer_size: int, end: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the places drawn of a full buffer, in blocks with their first numbers, backwards."""
    while end:
        first = (end - 1) // BLOCK * BLOCK
        drawn = islice(fractions(seed, first), end - first)
        yield first, [int(fraction * buffer_size) for fraction in drawn]
        end = first


def swapped_out(buffer: list[T], pick: int) -> T:
    """Take an item out of a buffer."""
    # Swapping with the last item keeps a draw O(1).
    buffer[pick], buffer[-1] = buffer[-1], buffer[pick]
    return buffer.pop()


@functional_datapipe("shuffle", on=MapDataPipe)
class MapShuffler(Shuffling, MapToIterConverter[T]):
    """Yield the items of a map pipe in an order drawn from a seed.

    All items are shuffled, whatever their number, but none is held: each is looked
    up when its turn comes, and the order is computed as it is needed. With
    ``indices`` only those keys are looked up.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> sorted(SequenceWrapper("abc").shuffle().set_seed(1))
    ['a', 'b', 'c']
    """

    State = Seeding

    def __init__(self, datapipe: MapDataPipe[T], *, indices: Sequence[Any] | None = None) -> None:
        super().__init__(datapipe, indices)

    def new_pass(self, edge: Edge[Any]) -> LookupPass[T]:
        begun = super().new_pass(edge)
        begun.state = Seeding(seed=self.next_seed() if self.shuffles else 0)
        return begun

    def picks(self) -> bool:
        # Where it begins says its seed, and what picks does not begin there.
        return False

    def in_order(self, positions: Iterable[int], keys: int, state: Seeding) -> Iterable[int]:
        if not self.shuffles:
            return positions
        if keys > MOST:
            raise ValueError(f"{self!r} orders at most {MOST} items, and its source has {keys}")
        return permuted(positions, keys, state.seed)


class BatchesShuffled(Fields):
    """The place of an InBatchShuffler: the batches so far, and the items drawn for them."""

    seed: Seed
    yielded: OfSource = 0
    drawn: Count = 0

    def first(self) -> int:
        return self.yielded

    def check(self, pipe: Any) -> Iterator[str]:
        if self.drawn > self.yielded * largest_batch(pipe.source):
            yield "each item of a batch took one draw"


@functional_datapipe("in_batch_shuffle")
class InBatchShuffler(Shuffling, Pipe[list[T]]):
    """Yield each batch as a list in an order drawn from a seed; the batches keep theirs.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> batches = IterableWrapper(range(6)).batch(3).in_batch_shuffle()
    >>> [sorted(batch) for batch in batches]
    [[0, 1, 2], [3, 4, 5]]
    """

    State = BatchesShuffled

    def __init__(self, datapipe: Iterable[Sequence[T]]) -> None:
        self.source = iterable_source(datapipe)

    def __len__(self) -> int:
        return len(self.source)

    def new_state(self) -> BatchesShuffled:
        return BatchesShuffled(seed=self.next_seed())

    def new_pass(self, edge: Edge[Any]) -> Pass[list[T]]:
        return super().new_pass(edge) if self.shuffles else OneToOnePass(edge)

    def run(self, source: Edge[Any], state: BatchesShuffled | None) -> Iterator[list[T]]:
        # With no state it was told not to shuffle.
        return iter(source) if state is None else self._shuffled(source, state)

    def _shuffled(self, source: Edge[Any], state: BatchesShuffled) -> Iterator[list[T]]:
        # One draw for every item, so that a resumed pass can count its draws.
        draw = fractions(state.seed, state.drawn).__next__
        for batch in source:
            if not isinstance(batch, Iterable):
                raise TypeError(f"{self!r} reads batches, got {type(batch).__name__}")
            left = list(batch)
            mixed = [swapped_out(left, int(draw() * len(left))) for _ in range(len(left))]
            state.yielded += 1
            state.drawn += len(mixed)
            yield mixed
