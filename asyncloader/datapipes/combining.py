"""Several sources side by side, or mixed.

This file is about pipes that take an item from each of their sources in turn: zip, zip_longest,
mux and mux_longest, and the map form of zip; and about SampleMultiplexer, which draws the source
of each item at random, by weights.
"""

from __future__ import annotations

import contextlib
import operator
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import chain, zip_longest
from typing import Annotated, Any, TypeVar, overload

from asyncloader.arguments import checked_mapping, checked_weight, kind_name
from asyncloader.datapipes.base import (
    MapDataPipe,
    functional_datapipe,
    is_pipe,
    most_items,
)
from asyncloader.datapipes.batching import index_within
from asyncloader.datapipes.patterns import Pipe, SeveralPass
from asyncloader.datapipes.randomness import Seeded, fractions
from asyncloader.datapipes.running.cursor_forms import (
    Count,
    Fields,
    Form,
    Of,
    Seed,
    ascending,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import iterable_source, iterable_sources, keyed_sources
from asyncloader.seeds import checked_seed

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: What a pipe of several sources reads.
Edges = tuple[Edge[Any], ...]


@contextlib.contextmanager
def readers(sources: Iterable[Edge[Any]]) -> Iterator[list[Iterator[Any]]]:
    """Give an iterator for each source and close them all, also those not read to the end."""
    with contextlib.ExitStack() as stack:
        iterators = []
        for source in sources:
            iterators.append(source.begin())
            stack.callback(close_items, iterators[-1])
        yield iterators


class Together(Pipe[T_co]):
    """A pipe that reads all its sources at a time."""

    State: type[Fields] | None = None

    sources: tuple[Any, ...]


@functional_datapipe("zip")
class Zipper(Together[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(9)).zip(IterableWrapper("ab")))
    [(0, 'a'), (1, 'b')]
    """

    makes_again = False
    ends_in_a_round = True

    def __init__(self, *datapipes: Iterable[Any]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def start(self, position: int) -> tuple[int, int]:
        return position, 0

    def run(self, source: Edges, state: None) -> Iterator[tuple[Any, ...]]:
        with readers(source) as iterators:
            yield from zip(*iterators, strict=False)


#: In a state: which of a pipe's sources have ended.
Ended = Annotated[list[int], Of(lambda pipe: ascending(below=len(pipe.sources)))]


class Longest(Fields):
    """The place of a ZipperLongest: how many items it has yielded, and who has ended.

    Who has is not asked again: it may be a branch of which another reader has begun a later pass.
    """

    yielded: Count = 0
    ended: Ended = field(default_factory=list)
    #: How many sources there are.
    _sources: int = 0

    def first_each(self) -> list[int]:
        # A source that had ended has fewer items than this.
        return [self.yielded] * self._sources

    def fill_each(self, taken: list[int], yielded: int) -> None:
        self.yielded = yielded

    def note_end(self, turn: int) -> Iterator[Any]:
        """Note that a source has ended, when it is asked for an item after its last."""
        insort(self.ended, turn)
        yield from ()


class LongestPass(SeveralPass[T]):
    """One pass over a ZipperLongest, whose place states of earlier releases do not have."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        return super().resume_at(position, cursor or {"yielded": position}, cursors)


@functional_datapipe("zip_longest")
class ZipperLongest(Together[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the longest ends.

    A source that ended before is represented by ``fill_value``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(2)).zip_longest(IterableWrapper("a"), fill_value="-"))
    [(0, 'a'), (1, '-')]
    """

    makes_again = False

    State = Longest

    def __init__(self, *datapipes: Iterable[Any], fill_value: Any = None) -> None:
        for pipe in datapipes:
            # A fill_value passed by position would be taken for one more source.
            if not is_pipe(pipe):
                raise TypeError(
                    f"zip_longest reads pipes, got {kind_name(pipe)}; wrap a list by"
                    " IterableWrapper(...), and name a fill value: fill_value=..."
                )
        self.sources = iterable_sources(datapipes)
        self.fill_value = fill_value

    def __len__(self) -> int:
        return max(map(len, self.sources))

    def new_state(self) -> Longest:
        return Longest(_sources=len(self.sources))

    def new_pass(self, edge: Edge[Any]) -> LongestPass[tuple[Any, ...]]:
        return LongestPass(edge, state=self.new_state())

    def run(self, source: Edges, state: Longest) -> Iterator[tuple[Any, ...]]:
        with readers(source) as iterators:
            columns = [
                () if turn in state.ended else chain(items, state.note_end(turn))
                for turn, items in enumerate(iterators)
            ]
            yield from zip_longest(*columns, fillvalue=self.fill_value)


@functional_datapipe("mux")
class Multiplexer(Together[T]):
    """Yield one item from each source in turn, in whole rounds, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux(IterableWrapper([10, 11])))
    [0, 10, 1, 11]
    """

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources)) * len(self.sources)

    def start(self, position: int) -> tuple[int, int]:
        # All items of a round are taken before the first is yielded.
        return divmod(position, len(self.sources))

    def run(self, source: Edges, state: None) -> Iterator[T]:
        with readers(source) as iterators:
            # A round is yielded only when every source has given its item.
            for items in zip(*iterators, strict=False):
                yield from items


class InTurn(Fields):
    """The place of a MultiplexerLongest: whose turn it was last, and who has ended."""

    yielded: Count = 0
    turn: Annotated[int, Of(lambda pipe: whole(-1, len(pipe.sources) - 1))] = -1
    rounds: Count = 0
    ended: Ended = field(default_factory=list)
    #: How many sources there are.
    _sources: int = 0

    def first_each(self) -> list[int]:
        # A source that had ended has fewer items than this.
        return [self.rounds + (place <= self.turn) for place in range(self._sources)]


@functional_datapipe("mux_longest")
class MultiplexerLongest(Together[T]):
    """Yield one item from each source in turn, without those that ended, until all have.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux_longest(IterableWrapper([10])))
    [0, 10, 1, 2]
    """

    State = InTurn

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def new_state(self) -> InTurn:
        return InTurn(_sources=len(self.sources))

    def run(self, source: Edges, state: InTurn) -> Iterator[T]:
        with readers(source) as iterators:
            first = state.turn + 1
            while len(state.ended) < len(iterators):
                for turn in range(first, len(iterators)):
                    if turn in state.ended:
                        continue
                    item = next(iterators[turn], _END)
                    if item is _END:
                        insort(state.ended, turn)
                        continue
                    state.turn = turn
                    state.yielded += 1
                    yield item
                state.rounds += 1
                state.turn, first = -1, 0


_END: Any = object()


@functional_datapipe("zip")
class MapZipper(MapDataPipe[tuple[Any, ...]]):
    """Look up tuples of one item from each source, under the same key.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper("ab").zip(SequenceWrapper(range(9)))[1]
    ('b', 1)
    """

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        self.sources = keyed_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        if _is_from_end(key):
            # The sources may differ in length, so a negative key would mean different items.
            key = index_within(key, len(self))
        return tuple(source[key] for source in self.sources)


def _is_from_end(key: Any) -> bool:
    try:
        return operator.index(key) < 0
    except TypeError:
        return False


def _taken_form(pipe: SampleMultiplexer[Any]) -> Form:
    return row(*(whole(most=most_items(source)) for source in pipe.sources))


def _ended_form(pipe: SampleMultiplexer[Any]) -> Form:
    count = len(pipe.sources)
    return list_of(whole(most=count - 1), most=count)


class Mixed(Fields):
    """The place of a SampleMultiplexer: its draws, and the items taken of each source."""

    seed: Seed
    drawn: Count = 0
    yielded: Count = 0
    taken: Annotated[list[int], Of(_taken_form)] = field(default_factory=list)
    ended: Annotated[list[int], Of(_ended_form)] = field(default_factory=list)

    def first_each(self) -> list[int]:
        return self.taken

    def fill_each(self, taken: list[int], yielded: int) -> None:
        self.taken = taken

    def check(self, pipe: Any) -> Iterator[str]:
        if self.yielded != sum(self.taken):
            yield "as many items were yielded as were taken of all sources"
        if self.drawn != self.yielded + len(set(self.ended)):
            yield "each draw is for an item, or for a source that has ended"


class SampleMultiplexer(Seeded, Pipe[T]):
    """Yield items of several sources, drawing each time which one gives its next.

    ``pipes_to_weights_dict`` says how often a source is drawn relative to the others.
    When one has ended, the rest are drawn by their weights; apply ``cycle`` to a source
    that is to last. A pass draws from the seed that was set for it, as shufflers do;
    with ``seed`` every pass draws from it, and mixes in the same way.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> rare, common = IterableWrapper("ab"), IterableWrapper(range(6))
    >>> list(SampleMultiplexer({rare: 1, common: 3}, seed=2))
    ['a', 0, 'b', 1, 2, 3, 4, 5]
    """

    State = Mixed

    @overload
    def __init__(
        self, pipes_to_weights_dict: Mapping[Iterable[T], float], seed: int | None = None
    ) -> None: ...

    # A Mapping's key type is invariant, so a dict keyed by one pipe class needs this.
    @overload
    def __init__(
        self: SampleMultiplexer[Any],
        pipes_to_weights_dict: Mapping[Any, float],
        seed: int | None = None,
    ) -> None: ...

    def __init__(
        self, pipes_to_weights_dict: Mapping[Iterable[T], float], seed: int | None = None
    ) -> None:
        if not checked_mapping("pipes_to_weights_dict", pipes_to_weights_dict):
            raise ValueError("pipes_to_weights_dict must have at least one source, got none")
        self.pipes_to_weights_dict = {
            iterable_source(source): checked_weight(source, weight, may_be_0=False)
            for source, weight in pipes_to_weights_dict.items()
        }
        self.seed = None if seed is None else checked_seed(seed)

    def __len__(self) -> int:
        return sum(map(len, self.pipes_to_weights_dict))

    @property
    def sources(self) -> tuple[Iterable[T], ...]:
        """The sources, in the order in which they were given."""
        return tuple(self.pipes_to_weights_dict)

    def new_state(self) -> Mixed:
        seed = self.next_seed() if self.seed is None else self.seed
        return Mixed(seed=seed, taken=[0] * len(self.sources))

    def run(self, source: Edges, state: Mixed) -> Iterator[T]:
        draw = fractions(state.seed, state.drawn).__next__
        with readers(source) as iterators:
            while (turn := self._draw_turn(draw(), state.ended)) is not None:
                state.drawn += 1
                item = next(iterators[turn], _END)
                if item is _END:
                    state.ended.append(turn)
                    continue
                state.yielded += 1
                yield item

    def _draw_turn(self, fraction: float, ended: list[int]) -> int | None:
        weights = [*self.pipes_to_weights_dict.values()]
        open_ones = [turn for turn in range(len(weights)) if turn not in ended]
        rest = fraction * sum(weights[turn] for turn in open_ones)
        for turn in open_ones:
            rest -= weights[turn]
            if rest < 0:
                return turn
        # Rounding may leave the sum of the fractions a little too small.
        return open_ones[-1] if open_ones else None
